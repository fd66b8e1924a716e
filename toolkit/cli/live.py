"""`toolkit top` and `stacks`: what a running job uses, and where its ranks are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path, PurePath

import click

from toolkit.cli import console
from toolkit.cli.lazy import cluster_option
from toolkit.cli.shared import json_option, run_argument, runs_option
from toolkit.errors import JobLostError, LauncherMismatchError
from toolkit.model.plan import Plan
from toolkit.model.run import Process
from toolkit.runs import processes, records, status
from toolkit.runs import stacks as answers
from toolkit.runs.directories import find
from toolkit.runs.run import Run
from toolkit.runs.stacks import Frame, Sizes, source_of
from toolkit.units import human_size


@click.command("top")
@run_argument
@click.option(
    "--all",
    "-a",
    "show_all",
    is_flag=True,
    help="Show also processes that only start others and wait for them.",
)
@click.option(
    "--every",
    metavar="SECONDS",
    type=click.IntRange(1),
    help="Repeat after so many seconds, until Ctrl-C or the end of the job.",
)
@json_option
@runs_option
@cluster_option()
def top(run: str | None, show_all: bool, every: int | None, as_json: bool, runs: Path) -> None:
    """Show what a running job uses: CPU, memory, GPUs.

    The processes of RUN (default: the newest run) are listed with their CPU use over a second. The
    command runs in the job's own allocation, so it needs no ssh to the nodes.

    \b
    Examples:
      toolkit top
      toolkit top --every 5 train-0007
      toolkit top --json train-0007
    """
    chosen = find(run, runs)
    usage = _usage(chosen)
    if usage is None:
        raise JobLostError(
            f"{chosen.name} is not running",
            place="RUN",
            next_step=f"toolkit ps; toolkit logs -f {chosen.word}",
        )
    while usage is not None:
        shown, gpus = usage
        shown = shown if show_all else processes.working(shown)
        if as_json:
            console.out_json(
                {
                    "processes": [process._asdict() for process in shown],
                    "gpus": [gpu._asdict() for gpu in gpus],
                }
            )
        else:
            _show_usage(shown, gpus)
            if not shown:
                console.note("no process works yet; next: toolkit top --all, or --every 5")
        if every is None:
            return
        time.sleep(every)
        console.out()
        usage = _usage(chosen)
    console.note(f"{chosen.name} has ended")


def _usage(run: Run) -> tuple[list[processes.Process], list[processes.Gpu]] | None:
    """Return the processes and GPUs of a run on all nodes; None if it is not running."""
    running = status.running(run)
    return processes.query(run, running) if running else None


def _show_usage(processes: list[processes.Process], gpus: list[processes.Gpu]) -> None:
    rows = [
        (
            process.host,
            "-" if process.rank is None else process.rank,
            process.pid,
            f"{process.cpu}%",
            human_size(process.memory),
            human_size(process.gpu_memory) if process.gpu_memory else "-",
            process.command[:80],
        )
        for process in processes
    ]
    console.out(
        console.table(("NODE", "RANK", "PID", "CPU", "MEMORY", "GPU MEMORY", "COMMAND"), rows)
    )
    for gpu in gpus:
        memory = f"{human_size(gpu.used)} of {human_size(gpu.total)}"
        console.out(f"{gpu.host}  GPU {gpu.number}  {gpu.busy}% busy, {memory}")


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
def stacks(run: str | None, twice: int | None, wait: int, as_json: bool, runs: Path) -> int:
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
    answer = _ask(chosen, wait)
    if twice is not None:
        time.sleep(twice)
        try:
            answer = _ask(chosen, wait)
        except JobLostError:
            console.note(f"{chosen.name} has ended meanwhile")
    return _show_stacks(chosen, *answer, as_json=as_json)


def _ask(run: Run, wait: int) -> tuple[Sequence[Process], Sizes]:
    run.require_own()
    if not answers.can_answer(run.plan):
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
    return answers.ask(run, state, wait)


def _show_stacks(run: Run, processes: Sequence[Process], asked: Sizes, *, as_json: bool) -> int:
    plan = run.plan
    stands = [answers.standing(process, plan, asked) for process in processes]
    ranks = answers.ranks_of(stands)
    groups = answers.equal_stacks(stands, ranks)
    text = answers.summary(ranks, plan)
    if as_json:
        data = {
            "run": run.name,
            "summary": text,
            "written": answers.written(stands),
            "ranks": [
                {
                    "rank": stand.process.rank,
                    "label": stand.label,
                    "host": stand.process.host,
                    "pid": stand.process.pid,
                    "text": stand.position.text,
                    "state": stand.position.kind,
                    "function": stand.position.name,
                    "file": stand.position.frame.file if stand.position.frame else "",
                    "line": stand.position.frame.line if stand.position.frame else 0,
                    "moved": stand.moved if stand.before else None,
                }
                for stand in ranks
            ],
            "missing": answers.without_file(ranks, plan),
            "stacks": groups,
        }
        console.out_json(data)
        return 0 if groups else 1
    console.fact("stacks", text or "no process of Python has answered")
    if not groups:
        console.say("", f"toolkit top {run.word} shows the processes; --wait SECONDS is longer")
        return 1
    if moved := answers.moved_text(ranks, plan):
        console.fact("since", f"the last answer: {moved}")
    for group in groups:
        owners = [records.subject(group["ranks"], plan)] if group["ranks"] else []
        more = ["..."] if len(group["others"]) > 4 else []
        thread = "" if group["is_main"] else ": another thread"
        console.out(f"\n{', '.join([*owners, *group['others'][:4], *more])}{thread}")
        for frame in group["frames"]:
            console.out(_line(frame, plan))
    return 0


def _line(frame: Frame, plan: Plan) -> str:
    path, code = PurePath(frame.file), source_of(plan, frame)
    is_own = path.is_relative_to(plan.directory)
    shown = path.relative_to(plan.directory) if is_own else frame.file.rpartition("-packages/")[2]
    return f"  {frame.function:<28} {shown}:{frame.line}{f'   {code}' if code else ''}"
