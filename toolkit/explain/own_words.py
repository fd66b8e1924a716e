"""Explain a failure by the record that the first failing rank has written of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

from toolkit.explain.model import Certainty, Entry, Evidence, Match
from toolkit.launchers import LAUNCHERS
from toolkit.model.run import Failure

_LAST_LINES = (
    20  # of a rank that wrote no record: what it printed before belongs to what it survived
)
# Slurm's own words, also about a process of a rank: a worker of a data loader that takes too much
# ends its rank.
_OVER_MEMORY = re.compile(
    r"slurmstepd.{0,300}(?:exceeded memory limit|oom[-_ ]kill)", re.IGNORECASE
)
_RULES = {"exit": "exit-code", "argparse": "arguments"}


def entries(evidence: Evidence) -> tuple[Entry, ...]:
    """Return the lines that rules are matched with: the record of the first failing rank, or the last lines about it."""
    failure = evidence.failure
    if failure is None:
        return evidence.entries
    over_memory = tuple(entry for entry in evidence.entries if _OVER_MEMORY.search(entry.text))
    if failure.words and failure.kind not in ("exit", "argparse"):
        lines = ("Traceback (most recent call last):", *failure.details)
        return (
            *over_memory,
            *(
                Entry(text, failure.host or "", failure.rank, number)
                for number, text in enumerate(lines)
            ),
        )
    if failure.words:
        return over_memory
    own = [entry for entry in printed(evidence) if entry.rank is not None]
    about = [
        entry
        for entry in evidence.entries
        if entry.rank is None and entry.host in ("", failure.host)
    ]
    crash = next(
        (number for number, entry in enumerate(own) if entry.text.startswith("Fatal Python error")),
        len(own),
    )
    return (*over_memory, *own[max(0, crash - _LAST_LINES) :], *about)


def printed(evidence: Evidence) -> tuple[Entry, ...]:
    """Return the lines of the first failing rank; without numbers, those of its node."""
    own = tuple(
        entry
        for entry in evidence.entries
        if entry.rank is not None and entry.rank == evidence.first_rank
    )
    host = evidence.first_host
    without = (entry for entry in evidence.entries if entry.rank is None and entry.host == host)
    return own or (tuple(without) if host else ())


# A rank that an exception ends waits in MPI_Finalize for the others, which wait for it.
_HANGS = 'end the others as well: MPI.COMM_WORLD.Abort(1) in an except clause, or run it as "python -m mpi4py train.py"'


def match(failure: Failure, names: Mapping[str, str], evidence: Evidence) -> Match:
    """Return a cause in the words of the script itself."""
    rank = "" if failure.rank is None else f"--rank {failure.rank} "
    logs = f"toolkit logs {rank}{names['run']} shows "
    fixes = {
        "argparse": (
            "give the script only options that it has; everything after its name is its own",
        ),
        "exit": (f"{logs}what it printed before",),
    }
    launcher = LAUNCHERS.get(evidence.launcher or "")
    waits = launcher is not None and launcher.waits_for_failed
    hangs = evidence.state == "TIMEOUT" and waits
    place = f" ({failure.place})" if failure.place else ""
    return Match(
        rule=_RULES.get(failure.kind, "python-exception"),
        summary="the script raised an exception"
        if failure.kind not in _RULES
        else "the script ended itself",
        cause=f"{failure.words}{place}",
        fix=(
            *((_HANGS,) if hangs else ()),
            *fixes.get(failure.kind, (f"{logs}the whole traceback",)),
        ),
        source="a record that the rank has written",
        sure=cast(Certainty, failure.certainty or "likely"),
        role="cause",
        weight=0,
        rank=failure.rank,
        host=failure.host or "",
        line=failure.words,
        ranks=tuple(sorted({*failure.alike, *(() if failure.rank is None else (failure.rank,))})),
    )


def silent(failure: Failure, names: Mapping[str, str]) -> Match:
    """Return a cause for a rank that failed without a word: the others tell consequences."""
    rank = "" if failure.rank is None else f"--rank {failure.rank} "
    signal = failure.exit_code - 128
    how = f"ended with exit code {failure.exit_code}"
    by = "os._exit(), native code, or a program that is not Python"
    if signal > 0:
        how, by = f"was killed by signal {signal}", "another process, or the system"
    who = failure.text.partition(":")[0] or "a rank"
    return Match(
        rule="exit-code",
        summary="a rank ended without an error of Python",
        cause=f"{who} {how}, without an error of Python: {by}",
        fix=(f"toolkit logs {rank}{names['run']} shows what it printed last",),
        source="the ranks' records: the others failed because of it",
        sure=cast(Certainty, failure.certainty or "likely"),
        role="cause",
        weight=0,
        rank=failure.rank,
        host=failure.host or "",
        line="",
        ranks=(),
    )
