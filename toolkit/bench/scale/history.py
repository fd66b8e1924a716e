"""Many studies of trainings over time: a table, and a page with a chart for each training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from toolkit.bench.scale.against import THRESHOLD, Key, by_key, change, name_of
from toolkit.bench.scale.charts import Axis, Curve, Mark, chart, escape
from toolkit.bench.scale.directory import read_study
from toolkit.bench.scale.model import Study
from toolkit.bench.scale.page import document, table
from toolkit.bench.scale.spread import spread
from toolkit.errors import ToolkitError, UnknownRunError

_MOST_STUDIES = 500
_MOST_CURVES = 12
HEADER = ("date", "study", "commit", "point", "metric", "median", "runs", "change", "verdict")


class Entry(NamedTuple):
    """A study with where it was read from."""

    path: Path
    study: Study

    @property
    def date(self) -> str:
        """Return when it began."""
        return self.study.origin.began

    @property
    def subject(self) -> tuple[str, str]:
        """Return what is measured: studies with the same subject are compared."""
        return self.study.options.target, self.study.options.metric


def read_all(directory: Path) -> tuple[list[Entry], list[str]]:
    """Return all studies below a directory, the oldest first, and what could not be read.

    Raises:
        UnknownRunError: there is none.
    """
    entries, unreadable = [], []
    for path in sorted(directory.rglob("report.json"))[:_MOST_STUDIES]:
        try:
            entries.append(Entry(path, read_study(path)))
        except ToolkitError as error:
            unreadable.append(f"{path}: {error.cause}")
    if not entries:
        raise UnknownRunError(
            f"there is no report of a scaling study below {directory}",
            place="DIR",
            next_step="toolkit bench scale writes them to scale/NAME",
            details=unreadable[:5],
        )
    return sorted(entries, key=lambda entry: (entry.date, str(entry.path))), unreadable


def rows(entries: Iterable[Entry], root: Path) -> list[tuple[str, ...]]:
    """Return a row for each point of each study, compared with the study before it."""
    before: dict[tuple[tuple[str, str], Key], list[float]] = {}
    written: list[tuple[str, ...]] = []
    for entry in entries:
        for key, values in by_key(entry.study).items():
            own = spread(values)
            old = before.get((entry.subject, key))
            step = (
                change(key, old, values, THRESHOLD, is_time=entry.study.options.is_time)
                if old
                else None
            )
            written.append(
                (
                    entry.date[:16].replace("T", " "),
                    str(entry.path.parent.relative_to(root)),
                    entry.study.origin.commit[:12],
                    name_of(key),
                    entry.study.options.metric,
                    f"{own.median:.5g}",
                    str(own.runs),
                    f"{step.ratio - 1:+.1%}" if step else "-",
                    step.verdict if step else "first",
                )
            )
            before[(entry.subject, key)] = values
    return written


def page(entries: Sequence[Entry], root: Path) -> str:
    """Return a page with a chart for each training and metric, over the studies in their order."""
    subjects = list(dict.fromkeys(entry.subject for entry in entries))
    figures = [
        _figure([entry for entry in entries if entry.subject == subject]) for subject in subjects
    ]
    body = [
        "<h1>Scaling studies over time</h1>",
        "<p>Each change is against the study before it, by the Mann-Whitney test of the runs at "
        f"5 %, and counts above {THRESHOLD:.0%} of the median.</p>",
        f'<div class="pictures">{"".join(figures)}</div>',
        table(HEADER, rows(entries, root), texts=frozenset({1, 2, 3})),
    ]
    return document("Scaling studies over time", body)


def _figure(entries: Sequence[Entry]) -> str:
    target, metric = entries[0].subject
    marks: dict[Key, list[Mark]] = {}
    for number, entry in enumerate(entries, 1):
        for key, values in by_key(entry.study).items():
            own = spread(values)
            marks.setdefault(key, []).append(Mark(number, own.median, own.low, own.high))
    curves = [Curve(name_of(key), tuple(own)) for key, own in list(marks.items())[:_MOST_CURVES]]
    left_out = len(marks) - len(curves)
    more = f"; {left_out} more points are in the table only" if left_out else ""
    drawn = chart(target, curves, Axis(metric, is_log=True), x_label="study", is_linear=True)
    dates = f"{entries[0].date[:10]} to {entries[-1].date[:10]}{more}"
    return f"<figure>{drawn}<figcaption>{escape(dates)}</figcaption></figure>"
