"""The commands that show, end and remove runs: `toolkit ps`, `logs`, `top`, `cancel`, `rm`, ..."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path, PurePath

import click
import msgspec

from toolkit.cli import console
from toolkit.cli.shared import (
    AGE,
    cluster_option,
    json_option,
    points_table,
    run_argument,
    run_names_argument,
    runs_option,
)
from toolkit.errors import JobLostError, LauncherMismatchError, ToolkitError, UsageError
from toolkit.runs import logs, processes, records, stacks, status
from toolkit.runs.run import (
    Run,
    all_runs,
    find,
    known_directories,
    other_directories,
    remember,
)
from toolkit.units import counted, human_age, human_size, human_time

_HEADER = ("RUN", "JOB", "STATE", "TIME", "EXIT", "SHAPE", "NODES", "RESULT")
_MOST_RUNS = 20
_WATCH_SECONDS = 5.0  # one query of this user's jobs


@click.command("ps")
@click.option(
    "--all", "-a", "show_all", is_flag=True, help="List all runs, not only the newest twenty."
)
@click.option(
    "--all-directories", "-A", is_flag=True, help="List the runs of all your directories."
)
@click.option("--watch", "-w", is_flag=True, help="Show it again every few seconds, until Ctrl-C.")
@runs_option
@json_option
@cluster_option
def ps(show_all: bool, all_directories: bool, watch: bool, runs: Path, as_json: bool) -> None:
    """List the runs of this directory and their states, the newest first.

    \b
    Examples:
      toolkit ps
      toolkit ps --all-directories
      toolkit ps --all --json
      toolkit ps --watch
    """
    _list_runs(runs, show_all=show_all, all_directories=all_directories, as_json=as_json)
    while watch:
        time.sleep(_WATCH_SECONDS)
        click.clear()  # of a terminal
        _list_runs(runs, show_all=show_all, all_directories=all_directories, as_json=as_json)


def _list_runs(runs: Path, *, show_all: bool, all_directories: bool, as_json: bool) -> None:
    places = known_directories() if all_directories else (runs,)
    known = all_runs(*places)
    if known and not all_directories and Run(runs).is_own:
        remember(runs)  # which may have been moved here
    shown = known if show_all else known[:_MOST_RUNS]
    rows = list(zip(status.rows(shown), shown, strict=True))
    if as_json:
        console.out_json(
            [{**row._asdict(), "directory": str(run.directory.absolute())} for row, run in rows]
        )
    elif not rows:
        elsewhere = not all_directories and other_directories(runs)
        where = "no runs are known" if all_directories else f"no runs in {runs}"
        step = "ps --all-directories" if elsewhere else "run --help"
        console.note(f"{where}; next: toolkit {step}")
    else:
        header = (*_HEADER, "DIRECTORY") if all_directories else _HEADER
        cells = [
            (
                *(row.run, row.job_id or "-", row.state, human_time(row.seconds)),
                "-" if row.exit_code is None else row.exit_code,
                *(row.shape, row.nodes or "-", row.message),
                os.path.relpath(run.directory.parent),
            )[: len(header)]
            for row, run in rows
        ]
        console.out(console.table(header, cells))
        if len(known) > len(rows):
            everywhere = " --all-directories" if all_directories else ""
            console.note(f"{len(known) - len(rows)} more: toolkit ps --all{everywhere}")


@click.command("logs")
@run_argument
@click.option(
    "--follow",
    "-f",
    "following",
    is_flag=True,
    help="Follow until the job has ended; the exit code is the job's.",
)
@click.option("--rank", type=click.IntRange(0), help="Print only the lines of this rank.")
@click.option("--raw", is_flag=True, help="Print every line, also the noise of healthy runs.")
@runs_option
@cluster_option
def show_logs(run: str | None, following: bool, rank: int | None, raw: bool, runs: Path) -> int:
    """Show or follow what the ranks of a run printed.

    Each line begins with its rank or node. RUN (default: the newest run) is the name of a run, its
    directory, or its job id, which is found in all your directories.

    \b
    Examples:
      toolkit logs
      toolkit logs -f train-0007
      toolkit logs 4711
      toolkit logs --rank 3 train-0007
    """
    chosen = find(run, runs)
    _ = chosen.job_id  # the run was submitted

    def is_wanted(line: logs.Line) -> bool:
        return (rank is None or line.rank == rank) and (raw or not logs.is_noise(line.text))

    if following and not chosen.has_ended:
        from toolkit.cli.follow import follow_run  # with the explanation of failures

        return follow_run(chosen, wanted=is_wanted)
    is_empty = True
    for line in logs.Tail(chosen).read(last=True):
        is_empty = False
        if is_wanted(line):
            console.out(f"{line.label}| {line.text}")
    if is_empty:
        console.note(f"{chosen.name} has printed nothing yet; next: toolkit logs -f {chosen.word}")
    if following and chosen.outcome is not None:
        from toolkit.cli.follow import show_outcome

        show_outcome(chosen.outcome, chosen)
        return chosen.outcome.exit_code
    return 0


@click.command("results")
@run_argument
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print as JSON, with results that are lists or objects as well.",
)
@runs_option
@cluster_option
def results(run: str | None, as_json: bool, runs: Path) -> None:
    """Show the results of a run, or of each point of a sweep.

    The result of RUN (default: the newest run) is the last JSON object that its first rank printed.
    A sweep has a row for each point, also while it goes on.

    \b
    Examples:
      toolkit results
      toolkit results train-0007
      toolkit results --json train-0007
    """
    chosen = find(run, runs)
    if not chosen.plan.array:
        status.query(chosen)
        values = chosen.outcome.results if chosen.outcome else {}
        if values or as_json:
            console.result(values, console.mapping(values), as_json=as_json)
        else:
            yet = "" if chosen.outcome else " yet"
            where = "a script prints them as one line of JSON, at its end"
            console.note(f"{chosen.name} has no results{yet}: {where}")
        return
    points = status.elements(chosen)
    planned = {point.number: dict(point.values) for point in chosen.plan.points}
    data = [
        {"values": planned.get(point.number, {}), **msgspec.to_builtins(point)} for point in points
    ]
    console.result(data, points_table(chosen.plan.points, points), as_json=as_json)


@click.command("top")
@run_argument
@json_option
@runs_option
@cluster_option
def top(run: str | None, as_json: bool, runs: Path) -> None:
    """Show what a running job uses: CPU, memory, GPUs.

    The processes of RUN (default: the newest run) are listed with their CPU use over a second, but
    for those that only wait for others. It needs no ssh to the nodes.

    \b
    Examples:
      toolkit top
      toolkit top train-0007
      toolkit top --json train-0007
    """
    chosen = find(run, runs)
    used, gpus = processes.query(chosen, status.require_running(chosen))
    rows = [
        (
            *(process.host, "-" if process.rank is None else process.rank, process.pid),
            *(f"{process.cpu}%", human_size(process.memory)),
            human_size(process.gpu_memory) if process.gpu_memory else "-",
            process.command[:80],
        )
        for process in used
    ]
    header = ("NODE", "RANK", "PID", "CPU", "MEMORY", "GPU MEMORY", "COMMAND")
    lines = [console.table(header, rows)]
    for gpu in gpus:
        memory = f"{human_size(gpu.used)} of {human_size(gpu.total)}"
        lines.append(f"{gpu.host}  GPU {gpu.number}  {gpu.busy}% busy, {memory}")
    plain = [[entry._asdict() for entry in entries] for entries in (used, gpus)]
    data = {"processes": plain[0], "gpus": plain[1]}
    console.result(data, "\n".join(lines), as_json=as_json)
    if not used:
        console.note("no process works yet")


@click.command("stacks")
@run_argument
@click.option(
    "--twice",
    metavar="SECONDS",
    type=click.IntRange(1, 3600),
    help="Ask again after so many seconds, and show what has moved.",
)
@json_option
@runs_option
@cluster_option
def ask_stacks(run: str | None, twice: int | None, as_json: bool, runs: Path) -> int:
    """Ask the ranks of a running job where they are, such as one that hangs.

    Each process of Python writes the stacks of its threads, and goes on. The stacks stay in the
    run's directory, for `toolkit explain`. RUN is a run of yours (default: the newest). The second
    time the command also shows what has moved since the first.

    \b
    Examples:
      toolkit stacks
      toolkit stacks --twice 10 train-0007
      toolkit stacks --json 4711
    """
    chosen = find(run, runs)
    stands, ranks = _ask(chosen)
    if twice is not None:
        time.sleep(twice)
        try:
            stands, ranks = _ask(chosen)
        except JobLostError:
            console.note(f"{chosen.name} has ended meanwhile")
    return _show_stacks(chosen, stands, ranks, as_json=as_json)


def _ask(run: Run) -> tuple[list[stacks.Standing], list[stacks.Standing]]:
    """Return what all processes of a running job do, and of them those that stand for its ranks."""
    run.require_own()
    if not stacks.can_answer(run.plan):
        cause = "the ranks run in containers of an engine, which Slurm's signals do not reach"
        raise LauncherMismatchError(
            cause if run.plan.reports else "what this run starts is not known to be Python",
            place="RUN",
            next_step=f"toolkit top {run.word}; toolkit logs -f {run.word}",
        )
    state = status.query(run)
    if state is None or state.state != "RUNNING":
        raise JobLostError(
            f"{run.name} is not running",
            place="RUN",
            next_step=f"toolkit explain {run.word}",
        )
    processes, sizes = stacks.ask(run, state)
    stands = [stacks.standing(process, run.plan, sizes) for process in processes]
    return stands, stacks.ranks_of(stands)


def _show_stacks(
    run: Run, stands: Sequence[stacks.Standing], ranks: Sequence[stacks.Standing], *, as_json: bool
) -> int:
    plan = run.plan
    groups = stacks.equal_stacks(stands, ranks)
    text, moved = stacks.summary(ranks, plan), stacks.moved_text(ranks, plan)
    data = {
        "run": run.name,
        "summary": text,
        "written": stacks.written(stands),
        "ranks": [
            {
                "rank": stand.process.rank,
                "label": stand.label,
                "host": stand.process.host,
                "pid": stand.process.pid,
                "text": stand.position,
                "moved": stand.moved if stand.before else None,
            }
            for stand in ranks
        ],
        "missing": stacks.without_file(ranks, plan),
        "stacks": groups,
    }
    lines = [console.subject("stacks", text or "no process of Python has answered")]
    lines += [console.subject("since", f"the last answer: {moved}")] if moved and groups else []
    for group in groups:
        owners = [records.subject(group["ranks"], plan)] if group["ranks"] else []
        more = ["..."] if len(group["others"]) > 4 else []
        thread = "" if group["is_main"] else ": another thread"
        lines.append(f"\n{', '.join([*owners, *group['others'][:4], *more])}{thread}")
        for frame in group["frames"]:
            path, code = PurePath(frame.file), stacks.source_of(plan, frame)
            place = frame.file.rpartition("-packages/")[2]
            if path.is_relative_to(plan.directory):
                place = str(path.relative_to(plan.directory))
            line = f"  {frame.function:<28} {place}:{frame.line}"
            lines.append(f"{line}   {code}" if code else line)
    console.result(data, "\n".join(lines), as_json=as_json)
    return 0 if groups else 1


@click.command("cancel")
@run_names_argument
@runs_option
@cluster_option
def cancel(run_names: tuple[str, ...], runs: Path) -> None:
    """Cancel runs, by name or job id; their logs are kept.

    \b
    Examples:
      toolkit cancel train-0007
      toolkit cancel 4711
    """
    from toolkit.runs import removal

    for run in [find(name, runs) for name in run_names]:
        if removal.cancel(run):
            console.say("cancelled", f"{run.name}, job {run.job_id}")
        else:
            state = run.outcome.state if run.outcome else "Slurm has forgotten it"
            console.say("ended", f"{run.name} has ended already: {state}")


@click.command("rm")
@run_names_argument
@click.option(
    "--cancel", is_flag=True, help="Cancel runs that have not ended, and wait until they have."
)
@runs_option
@cluster_option
def rm(run_names: tuple[str, ...], cancel: bool, runs: Path) -> None:
    """Remove runs, with their scripts, logs and all other files.

    Slurm is asked about each run that left no outcome. If one has not ended, nothing is removed.
    Symbolic links are removed, and what they lead to stays.

    \b
    Examples:
      toolkit rm train-0007 train-0008
      toolkit rm --cancel 4711
    """
    from toolkit.runs import removal

    for name in run_names:
        removal.require_no_link(Path(name))
        removal.require_no_link(runs / name)
    chosen = {run.directory: run for run in (find(name, runs) for name in run_names)}
    freed = removal.remove(list(chosen.values()), cancel=cancel)
    names = ", ".join(run.name for run in chosen.values())
    console.say("removed", f"{names} ({human_size(freed)})")


@click.command("prune")
@click.option(
    "--older-than", metavar="AGE", type=AGE, help="Runs that ended longer ago: 30d, 12h, 8w."
)
@click.option(
    "--keep", metavar="N", type=click.IntRange(0), help="Keep the newest N runs of each directory."
)
@click.option("--all-directories", "-A", is_flag=True, help="In all directories of runs.")
@click.option("--yes", is_flag=True, help="Remove them; without it they are only listed.")
@runs_option
@cluster_option
def prune(
    older_than: float | None, keep: int | None, all_directories: bool, yes: bool, runs: Path
) -> None:
    """List old runs; with --yes, remove them.

    Runs that have not ended always stay.

    \b
    Examples:
      toolkit prune --older-than 30d
      toolkit prune --older-than 30d --keep 10 --yes
      toolkit prune --all-directories --keep 5
    """
    from toolkit.runs import removal

    if older_than is None and keep is None:
        step = "toolkit prune --older-than 30d, or --keep 10"
        raise UsageError(
            "no age and no number of runs is given", place="--older-than, --keep", next_step=step
        )
    rows, going = [], []
    for place in known_directories() if all_directories else (runs,):
        old = removal.candidates(all_runs(place), older_than=older_than, keep=keep)
        for run, reason in old.items():
            directory, size, age = run.directory, removal.size_of(run.directory), removal.age(run)
            if yes and not reason:
                try:
                    removal.remove([Run(directory)])
                except ToolkitError as error:
                    reason = error.cause
            going += [] if reason else [size]
            word = f"kept: {reason}" if reason else "removed" if yes else "would be removed"
            rows.append((directory.absolute(), human_size(size), human_age(age), word))
    console.out(console.table(("RUN", "SIZE", "AGE", "") if rows else (), rows))
    step = "" if yes or not going else "; next: the same with --yes removes them"
    freed = f"{human_size(sum(going))}, {counted(len(going), 'run')}"
    console.say("freed" if yes else "would free", f"{freed}{step}")
