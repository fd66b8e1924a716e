"""Gather the evidence of a run or a log file, and the rules. The edge of explain."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from toolkit import config, runtimes
from toolkit.config import package_directory
from toolkit.errors import ConfigError
from toolkit.explain.entries import entries_of, evidence_of, labelled
from toolkit.explain.model import Entry, Evidence, Rule
from toolkit.files import open_regular, read_toml
from toolkit.launchers import torch
from toolkit.model.plan import Plan
from toolkit.model.run import Outcome
from toolkit.module_search import is_below, is_directory
from toolkit.quoting import shell
from toolkit.runs import excerpt, logs, records, standings
from toolkit.runs.logs import ends
from toolkit.runs.outcome import OVER_MEMORY
from toolkit.runs.run import Run

_MAY_HANG = ("timeout", "cancelled")
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
    if run.outcome is not None and run.outcome.kind == "refused":
        job_id, printed = 0, []
    else:
        job_id = run.job_id
        printed = excerpt.of_run(run).lines
    entries = entries_of(
        (line.text, line.host, line.rank) for line in printed if not logs.is_noise(line.text)
    )
    plan, outcome = run.plan, run.outcome
    evidence = Evidence(
        entries,
        launcher=plan.launch.launcher,
        forced=_forced(plan),
        names=_names(run, plan, job_id) | {"unbound": _unbound(plan, entries)},
    )
    if outcome is None or outcome.kind in _MAY_HANG:
        stacks = (*_stacks(run), *_recorded(run))
        evidence = evidence._replace(stacks=stacks)
    elif outcome.kind != "ok":
        evidence = evidence._replace(stacks=_recorded(run))
    if outcome is None:
        return evidence
    if outcome.kind in ("apart", "refused"):  # what it is seen by is no line of a log
        evidence = evidence._replace(entries=(*entries, Entry(outcome.message, "", None, 0)))
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
        unrecorded=run.is_own and not run.has_ended,
    )


def _stacks(run: Run) -> tuple[str, ...]:
    """Return where each rank was when it was asked last, and which ranks have ended long ago."""
    processes = records.latest(records.read(run), run.plan)
    stands = standings.standings(processes, run.plan, {})
    written = standings.written(stands)
    at = datetime.fromtimestamp(written).strftime("%Y-%m-%d %H:%M:%S")
    summary = standings.summary(standings.ranks_of(stands), run.plan)
    ended = "" if run.outcome else standings.ended_text(run)
    where = f": toolkit stacks {run.word}" if standings.can_answer(run.plan) else ""
    return (
        *((f"at {at}: {summary}",) if written else ()),
        *((f"{ended}{where}",) if ended else ()),
    )


def _recorded(run: Run) -> tuple[str, ...]:
    """Return which ranks NCCL's flight recorder left files of; they are pickles and not read."""
    names = (path.name.removeprefix(torch.RECORDS) for path in _traces(run))
    ranks = [int(name) for name in names if name.isascii() and name.isdecimal() and len(name) < 9]
    if not ranks:
        return ()
    directory = shell(os.path.relpath(run.reports))
    numbers = standings.numbers_text(ranks)
    return (
        f"NCCL's flight recorder has the last collectives of ranks {numbers}: in the image, "
        f"torchfrtrace --prefix {torch.RECORDS} {directory}",
    )


def _traces(run: Run) -> Iterator[Path]:
    return islice(run.reports.glob(f"{torch.RECORDS}*"), _MOST_TRACES)


def _first_text(outcome: Outcome) -> str:
    failure = outcome.failure
    if outcome.kind == "apart":
        return outcome.message
    if outcome.kind in ("lost", "timeout"):
        return outcome.message
    if failure and not failure.words and outcome.message.startswith(OVER_MEMORY):
        # Slurm kills all tasks of the step, and reports the first.
        return outcome.message.partition(";")[0]
    return failure.text if failure else ""


def _names(run: Run, plan: Plan, job_id: int) -> dict[str, str]:
    """Return the values of the placeholders in fixes."""
    container = plan.container
    image = {"image": container.name} if runtimes.get(container.runtime).image else {}
    run_path = shell(os.path.relpath(run.directory))
    return {"run": run.word, "run_path": run_path, "job": str(job_id), **image}


def _unbound(plan: Plan, entries: Iterable[Entry]) -> str:
    """Return a directory of this host that a rank looked for and is not shown; empty if none."""
    if not runtimes.get(plan.container.runtime).image:
        return ""
    shown = [Path(bind.target) for bind in plan.container.binds]
    for entry in entries:
        if "directory" not in entry.text and "Read-only" not in entry.text:
            continue
        lost = _LOST.search(entry.text)
        path = Path(lost[lost.lastindex or 0] if lost else "/")
        folder = path if is_directory(path) else path.parent
        is_of_host = len(folder.parts) > 1 and folder.parts[1] not in _OF_IMAGES
        if is_of_host and is_directory(folder) and not is_below(path, shown):
            return shell(str(folder))
    return ""


def _forced(plan: Plan) -> tuple[str, ...]:
    return (*plan.forced.findings, f"because: {plan.forced.reason}") if plan.forced else ()


def of_file(path: Path) -> Evidence:
    """Return the evidence in a log file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with open_regular(path) as file:
            return evidence_of(labelled(ends(file, excerpt.MOST)))
    except OSError as error:
        raise ConfigError(
            f"the log cannot be read: {error.strerror}",
            place=str(path),
            next_step="toolkit explain RUN|LOGFILE",
        ) from None


def of_stream(stream: BinaryIO) -> Evidence:
    """Return the evidence in a log on standard input; both ends of a large one are read."""
    import shutil
    import tempfile

    with tempfile.NamedTemporaryFile() as copy:
        shutil.copyfileobj(stream, copy)
        copy.flush()
        return of_file(Path(copy.name))


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
