"""The report of a study as one HTML page without outside requests. Pure.

All text of others goes through ``escape``: names of scripts, hosts, runs and commits, and whole
reports of other users, which `--again` reads.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from toolkit.bench.scale import analysis, fits
from toolkit.bench.scale.analysis import Row, Series
from toolkit.bench.scale.charts import escape
from toolkit.bench.scale.fits import Fit
from toolkit.bench.scale.model import Study
from toolkit.bench.scale.pictures import Picture, pictures
from toolkit.bench.scale.text import median_of
from toolkit.model.base import to_json
from toolkit.text import redacted
from toolkit.units import counted, or_dash

_MOST_RUNS = 40  # names of runs that are listed for a point
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #111; background: #fff; margin: 0 auto;
  max-width: 68rem; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .5rem; text-align: right; border-bottom: 1px solid #ccc;
  white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; overflow-wrap: normal; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
td.text { white-space: normal; }
.pictures { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
figure { margin: 0; break-inside: avoid; } svg { width: 100%; height: auto; }
figcaption, .small { font-size: .875rem; color: #333; }
@media print { body { max-width: none; padding: 0; font-size: 11px; } h2 { break-after: avoid; }
  th, td { padding: .15rem .4rem; } .pictures { grid-template-columns: 1fr 1fr; } }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(study: Study) -> str:
    """Return the report of what is measured of a study so far."""
    entries = analysis.series(study)
    fitted = {entry.name: fits.fit(entry) for entry in entries}
    drawn = pictures(study, entries, fitted)
    title = f"Scaling of {study.options.target}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{_summary(study)}</p>",
        *(line for entry in entries for line in _series(study, entry, fitted[entry.name])),
        *_figures(drawn),
        *_method(),
        *_origin(study),
    ]
    return document(title, body, data=to_json(study, indent=0))


def document(title: str, body: Iterable[str], *, data: str = "") -> str:
    """Return a whole page; ``data`` is the JSON that programs read from it."""
    # A browser ends the element at "</script", and nothing else in it is markup.
    held = data.replace("<", "\\u003c").strip()
    script = f'<script type="application/json" id="study">{held}</script>'
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title, 200)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
            *body,
            script if data else "",
            "</body>\n</html>\n",
        ]
    )


def _summary(study: Study) -> str:
    samples = study.samples
    dates = sorted(sample.ended for sample in samples if sample.ended)
    days = list(dict.fromkeys((dates[0][:10], dates[-1][:10]))) if dates else []
    when = f", {' to '.join(days)}" if days else ""
    runs = f"{counted(len(samples), 'run')} at {counted(len(study.points), 'point')}"
    planned = len(study.points) * study.options.runs
    missing = (
        f"; {planned - len(samples)} of {planned} not measured" if planned > len(samples) else ""
    )
    return escape(
        f"Site {study.origin.site}, metric {study.options.metric}: {runs}{when}{missing}."
    )


def _series(study: Study, entry: Series, fitted: Fit | None) -> list[str]:
    unit = entry.rows[0].units[1]
    header = (
        *("nodes", "ranks", study.options.metric, "lowest to highest", "speed-up", "efficiency"),
        *(f"{unit} hours per epoch", "communication", "step", "start"),
    )
    notes = [f"<li>{escape(remark)}</li>" for remark in analysis.remarks(entry, study)]
    return [
        f"<h2>{escape(entry.name)} scaling</h2>",
        table(header, [_cells(row) for row in entry.rows]),
        f"<ul>{''.join(notes)}</ul>" if notes else "",
        *_fit(entry, fitted),
    ]


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(row.point.nodes),
        str(row.size),
        f"{row.value.median:.5g}",
        f"{row.value.low:.5g} to {row.value.high:.5g}" if row.value.runs > 1 else "one run",
        "oversubscribed" if not row.counts else median_of(row.speedup, ".2f"),
        "-" if not row.counts else median_of(row.efficiency, ".0%"),
        or_dash(row.unit_hours, ".3g"),
        or_dash(row.communication_share, ".1%"),
        f"{row.step_seconds * 1000:.3g} ms" if row.step_seconds else "-",
        f"{row.start_seconds:.3g} s" if row.start_seconds else "-",
    )


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, texts: frozenset[int] = frozenset()
) -> str:
    """Return a table that scrolls on small screens; columns in ``texts`` are text."""

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=text' if column in texts else ''}>{_broken(cell)}</{tag}>"
            for column, cell in enumerate(row)
        )

    lines = [f"<tr>{cells('td', row)}</tr>" for row in rows]
    return (
        f'<div class="wide"><table><thead><tr>{cells("th", header)}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _broken(text: str) -> str:
    """Return a text that a narrow column may break behind underscores, as in names of metrics."""
    return escape(text).replace("_", "_<wbr>")


def _fit(entry: Series, fitted: Fit | None) -> list[str]:
    if fitted is None:
        sizes = len({row.size for row in entry.counting})
        needed = f"a fit needs {fits.LEAST} sizes that count"
        text = f"No law is fitted: {needed}, and the study has {sizes}."
        return [f"<p>{escape(text)}</p>"]
    rows = [
        (
            *(str(entry.nodes), str(entry.ranks), f"{entry.speedup:.3g}"),
            f"{entry.low:.3g} to {entry.high:.3g}" if entry.has_end else f"{entry.low:.3g} or more",
        )
        for entry in fits.predictions(entry, fitted)
    ]
    header = ("nodes", "ranks", "speed-up", "95 % band")
    warning = (
        "A prediction, not a measurement: the law continued beyond what was measured. It knows "
        "nothing of networks between more nodes, of file systems, or of too large batches."
    )
    return [
        f"<p>{escape(fits.verdict(fitted))}.</p>",
        f"<h3>Prediction by {escape(fitted.law)}'s law</h3><p>{escape(warning)}</p>",
        table(header, rows),
    ]


def _figures(drawn: Sequence[Picture]) -> list[str]:
    figures = [
        f"<figure>{picture.svg}<figcaption>{escape(picture.caption)}</figcaption></figure>"
        for picture in drawn
    ]
    return ["<h2>Charts</h2>", f'<div class="pictures">{"".join(figures)}</div>'] if figures else []


_METHOD = """\
The value of a point is the median of its runs; the spread is the lowest and the highest run.
Speed-up and efficiency are against the smallest size of the same launcher and mode.
Of values printed over time the warm-up is dropped by MSER (White 1997); the rest's median counts.
Communication is an all-reduce of the gradients' size, measured by the ranks at the end of a run, \
by the time of a step. It is an upper limit: a part may be hidden behind computing.
Laws are fitted to the medians by least squares of relative errors; errors and bands are 95 % \
intervals by Student's t.
"""


def _method() -> list[str]:
    items = "".join(f"<li>{escape(line)}</li>" for line in _METHOD.splitlines())
    return ["<h2>How it was measured</h2>", f'<ul class="small">{items}</ul>']


def _origin(study: Study) -> list[str]:
    origin, options = study.origin, study.options
    facts = {
        "image": origin.image,
        "image digest": origin.image_digest,
        "lock": origin.lock,
        "script": origin.script,
        "script SHA-256": origin.script_sha256,
        "commit": origin.commit,
        "site": origin.site,
        "Slurm": origin.slurm,
        "toolkit": origin.toolkit,
        "began": origin.began,
        "arguments": redacted(shlex.join(options.arguments)),
    }
    rows = [(name, value) for name, value in facts.items() if value]
    runs = [
        (row.point.key, ", ".join(row.runs[:_MOST_RUNS]))
        for entry in analysis.series(study)
        for row in entry.rows
    ]
    report = shlex.quote(f"{study.directory}/report.json")
    again = f"toolkit bench scale --again {report} --directory scale/again"
    return [
        "<h2>To repeat it</h2>",
        f"<p><code>{escape(again)}</code></p>",
        table(("fact", "value"), rows, texts=frozenset({1})),
        "<h3>Runs</h3>",
        table(("point", "runs"), runs, texts=frozenset({1})),
    ]
