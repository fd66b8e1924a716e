"""`toolkit bench coverage`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from toolkit.bench.coverage import Coverage, Measured, Row

CLUSTER = "coverage"
_UP = ("cluster", "up", "--name", CLUSTER, "--nodes", "2", "--gpus-per-node", "4")
_DOWN = ("cluster", "down", "--name", CLUSTER)
_PATIENCE = 1800.0  # seconds for one command


@click.command("coverage")
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@click.option(
    "--write",
    is_flag=True,
    help="Keep what was measured in jobs/measured.json; the README's table is made of it.",
)
@click.option("--dry-run", is_flag=True, help="Print the commands.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(
    context: click.Context, patterns: tuple[str, ...], write: bool, dry_run: bool, as_json: bool
) -> None:
    """Run every command that takes the place of a step in the guides that people follow, on a local cluster of 2 nodes.

    PATTERN: only commands that have this in them. A command counts where it ends with 0 and its output says what it must; ends with 1 where
    one does not.

    \b
    Examples:
      toolkit bench coverage --dry-run
      toolkit bench coverage jobs/digits-horovod
      toolkit bench coverage --write
    """
    from toolkit.cli import console

    coverage, known = read()
    rows = {
        name: row
        for name, row in coverage.commands.items()
        if not patterns or any(one in name for one in patterns)
    }
    if dry_run:
        for name in rows:
            console.out(f"toolkit {name}")
        return
    wrong: dict[str, str] = {}
    os.environ["TOOLKIT_CLUSTER"] = CLUSTER
    _call(_UP)
    try:
        for name, row in rows.items():
            measured, complaint = _run(row)
            # A success of the past is no result of a command that fails now.
            known.pop(name, None)
            if complaint:
                wrong[name] = complaint
            else:
                known[name] = measured
            _keep(
                {name: one for name, one in known.items() if name in coverage.commands},
                write=write,
            )
    finally:
        _call(_DOWN)
    _show({name: known[name] for name in rows if name not in wrong}, wrong, as_json)
    context.exit(1 if wrong else 0)


def read() -> tuple[Coverage, dict[str, Measured]]:
    """The rows, and what is known of them."""
    from toolkit.bench.coverage import Coverage, Measures
    from toolkit.files import read_json, read_toml
    from toolkit.resources import shipped

    path = shipped("jobs") / "measured.json"
    kept = read_json(path, Measures) if path.exists() else Measures()
    return read_toml(shipped("jobs") / "coverage.toml", Coverage), dict(kept.commands)


def _call(words: tuple[str, ...]) -> tuple[int, str, float]:
    """A command of ours in a process of its own: its exit code, what it said, and how many seconds it took."""
    import subprocess
    import sys
    import time

    began = time.monotonic()
    argv = [sys.executable, "-m", "toolkit", *words]
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=_PATIENCE,
    )
    return done.returncode, done.stdout, time.monotonic() - began


def _run(row: Row) -> tuple[Measured, str]:
    import shlex
    from datetime import datetime, timezone

    from toolkit.bench.coverage import Measured, judged
    from toolkit.cli import console

    for before in row.before:
        code, said, _ = _call(tuple(shlex.split(before)))
        if code != 0:
            return Measured(
                seconds=0
            ), f"before it, toolkit {before} ended with {code}: {said[-500:]}"
    with console.Steps() as steps:
        steps.begin("run", f"toolkit {row.command}")
        code, said, seconds = _call(tuple(shlex.split(row.command)))
        result, wrong = judged(row, code, said)
        steps.end("failed" if wrong else "done")
        if wrong:
            steps.say("wrong", f"{wrong}: {said[-1500:]}")
    machine = f"{os.cpu_count()} CPU cores, no GPU"
    now = datetime.now(timezone.utc).date().isoformat()
    return Measured(seconds=round(seconds, 1), result=result, when=now, machine=machine), wrong


def _keep(known: Mapping[str, Measured], *, write: bool) -> None:
    """After each command, so that what was measured is not lost when a later one is stopped."""
    from toolkit.bench.coverage import Measures
    from toolkit.files import write_atomically
    from toolkit.model.base import to_json
    from toolkit.resources import shipped

    if write:
        write_atomically(shipped("jobs") / "measured.json", to_json(Measures(commands=dict(known))))


def _show(measured: Mapping[str, Measured], wrong: Mapping[str, str], as_json: bool) -> None:
    from toolkit.cli import console

    if as_json:
        import msgspec

        console.out_json({"measured": msgspec.to_builtins(dict(measured)), "wrong": dict(wrong)})
        return
    rows = [
        (f"toolkit {name}", f"{one.seconds:.0f} s", ", ".join(map(" ".join, one.result.items())))
        for name, one in measured.items()
    ]
    rows += [(f"toolkit {name}", "failed", said) for name, said in wrong.items()]
    console.out(console.table(("COMMAND", "TIME", "RESULT"), rows))
