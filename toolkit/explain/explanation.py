"""Explain a failure: choose the cause among the rules that match, and format it. Pure.

If the first failing rank is known, its own record or its last lines decide, and the lines of other
ranks are consequences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import groupby, islice
from typing import cast

from msgspec.structs import replace

from toolkit.explain.match import (
    GENERAL,
    Certainty,
    Evidence,
    Explanation,
    Hit,
    Match,
    Rule,
    find,
    fixes,
    is_plain,
    matches,
    placeholders,
    positions_of,
    source_of,
    survived,
)
from toolkit.model.run import Failure
from toolkit.runs.logs import Line
from toolkit.runs.outcome import is_over_memory
from toolkit.text import redacted
from toolkit.units import counted, signal_of

_SUSPICIOUS = re.compile(
    r"error|exception|traceback|fatal|abort|killed|segmentation|cannot|can't|could not|failed"
    r"|failure|denied|refused|no such|not found|panic",
    re.IGNORECASE,
)
_HARMLESS = re.compile(
    r"warning|0 errors|no errors?\b|error(?:_|-)?rate|errors?[=:] ?0\b", re.IGNORECASE
)
_RUNTIME = re.compile(r"INFO: {1,4}|WARNING: |slurmstepd|srun: ")  # printed around a program
_ENDED = re.compile(
    r"^srun: error: |Exited with exit code [1-9]|ChildFailedError"
    r"|Root Cause \(first observed failure\)"
    r"|exited on\s{1,4}signal|non-zero exit code"
    r"|MPI_ABORT was invoked|^mpirun noticed|Job step aborted|Force Terminated"
)
_ERROR = re.compile(
    r"^(?:\w+\.){0,9}\w*(?:Error|Exception|Failure)(?::|$)"
    r"|^\W{0,4}(?:[\w.-]{1,40}: ){0,3}(?:fatal|error|abort|panic)\b"
    r"|Traceback \(most recent call last\)|core dumped|segmentation fault"
    r"|\bkilled$|\bfailed\W{0,3}$"
    r"|command not found"
    r"|Fatal Python error|^slurmstepd: error:",
    re.IGNORECASE,
)
_WARNING = re.compile(
    r"^\W{0,3}(?:\w{1,10}\]:)?\W?W\d{4} |^\[W |\bWARN|[Ww]arning|\(ignored\)|NCCL INFO"
    r"|^Exception ignored in"
)
_OF_FIRST_RANK = 5  # added to the weight of a line of the rank that failed first
_MOST_RANKS, _LINES_EACH = 8, 2
# Characters at the beginning and at the end of a longer line that are searched and shown. A cause
# is at the beginning of a line, or after the output of a progress bar or a dump of numbers. The
# time of a search is linear, but a line can be megabytes long.
_BEGIN, _END = 3072, 1024
_CUT = " [...] "
# The last lines of a rank that wrote no record; earlier ones belong to errors that it survived.
_LAST_LINES = 20
_RULES = {"exit": "exit-code", "argparse": "arguments"}
NO_FAILURE = "no failure found"
_CERTAINTIES: tuple[Certainty, ...] = ("certain", "likely", "possible")


def explain(evidence: Evidence, rules: Mapping[str, Rule]) -> Explanation:
    """Return what happened first, its cause and the fix, by the rules.

    The middle of a line of more than 4,096 characters is not searched.
    """
    evidence = evidence._replace(entries=tuple(map(_shortened, evidence.entries)))
    searched = _searched(evidence, len(rules))
    hits = find(evidence.entries, rules)
    if _is_healthy(evidence, rules, hits):
        return Explanation(first=NO_FAILURE, match=None, searched=searched, stacks=evidence.stacks)
    ranked = _of_first_rank(evidence, rules) or sorted(
        matches(evidence, rules, hits), key=lambda match: _order(match, evidence)
    )
    best = ranked[0] if ranked else None
    has_cause = best is not None and best.role == "cause"
    first = _first(evidence, best)
    return Explanation(
        first=first,
        match=best,
        reported="" if first == evidence.reported else evidence.reported,
        source=evidence.failure.source if evidence.failure else "",
        suspicious=() if has_cause else tuple(_suspicious(evidence)),
        last="" if has_cause else _last(evidence),
        searched=searched,
        stacks=evidence.stacks,
        every_line=f"toolkit logs --raw {evidence.names['run']}" if "run" in evidence.names else "",
    )


def _is_healthy(
    evidence: Evidence, rules: Mapping[str, Rule], hits: Mapping[str, list[Hit]]
) -> bool:
    """Return whether a log of which only the lines are known shows no failure.

    A log whose errors are all survived shows none, unless Slurm, a launcher or MPI reports one.
    Lines of consequences may be warnings, which healthy runs print at their end.
    """
    if evidence.state or evidence.nodes_down or evidence.failure:
        return False
    past = survived(evidence.entries)
    causes, consequences = (positions_of(role, hits, rules) for role in ("cause", "consequence"))
    for position, entry in enumerate(evidence.entries):
        if position in past:
            continue
        if position in causes or _ENDED.search(entry.text):
            return False
        is_error = position in consequences or _ERROR.search(entry.text)
        if is_error and not _WARNING.search(entry.text):
            return False
    return True


def _of_first_rank(evidence: Evidence, rules: Mapping[str, Rule]) -> list[Match]:
    """Return the causes in the record or the lines of the rank that failed first, the best first.

    Lines of other ranks are consequences then, and earlier lines of the rank itself are errors that
    it survived. The list is empty if that rank is not known.
    """
    failure = evidence.failure
    if failure is None or not (failure.words or failure.certainty):
        return []
    causes = {name: rule for name, rule in rules.items() if rule.role == "cause"}
    own = evidence._replace(entries=_own_entries(evidence, failure), nodes_down={})
    ranked = sorted(matches(own, causes), key=lambda match: -match.weight)
    if not failure.words:
        shared = {name: rule for name, rule in causes.items() if rule.any_rank}
        causes_shown = ranked or list(matches(evidence, shared))
        return causes_shown or [_recorded(failure, evidence, rules)]
    special = [
        match
        for match in ranked
        if match.weight >= GENERAL and (match.line or evidence.state == "OUT_OF_MEMORY")
    ]
    if not special and failure.kind != "argparse":
        early = {name: rule for name, rule in causes.items() if rule.early}
        printed = matches(evidence._replace(entries=_printed(evidence)), early)
        special = sorted(printed, key=lambda match: -match.weight)
    certainty = min((failure.certainty or "likely"), "likely", key=_CERTAINTIES.index)
    special = [
        replace(match, sure=max(match.sure, certainty, key=_CERTAINTIES.index)) for match in special
    ]
    return [*special, _recorded(failure, evidence, rules)]


def _own_entries(evidence: Evidence, failure: Failure) -> tuple[Line, ...]:
    """Return the record of the first failing rank as entries, or the last lines about it."""
    over_memory = tuple(entry for entry in evidence.entries if is_over_memory(entry.text))
    if failure.words and failure.kind not in _RULES:
        lines = ("Traceback (most recent call last):", failure.source, *failure.details)
        record = (Line(text, failure.host or "", failure.rank) for text in lines)
        return (*over_memory, *record)
    if failure.kind == "exit":
        return over_memory
    printed = _printed(evidence)
    if failure.kind == "argparse":
        return tuple([entry for entry in printed if ": error: " in entry.text][-1:])
    own = [entry for entry in printed if entry.rank is not None]
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


def _printed(evidence: Evidence) -> tuple[Line, ...]:
    """Return the lines of the first failing rank; if lines have no ranks, those of its node."""
    rank, host = evidence.first_rank, evidence.first_host
    own = tuple(entry for entry in evidence.entries if rank is not None and entry.rank == rank)
    without = (entry for entry in evidence.entries if entry.rank is None and entry.host == host)
    return own or (tuple(without) if host else ())


def _recorded(failure: Failure, evidence: Evidence, rules: Mapping[str, Rule]) -> Match:
    """Return a cause in the words of the script itself, or of a rank that failed without any."""
    name = _RULES.get(failure.kind, "python-exception") if failure.words else "exit-code"
    rule = rules[name]
    fix = fixes(rule, evidence, placeholders(evidence))
    if failure.words:
        cause = failure.words + (f" ({failure.place})" if failure.place else "")
        source = "a record that the rank has written"
    else:
        how = f"ended with exit code {failure.exit_code}"
        by = "os._exit(), native code, or a program that is not Python"
        if signal := signal_of(failure.exit_code):
            how, by = f"was killed by signal {signal}", "another process, or the system"
        who = failure.text.partition(":")[0] or "a rank"
        cause = f"{who} {how}, without an error of Python: {by}"
        source = "the ranks' records: the others failed because of it"
    ranks = {*failure.alike, failure.rank} if failure.words else set()
    return Match(
        rule=name,
        cause=cause,
        fix=fix,
        source=source,
        sure=cast(Certainty, failure.certainty or "likely"),
        role="cause",
        weight=0,
        rank=failure.rank,
        host=failure.host or "",
        line=failure.words,
        ranks=tuple(sorted(rank for rank in ranks if rank is not None)),
    )


def _shortened(entry: Line) -> Line:
    text = entry.text
    is_short = len(text) <= _BEGIN + _END
    return entry if is_short else entry._replace(text=text[:_BEGIN] + _CUT + text[-_END:])


def _order(match: Match, evidence: Evidence) -> tuple[bool, int]:
    """Return the sort key of a match: causes before consequences, then by weight.

    A line of the rank that failed first counts for a little more.
    """
    own = evidence.first_rank is not None and match.rank == evidence.first_rank
    return (match.role != "cause", -(match.weight + (_OF_FIRST_RANK if own else 0)))


def _first(evidence: Evidence, best: Match | None) -> str:
    if evidence.first_text:
        return evidence.first_text
    if evidence.nodes_down:
        down = sorted(evidence.nodes_down.items())
        return "; ".join(f"node {name} is {text}" for name, text in down)
    if evidence.reported and (best is None or best.role != "cause"):
        return evidence.reported
    if best and best.line:
        if is_plain(evidence):
            return best.line
        return f"{source_of(best.rank, best.host)}: {best.line}"
    return f"Slurm reports {evidence.state}" if evidence.state else "not known"


def _last(evidence: Evidence) -> str:
    """Return the last line of the rank that failed first, if no more is known of its failure."""
    own = [entry.text.strip() for entry in _printed(evidence) if entry.rank is not None]
    text = next((text for text in reversed(own) if text and not _RUNTIME.match(text)), "")
    return redacted(f"{evidence.first_rank}| {text}") if text else ""


def _suspicious(evidence: Evidence) -> Iterator[str]:
    """Yield the earliest lines that look like errors, a few for each of the first ranks.

    The lines of the rank that failed first come first.
    """
    lines = [
        entry
        for entry in evidence.entries
        if _SUSPICIOUS.search(entry.text) and not _HARMLESS.search(entry.text)
    ]
    lines.sort(  # so that those of a label are together
        key=lambda line: (
            line.rank != evidence.first_rank,
            line.rank is None,
            line.rank or 0,
            line.label,
        )
    )
    for _, own in islice(groupby(lines, lambda line: line.label), _MOST_RANKS):
        for line in islice(own, _LINES_EACH):
            begin = "" if is_plain(evidence) else f"{line.label}| "
            yield begin + redacted(line.text.rstrip())


def _searched(evidence: Evidence, rules: int) -> str:
    logs = counted(len({entry.label for entry in evidence.entries}), "log")
    lines = f"{counted(len(evidence.entries), 'line')} in {logs}"
    state = f"; Slurm's state {evidence.state}" if evidence.state else ""
    return f"{lines} with {counted(rules, 'rule')}{state}"
