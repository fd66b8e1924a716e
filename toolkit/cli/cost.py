"""`toolkit report` and `toolkit usage`: what runs and users used of what they got."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import click

from toolkit.cli import console
from toolkit.cli.shared import (
    AGE,
    cluster_option,
    json_option,
    run_argument,
    runs_option,
    site_option,
)
from toolkit.files import write_atomically
from toolkit.planning.settings import chosen, find_cluster
from toolkit.runs import efficiency, status
from toolkit.runs.run import Run, find
from toolkit.slurm import accounting
from toolkit.units import human_time, or_dash

_BAR = 20  # characters
_MOST_GPUS = 16  # that are shown; --json has all of them
_MOST_MARKS = 60  # of a curve; a longer one is a plain line


@click.command("report")
@run_argument
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a page with the figures, and a chart of the GPUs over time.",
)
@json_option
@runs_option
@cluster_option
def report(run: str | None, html: Path | None, as_json: bool, runs: Path) -> None:
    """Show how much a run used of what it got: CPU, memory, GPUs.

    CPU and memory are Slurm's accounting, by the formulas of seff; the GPUs are sampled on the
    nodes every 30 s. What to ask for next time comes last. RUN is the newest run by default.

    \b
    Examples:
      toolkit report
      toolkit report train-0007
      toolkit report --html train-0007.html train-0007
      toolkit report --json 4711
    """
    own = find(run, runs)
    number = own.job_id
    status.query(own)
    known = efficiency.measure(own)
    advice = efficiency.advise(known, own.plan)
    rows = [*_rows(own, known), *(("advice", text) for _, text in advice)]
    if html is not None:
        write_atomically(html, _page(own, known, rows))
        console.say("report", str(html))
    data = {
        "run": own.name,
        "job_id": number,
        **known._asdict(),
        "memory": known.memory._asdict() if known.memory else None,
        "gpus": [gpu._asdict() for gpu in known.gpus],
        "advice": [text for _, text in advice],
    }
    shown = "\n".join(console.subject(*row) for row in rows)
    console.result(data, "" if html else shown, as_json=as_json)


def _bar(share: float) -> str:
    """Draw a share: ``[#####...............]  25 %``."""
    filled = round(min(share, 1.0) * _BAR)
    return f"[{'#' * filled}{'.' * (_BAR - filled)}] {share * 100:3.0f} %"


def _rows(run: Run, known: efficiency.Efficiency) -> Iterator[tuple[str, str]]:
    limit = f" of {human_time(known.limit_seconds)}" if known.limit_seconds else ""
    passed = f"{known.state} after {human_time(known.seconds)}{limit}"
    yield "report", f"{run.name}, job {run.job_id}, {run.plan.shape}: {passed}"
    if known.cpu_share is not None:
        busy = f"{known.cpu_share * known.cpus:.1f} of {known.cpus} CPUs were busy on average"
        yield "cpu", f"{_bar(known.cpu_share)}  {busy}"
    if (memory := known.memory) is not None:
        of = f"{efficiency.gib(memory.most)} of {efficiency.gib(memory.asked)} on the fullest node"
        yield "memory", f"{_bar(memory.share)}  {of}"
    for number, gpu in enumerate(known.gpus[:_MOST_GPUS]):
        size = f"{efficiency.gib(gpu.memory)} of {efficiency.gib(gpu.total)}"
        watts = f", {gpu.power:.0f} of {or_dash(gpu.limit, '.0f')} W" if gpu.power else ""
        text = f"{_bar(gpu.busy / 100)}  {gpu.host} GPU {gpu.number}, {size}{watts}"
        yield "" if number else "gpu", text
    if known.slurm_gpu is not None:
        yield "gpu", f"{_bar(known.slurm_gpu / 100)}  at most, by Slurm's gres/gpuutil"
    if known.waited is not None:
        lost = known.start_seconds
        first = "" if lost is None else f"; first step {human_time(lost)} after the start"
        yield "waited", f"{human_time(known.waited)}{first}"
    if known.missing:
        yield "unknown", known.missing


def _page(run: Run, known: efficiency.Efficiency, rows: list[tuple[str, str]]) -> str:
    from toolkit import reports
    from toolkit.reports.charts import Axis, Curve, Mark, chart

    minutes = efficiency.SAMPLE_SECONDS / 60
    curves = [
        Curve(
            f"{gpu.host} GPU {gpu.number}",
            tuple(Mark(at * minutes, busy, busy, busy) for at, busy in enumerate(gpu.samples)),
            is_plain=len(gpu.samples) > _MOST_MARKS,
        )
        for gpu in known.gpus[:_MOST_GPUS]
    ]
    axes = Axis("minutes", is_log=False), Axis("GPU use, %", is_log=False, least=100)
    drawing = chart("GPUs over time", curves, *axes) if curves else None
    return reports.render(
        "report.html.j2", title=f"Report of {run.name}", rows=rows, drawing=drawing
    )


@click.command("usage")
@click.option(
    "--since",
    metavar="TIME",
    type=AGE,
    default="30d",
    show_default=True,
    help="Count what ran since then: 12h, 30d, 8w.",
)
@click.option(
    "--by",
    type=click.Choice([*accounting.GROUPS]),
    default="partition",
    show_default=True,
    help="user and account: all jobs that Slurm shows you; partition: only your own.",
)
@site_option("The cluster (default auto, as for `toolkit run`).")
@json_option
@cluster_option
def usage(since: float, by: str, site: str | None, as_json: bool) -> None:
    """Show CPU and GPU hours, how jobs ended, and their waits.

    Slurm's accounting is asked as any user may. FAILED is the share of the hours of jobs that
    failed, ran out of memory, lost a node or reached their time limit.

    \b
    Examples:
      toolkit usage
      toolkit usage --since 7d --by account
      toolkit usage --since 8w --by user --json
    """
    begin = max(0.0, time.time() - since)
    place = find_cluster(site or chosen(Path.cwd()).site)
    start = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(begin))
    options = ["--allocations", "--duplicates", "--truncate", f"--starttime={start}"]
    options += [] if by == "partition" else ["--allusers"]
    jobs = accounting.ask(place.client, accounting.USAGE, *options)
    groups, states = accounting.usage(jobs, by, begin)
    if as_json:
        data = {by: groups, "state": states}
        console.out_json({name: [use._asdict() for use in of] for name, of in data.items()})
        return
    if not groups:
        console.note(f"no jobs since {start}")
        return
    for title, uses in ((by.upper(), groups), ("STATE", states)):
        rows = [
            (
                *(use.name, use.jobs, f"{use.cpu_hours:.1f}", f"{use.gpu_hours:.1f}"),
                f"{use.failed_share:.0%}",
                "-" if use.wait_seconds is None else human_time(use.wait_seconds),
            )
            for use in uses
        ]
        header = (title, "JOBS", "CPU HOURS", "GPU HOURS", "FAILED", "WAIT")
        console.out(console.table(header, rows))
        console.out()
