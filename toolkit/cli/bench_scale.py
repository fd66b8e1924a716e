"""`toolkit bench scale`: a training on several numbers of nodes, and a report of how it scales."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from toolkit.bench.jobs import FailedRunError
from toolkit.bench.scale import against, analysis, fits
from toolkit.bench.scale import study as studies
from toolkit.bench.scale.directory import StudyDirectory, read_study
from toolkit.bench.scale.model import Options, Study
from toolkit.bench.scale.report import table, write_reports
from toolkit.bench.scale.study import PlannedPoint
from toolkit.cli import console
from toolkit.cli.bench_measure import complete_jobs, show_failed_run
from toolkit.cli.bench_options import study_options
from toolkit.cli.options import flags, job_options_except
from toolkit.cli.shared import json_option
from toolkit.errors import RegressionError, UsageError
from toolkit.text import is_secret
from toolkit.units import counted

# Options of a job that do not fit a study, or that it has as lists.
_NOT_OURS = (
    *("nodes", "ntasks_per_node", "launcher", "sweep", "array", "requeue", "max_requeues"),
    *("interactive", "pty", "after", "snapshot", "dependency"),
)

_OWN = ("weak", "strong", "rounds", "no_hook", "arguments")


@click.command("scale")
@job_options_except(*_NOT_OURS)
@study_options
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="The directory of the study (default: scale/NAME).",
)
@click.option(
    "--again",
    type=click.Path(exists=True, path_type=Path),
    metavar="REPORT",
    help="Measure the study of this report (report.json, report.html or its directory) again.",
)
@click.option(
    "--against",
    type=click.Path(exists=True, path_type=Path),
    metavar="REPORT",
    help="Compare with an earlier report; exit code 98 if a point is slower beyond the noise.",
)
@click.option(
    "--threshold",
    type=click.IntRange(0, 99),
    default=5,
    show_default=True,
    help="With --against: percent of the median below which a change does not count.",
)
@click.option(
    "--dry-run", is_flag=True, help="Print the points and the hours they may take, and stop."
)
@json_option
@click.argument("job", required=False, shell_complete=complete_jobs)
def scale(
    job: str | None,
    again: Path | None,
    directory: Path | None,
    against: Path | None,
    threshold: int,
    dry_run: bool,
    as_json: bool,
    **values: Any,
) -> int:
    """Measure how a training scales over nodes.

    Each point is a job of `toolkit run`; JOB is a folder with a job.toml, or a training script that
    prints samples_per_second, or the key of --metric. The report has medians with their spread,
    speed-up, efficiency, hours and the share of communication: toolkit docs run/scale explains
    them.

    \b
    Examples:
      toolkit bench scale --dry-run --nodes 1,2,4 jobs/digits-ddp
      toolkit bench scale --nodes 1,2,4 --runs 3 jobs/digits-ddp
      toolkit bench scale --nodes 1,2,4 --strong --divide batch-size=64 jobs/digits-ddp
      toolkit bench scale --nodes 1,2 --launcher torchrun,srun train.py
      toolkit bench scale --again scale/digits-ddp/report.json --directory scale/later
      toolkit bench scale --nodes 1,2 --directory scale/new --against scale/old train.py

    The same command goes on after an interruption: no finished run is lost.
    """
    options = _chosen(job, again, values)
    before = read_study(against) if against else None
    folder = StudyDirectory(directory or Path("scale") / (Path(options.target).stem or "study"))
    planned, origin = studies.plan_points(options, Path.cwd(), console.say)
    if dry_run:
        _show_plan(planned, options, as_json=as_json)
        return 0
    with folder.lock():
        try:
            study = studies.measure(
                options,
                planned,
                origin,
                folder,
                Path.cwd(),
                console.say,
                on_sample=lambda measured: write_reports(measured, folder),
            )
        except FailedRunError as failed:
            code = show_failed_run(failed.ran)
            _report_progress(folder)
            return code
        except (KeyboardInterrupt, OSError):
            _report_progress(folder)
            raise
        write_reports(study, folder)
    _show(study, folder, as_json=as_json)
    if before is not None:
        _compare(before, study, threshold / 100)
    return 0


def _report_progress(folder: StudyDirectory) -> None:
    if folder.study.is_file():
        runs = counted(sum(1 for _ in folder.samples.glob("*.json")), "run")
        console.say("kept", f"{runs} in {folder.path}; the same command goes on")


def _compare(before: Study, study: Study, threshold: float) -> None:
    """Print the changes since an earlier study.

    Raises:
        RegressionError: a point is slower beyond the noise.
    """
    changes = against.compare(before, study, threshold)
    console.note(console.table(*against.table(changes)))
    for difference in against.differences(before, study):
        console.say("differs", difference)
    if any(change.verdict == "too few runs" for change in changes):
        console.say("note", "too few runs show no change; 3 against 3 are the fewest: --runs 3")
    slower = [change for change in changes if change.verdict == "slower"]
    if slower:
        raise RegressionError(
            f"slower by {1 - min(change.ratio for change in slower):.1%}: "
            + "; ".join(change.name for change in slower[:10]),
            place="--against",
            next_step="see what differs above; --threshold PERCENT allows more",
        )


def _chosen(job: str | None, again: Path | None, values: dict[str, Any]) -> Options:
    """Return the options of a new study, or of the one that is measured again.

    Raises:
        UsageError: not exactly one of them was named.
    """
    if job is not None and again is None:
        return _options(job, values)
    if again is not None and job is None:
        return _repeated(read_study(again), values)
    raise UsageError(
        "name either a job or the report of a study",
        place="JOB",
        next_step="toolkit bench scale jobs/digits-ddp, or --again REPORT",
    )


def _options(job: str, values: dict[str, Any]) -> Options:
    own = {name: values.pop(name) for name in _OWN}
    chosen: dict[str, Any] = {
        "nodes": values.pop("nodes") or (1, 2, 4),
        "ntasks_per_node": values.pop("ntasks_per_node") or (),
        "launchers": tuple(filter(None, (values.pop("launcher") or "").split(","))),
        "divide": dict(values.pop("divide")),
        "multiply": dict(values.pop("multiply")),
        "metric": values.pop("metric") or "samples_per_second",
        "gradient_size": values.pop("gradient_size") or 0,
        "samples_per_epoch": values.pop("samples_per_epoch") or 0,
        "count_oversubscribed": values.pop("count_oversubscribed") or "",
    }
    modes = [mode for mode in ("strong", "weak") if own[mode]] or ["weak"]
    return Options(
        target=job,
        modes=tuple(modes),  # type: ignore[arg-type]  # strong and weak, from above
        runs=own["rounds"] or 3,
        hook=not own["no_hook"],
        arguments=tuple(shlex.split(own["arguments"] or "")),
        job=_job_settings(values),
        **chosen,
    )


def _repeated(before: Study, values: dict[str, Any]) -> Options:
    """Return the options of an earlier study, with those that are given now in place of its own."""
    given = _options(before.options.target, values)
    default = type(given)(target=given.target, nodes=(1, 2, 4))
    changed = {
        name: value
        for name in given.__struct_fields__
        if (value := getattr(given, name)) != getattr(default, name)
    }
    return replace(before.options, **{**changed, "job": {**before.options.job, **given.job}})


def _job_settings(values: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the job as JSON has them, without secrets: reports are shared."""
    settings = dict(flags(values, ()).values)
    for name, value in settings.get("env", {}).items():
        if is_secret(name, str(value)):
            raise UsageError(
                f"{name} looks like a secret, and would be in the report",
                place=f"--env {name}",
                next_step=f"export {name}, and pass it with --secret {name}",
            )
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def _show_plan(planned: Sequence[PlannedPoint], options: Options, *, as_json: bool) -> None:
    rows = [
        {
            "point": entry.point.key,
            "nodes": entry.plan.nodes,
            "ranks": entry.plan.nodes * entry.plan.ranks_per_node,
            "launcher": entry.plan.launch.launcher,
            "runs": options.runs,
            "hours": round(entry.hours, 2),
            "unit": entry.unit,
            "arguments": shlex.join(entry.plan.launch.program),
        }
        for entry in planned
    ]
    if as_json:
        console.out_json(rows)
        return
    header = ("POINT", "NODES", "RANKS", "LAUNCHER", "RUNS", "AT MOST", "COMMAND")
    cells = [
        (
            *(row[name] for name in ("point", "nodes", "ranks", "launcher", "runs")),
            f"{row['hours']:g} {row['unit']} h" if row["hours"] else "no limit",
            row["arguments"],
        )
        for row in rows
    ]
    console.out(console.table(header, cells))
    runs, unit = len(planned) * options.runs, planned[0].unit
    total = sum(entry.hours for entry in planned)
    console.fact("jobs", f"{runs}, one after the other, in turns over the points")
    limit = f"{total:.3g} {unit} hours, by the time limits (--time)" if total else "no limit known"
    console.fact("at most", limit)


def _show(study: Study, folder: StudyDirectory, *, as_json: bool) -> None:
    if as_json:
        console.out_json(study)
        return
    for entry in analysis.series(study):
        console.out(f"{entry.name} scaling")
        console.out(console.table(*table(study, entry)))
        for remark in analysis.remarks(entry, study):
            console.fact("note", remark)
        if (fitted := fits.fit(entry)) is not None:
            console.fact("fit", fits.verdict(fitted))
    console.say("report", f"{folder.html}, {folder.json}, {folder.csv}")
