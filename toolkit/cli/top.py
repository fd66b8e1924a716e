"""`toolkit top`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from toolkit.cli import console
from toolkit.cli.lazy import cluster_option
from toolkit.cli.shared import json_option, run_argument, runs_option
from toolkit.errors import JobLostError
from toolkit.runs import processes, status
from toolkit.runs.directories import find
from toolkit.runs.processes import Gpu, Process, working
from toolkit.runs.run import Run
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
def command(run: str | None, show_all: bool, every: int | None, as_json: bool, runs: Path) -> None:
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
        processes, gpus = usage
        shown = processes if show_all else working(processes)
        if as_json:
            console.out_json(
                {
                    "processes": [process._asdict() for process in shown],
                    "gpus": [gpu._asdict() for gpu in gpus],
                }
            )
        else:
            _show(shown, gpus)
            if not shown:
                console.note("no process works yet; next: toolkit top --all, or --every 5")
        if every is None:
            return
        time.sleep(every)
        console.out()
        usage = _usage(chosen)
    console.note(f"{chosen.name} has ended")


def _usage(run: Run) -> tuple[list[Process], list[Gpu]] | None:
    """Return the processes and GPUs of a run on all nodes; None if it is not running."""
    running = status.running(run)
    return processes.query(run, running) if running else None


def _show(processes: list[Process], gpus: list[Gpu]) -> None:
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
