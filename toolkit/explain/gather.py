"""Gather the evidence of a run or a log file, and the rules. The edge of explain."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from toolkit import config, runtimes
from toolkit.config import package_directory
from toolkit.errors import ConfigError
from toolkit.explain.match import Evidence, Rule, survived
from toolkit.files import open_regular, read_toml
from toolkit.launchers import torch
from toolkit.launchers.failures import of_step, summary_failures
from toolkit.model.run import Outcome, Plan
from toolkit.quoting import shell
from toolkit.runs import logs, records, stacks
from toolkit.runs.logs import Line, ends
from toolkit.runs.outcome import OVER_MEMORY
from toolkit.runs.run import Run

_MOST_TRACES = 100_000
# What a rank looks for, or creates, where it is shown no such directory.
_LOST = re.compile(
    r"(?:No such file or directory|Read-only file system): '(/[^']{1,400})'"
    r"|Parent directory (/\S{1,400}) does not exist"
    r"|(/[^\s:']{1,400})'?: No such file or directory"
)
# Directories that every image has of its own.
_OF_IMAGES = {
    *("bin", "boot", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "tmp", "usr")
}


def of_run(run: Run) -> Evidence:
    """Return the evidence in a run's directory; the caller has looked how the run came out.

    Raises:
        SlurmUnreachableError: it was never submitted.
    """
    plan, outcome = run.plan, run.outcome
    if outcome is not None and outcome.kind == "refused":
        job_id, printed = 0, []
    else:
        job_id = run.job_id
        printed = logs.excerpt(run, run.logs_of(job_id), logs.history(run))
    entries = entries_of(line for line in printed if not logs.is_noise(line.text))
    may_hang = outcome is None or outcome.kind in ("timeout", "cancelled")
    evidence = Evidence(
        entries,
        launcher=plan.launch.launcher,
        names=_names(run, plan, job_id) | {"unbound": _unbound(plan, entries)},
        stacks=(*(_stacks(run) if may_hang else ()), *_recorded(run)),
    )
    if outcome is None:
        return evidence
    if outcome.kind in ("apart", "refused"):  # what it is seen by is no line of a log
        evidence = evidence._replace(entries=(*entries, Line(outcome.message, "", None)))
    # A rank that fails because its node is gone is a consequence: the node comes first.
    failure = None if outcome.kind == "lost" else outcome.failure
    return evidence._replace(
        state=outcome.state,
        exit_code=outcome.exit_code,
        nodes_down=outcome.unhealthy,
        first_rank=failure.rank if failure else None,
        first_host=(failure.host or "") if failure else "",
        first_text=_first_text(outcome),
        failure=failure,
    )


def _stacks(run: Run) -> tuple[str, ...]:
    processes = records.latest(records.read(run), run.plan)
    stands = [stacks.standing(process, run.plan, {}) for process in processes]
    written = stacks.written(stands)
    rows = []
    if written:
        at = datetime.fromtimestamp(written).strftime("%Y-%m-%d %H:%M:%S")
        rows.append(f"at {at}: {stacks.summary(stacks.ranks_of(stands), run.plan)}")
    if ended := "" if run.outcome else records.ended_text(run):
        can_answer = stacks.can_answer(run.plan)
        rows.append(ended + (f": toolkit stacks {run.word}" if can_answer else ""))
    return tuple(rows)


def _recorded(run: Run) -> tuple[str, ...]:
    """Return which ranks NCCL's flight recorder left files of; they are pickles and not read."""
    files = islice(run.reports.glob(f"{torch.RECORDS}*"), _MOST_TRACES)
    names = (path.name.removeprefix(torch.RECORDS) for path in files)
    ranks = [int(name) for name in names if name.isascii() and name.isdecimal() and len(name) < 9]
    if not ranks:
        return ()
    directory = shell(os.path.relpath(run.reports))
    numbers = records.numbers_text(ranks)
    return (
        f"NCCL's flight recorder has the last collectives of ranks {numbers}: in the image, "
        f"torchfrtrace --prefix {torch.RECORDS} {directory}",
    )


def _first_text(outcome: Outcome) -> str:
    failure = outcome.failure
    if outcome.kind in ("apart", "lost", "timeout"):
        return outcome.message
    if failure and not failure.words and outcome.message.startswith(OVER_MEMORY):
        # Slurm kills all tasks of the step, and reports the first.
        return outcome.message.partition(";")[0]
    return failure.text if failure else ""


def _names(run: Run, plan: Plan, job_id: int) -> dict[str, str]:
    container = plan.container
    image = {"image": container.name} if runtimes.get(container.runtime).image else {}
    run_path = shell(os.path.relpath(run.directory))
    return {"run": run.word, "run_path": run_path, "job": str(job_id), **image}


def _unbound(plan: Plan, entries: Iterable[Line]) -> str:
    """Return a directory of this host that a rank looked for and is not shown; empty if none."""
    if not runtimes.get(plan.container.runtime).image:
        return ""
    shown = [Path(bind.target) for bind in plan.container.binds]
    for entry in entries:
        if "directory" not in entry.text and "Read-only" not in entry.text:
            continue
        lost = _LOST.search(entry.text)
        path = Path(lost[lost.lastindex or 0] if lost else "/")
        folder = path if os.path.isdir(path) else path.parent  # noqa: PTH112 - is_dir may raise
        is_of_host = len(folder.parts) > 1 and folder.parts[1] not in _OF_IMAGES
        is_there = is_of_host and os.path.isdir(folder)  # noqa: PTH112
        if is_there and not any(map(path.is_relative_to, shown)):
            return shell(str(folder))
    return ""


# The prefix of torch for each line of an exception once a rank belongs to a group.
_RAISED = re.compile(r"\[rank(?P<rank>\d{1,9})\]: ?(?P<text>.*)")


def entries_of(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Return lines without torch's prefix, which names their rank."""
    entries = []
    for line in lines:
        if raised := _RAISED.match(line.text):
            rank = int(raised["rank"]) if line.rank is None else line.rank
            line = line._replace(text=raised["text"], rank=rank)
        entries.append(line)
    return tuple(entries)


_LABELLED = re.compile(
    r"(?:(?P<rank>\d{1,9})|(?P<batch>batch)|(?P<host>[a-zA-Z](?=[\w.-]{0,253}\d)[\w.-]{0,253}))"
    r"[|:] ?(?P<text>.*)"
)
# Not "[0]:" alone, which begins an entry of torchrun's summary.
_TORCH = re.compile(r"\[(?:default)?(?P<rank>\d{1,9})\]:(?P<text>.+)")


def labelled(lines: Iterable[str]) -> tuple[Line, ...]:
    """Return lines as entries, with the labels of `toolkit logs`, srun and torchrun, or without."""
    return entries_of(_labelled(line) for line in lines)


def _labelled(line: str) -> Line:
    torch = _TORCH.match(line)
    if torch:
        return Line(torch["text"], "", int(torch["rank"]))
    label = _LABELLED.match(line)
    if not label:
        return Line(line, "", None)
    rank = int(label["rank"]) if label["rank"] else None
    return Line(label["text"], label["host"] or "", rank)


def of_lines(lines: Iterable[str]) -> Evidence:
    """Return the evidence in a log without a run, with the failed rank that its launcher reports.

    torchrun's summary comes before srun's message, in which a task may be an agent.
    """
    entries = labelled(lines)
    past = survived(entries)
    logs: dict[str, list[str]] = {}
    for position, entry in enumerate(entries):
        if position not in past:
            logs.setdefault(entry.label, []).append(entry.text)
    by_host = [("", texts) for texts in logs.values()]
    reported = summary_failures(by_host) or of_step(by_host, "task")
    if not reported:
        return Evidence(entries)
    rank, host, text = reported[0].rank, reported[0].host or "", reported[0].text
    return Evidence(entries, first_rank=rank, first_host=host, reported=text)


def of_file(path: Path) -> Evidence:
    """Return the evidence in a log file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with open_regular(path) as file:
            return of_lines(ends(file, logs.MOST))
    except OSError as error:
        raise ConfigError(
            f"the log cannot be read: {error.strerror}",
            place=str(path),
            next_step="toolkit explain RUN|LOGFILE",
        ) from None


def of_stream(stream: BinaryIO) -> Evidence:
    """Return the evidence in a log on standard input; both ends of a large one are searched."""
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(stream, copy)
        return of_lines(ends(copy, logs.MOST))


def rules() -> dict[str, Rule]:
    """Return every rule by its name: shipped ones, the machine's, and the user's own.

    A later one replaces one of the same name.

    Raises:
        ConfigError: a file is broken.
    """
    own = (config.machine_directory(), config.user_directory())
    directories = (package_directory("explain") / "rules", *(place / "explain" for place in own))
    files = {
        path.stem: path for directory in directories for path in sorted(directory.glob("*.toml"))
    }
    return {name: read_toml(path, Rule) for name, path in sorted(files.items())}
