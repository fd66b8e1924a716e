"""`toolkit stacks`."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli import console
from toolkit.cli.lazy import cluster_option
from toolkit.cli.shared import json_option, run_argument, runs_option
from toolkit.errors import JobLostError, LauncherMismatchError

if TYPE_CHECKING:
    from toolkit.model.plan import Plan
    from toolkit.runs.stack_files import Reading
    from toolkit.runs.stacks import Frame
    from toolkit.runs.standings import Standing
    from toolkit.runs.store import Paths


@click.command("stacks")
@run_argument
@click.option(
    "--twice",
    metavar="SECONDS",
    type=click.IntRange(1, 3600),
    help="Ask again after so many seconds, and show what has moved.",
)
@click.option(
    "--wait",
    metavar="SECONDS",
    type=click.IntRange(1, 600),
    default=15,
    show_default=True,
    help="Wait so long for ranks that do not answer.",
)
@json_option
@runs_option
@cluster_option()
def command(run: str | None, twice: int | None, wait: int, as_json: bool, runs: Path) -> int:
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
    from toolkit.runs.store import find

    paths = find(run, runs)
    reading = _ask(paths, wait)
    if twice is not None:
        time.sleep(twice)
        try:
            reading = _ask(paths, wait)
        except JobLostError:
            console.note(f"{paths.name} has ended meanwhile")
    return _show(paths, reading, as_json=as_json)


def _ask(paths: Paths, wait: int) -> Reading:
    from toolkit.runs import stack_files, status

    paths.require_own()
    plan = paths.read_plan()
    if not stack_files.can_answer(plan):
        cause = "the ranks run in containers of an engine, which Slurm's signals do not reach"
        raise LauncherMismatchError(
            cause if plan.reports else "what this run starts is not known to be Python",
            place="RUN",
            next_step=f"toolkit top {paths.word}; toolkit logs -f {paths.word}",
        )
    state, _ = status.current(paths)
    if state is None or state.state != "RUNNING":
        raise JobLostError(
            f"{paths.name} is not running",
            place="RUN",
            next_step=f"toolkit explain {paths.word}",
        )
    client = status.client_of(status.submission_of(paths))
    return stack_files.ask(paths, plan, client, state, wait)


def _show(paths: Paths, reading: Reading, *, as_json: bool) -> int:
    from toolkit import launchers
    from toolkit.runs import standings
    from toolkit.runs.stack_files import source_of

    plan = paths.read_plan()

    def code(frame: Frame) -> str:
        return source_of(plan, frame)

    noun = launchers.get(plan.launch.launcher).task_noun
    stands = standings.standings(reading.answers, plan, code)
    groups = standings.equal_stacks(reading.answers, stands)
    text = standings.summary(stands, plan)
    moved = standings.moved_text(stands, noun)
    if as_json:
        console.out_json(
            {
                "run": paths.name,
                "summary": text,
                "written": reading.written,
                "before": reading.before,
                "ranks": [_row(stand) for stand in stands],
                "missing": standings.without_file(stands, plan),
                "stacks": [group._asdict() for group in groups],
            }
        )
        return 0 if groups else 1
    if not groups:
        console.fact("stacks", text or "no process of Python has answered")
        console.say("", f"toolkit top {paths.word} shows the processes; --wait SECONDS is longer")
        return 1
    console.fact("stacks", text)
    if moved:
        at = datetime.fromtimestamp(reading.before).strftime("%H:%M:%S")
        console.fact("since", f"{at}, {reading.written - reading.before:.0f} s before: {moved}")
    for group in groups:
        console.out()
        console.out(group.owners(noun))
        for frame in group.frames:
            console.out(_line(frame, plan, code(frame)))
    return 0


def _line(frame: Frame, plan: Plan, code: str) -> str:
    path = PurePath(frame.file)
    text = str(path)
    if path.is_relative_to(plan.directory):
        text = str(path.relative_to(plan.directory))
    elif "-packages/" in text:
        text = text.rpartition("-packages/")[2]
    return f"  {frame.function:<28} {text}:{frame.line}{f'   {code}' if code else ''}"


def _row(stand: Standing) -> dict[str, Any]:
    where, report = stand.position, stand.answer.process.report
    frame = where.frame if where else None
    return {
        "rank": stand.rank,
        "label": stand.label,
        "host": report.host,
        "pid": report.pid,
        "text": stand.texts[0],
        "state": where.kind if where else "ended" if stand.answer.has_ended else "silent",
        "function": where.name if where else "",
        "file": frame.file if frame else "",
        "line": frame.line if frame else 0,
        "moved": stand.moved,
    }
