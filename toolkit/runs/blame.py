"""Find which rank failed first, from the records of processes and the launcher's report. Pure.

Each record is classified by its errors (``error_records``), and the earliest one that no other rank
explains is the first failure. Clocks of nodes differ by milliseconds or more, which is why the
class counts before the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from toolkit import launchers
from toolkit.model.run import ErrorRecord, Failure, Report
from toolkit.runs.error_records import (
    SPAWN_ENDED,
    ErrorClass,
    details_of,
    exit_code,
    headline,
    is_starter,
    judge,
    place_of,
)
from toolkit.text import redacted

_TERMINATED = 128 + 15
_FATAL = frozenset(("exception", "exit", "child"))


def rank_of(report: Report, launcher: str) -> int | None:
    """Return the global rank of the process that wrote a record, or None."""
    if is_starter(report.program):
        return None
    if report.group_rank is not None:
        return report.group_rank
    return launchers.get(launcher).rank_of(report)


class Candidate(NamedTuple):
    """A record that may be the first failure: its class, the error that is shown, and its rank."""

    report: Report
    kind: ErrorClass
    error: ErrorRecord
    rank: int | None
    noun: str = "rank"

    @property
    def headline(self) -> str:
        """The error as one line."""
        return headline(self.report, self.error)


def first(launcher: str, reports: Sequence[Report], reported: Sequence[Failure]) -> Failure | None:
    """Return the first failure of a run, or None if no record tells more than the launcher.

    Args:
        launcher: name of the run's launcher.
        reports: records of failing processes.
        reported: failures that the launcher reports, in its order.
    """
    candidates = [
        _candidate(report, launcher)
        for report in launchers.get(launcher).of_last_start(reports, reported)
        if report.errors
    ]
    own = [candidate for candidate in candidates if candidate.kind is ErrorClass.OWN]
    fatal = [candidate for candidate in own if candidate.report.kind in _FATAL]
    if fatal:
        return _failure(
            _cause_within(min(fatal, key=_time), own), candidates, reported, _certainty(fatal)
        )
    silent = _without_record(candidates, reported)
    if silent is not None:
        return replace(silent, certainty="likely")
    for others, certainty in (
        (own, "likely"),
        (
            [candidate for candidate in candidates if candidate.kind is ErrorClass.UNCLEAR],
            "possible",
        ),
    ):
        if others:
            return _failure(min(others, key=_time), candidates, reported, certainty)
    return None


def _candidate(report: Report, launcher: str) -> Candidate:
    verdict = judge(report)
    return Candidate(
        report,
        verdict.kind,
        verdict.error,
        rank_of(report, launcher),
        launchers.get(launcher).task_noun,
    )


def _time(candidate: Candidate) -> int:
    return candidate.report.time_ns


def _cause_within(last: Candidate, own: Iterable[Candidate]) -> Candidate:
    """Return the earlier error of the same rank that made it exit.

    It happened in a thread, in a destructor, or in a process that the rank started.
    """
    is_bare = (
        last.report.kind == "exit" and not last.error.message and last.error.type == "SystemExit"
    )
    same = [
        candidate
        for candidate in own
        if (candidate.rank, candidate.report.host) == (last.rank, last.report.host)
        and _time(candidate) <= _time(last)
    ]
    return min(same, key=_time) if is_bare and same else last


def _certainty(fatal: Sequence[Candidate]) -> str:
    """Return ``certain`` if all errors are alike or of one rank; else clocks decide: ``likely``."""
    kinds = {(candidate.error.type, candidate.error.line) for candidate in fatal}
    ranks = {(candidate.rank, candidate.report.host) for candidate in fatal}
    return "certain" if len(kinds) == 1 or len(ranks) == 1 else "likely"


def _without_record(candidates: Sequence[Candidate], reported: Sequence[Failure]) -> Failure | None:
    """Return the first failure of a rank without a record: killed by a signal, or in native code.

    A rank whose record is a consequence did not fail first, and one that SIGTERM ended was stopped.
    """
    if not candidates:
        return None
    explained = {candidate.rank for candidate in candidates if candidate.rank is not None}
    return next(
        (
            failure
            for failure in reported
            if failure.exit_code != _TERMINATED
            and failure.rank is not None
            and failure.rank not in explained
        ),
        None,
    )


def _failure(
    first: Candidate, candidates: Sequence[Candidate], reported: Sequence[Failure], certainty: str
) -> Failure:
    report, error = first.report, first.error
    words = first.headline
    place = place_of(error)
    if words.endswith(f"({place})"):
        place = ""  # Python's message of a SyntaxError has it
    ended = SPAWN_ENDED.search(error.message) if error.type == "ProcessExitedException" else None
    if ended:
        place = ""  # where the parent waits for its processes
    launcher_code = next(
        (
            failure.exit_code
            for failure in reported
            if failure.rank == first.rank and first.rank is not None
        ),
        _TERMINATED,
    )
    who = f"{first.noun} {first.rank}" if first.rank is not None else "the script"
    alike = {
        candidate.rank
        for candidate in candidates
        if candidate.rank not in (None, first.rank) and candidate.headline == words
    }
    return Failure(
        exit_code=launcher_code
        if launcher_code != _TERMINATED
        else exit_code(ended) or report.code or 1,
        rank=first.rank,
        host=report.host,
        text=f"{who} on {report.host}: {words}" + (f" ({place})" if place else ""),
        kind="argparse" if report.argparse else report.kind,
        words=words,
        place=place,
        source="" if ended else redacted(error.source),
        details=details_of(report),
        certainty=certainty,
        alike=tuple(sorted(rank for rank in alike if rank is not None)),
    )
