"""Match the rules with the lines of a failed run, its evidence. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from toolkit.model.base import BadDataError, Model
from toolkit.model.run import Failure
from toolkit.runs.logs import Line
from toolkit.text import redacted

Certainty = Literal["certain", "likely", "possible"]

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
# slurmstepd reports about a step on its node; the task whose log has the report is arbitrary.
_DAEMON = re.compile(r"slurmstepd-(?P<host>[\w.-]+): error: ")
_FOREIGN = re.compile(r"/(?:site|dist)-packages/|/lib/python3|<frozen |/__autograph_generated_file")
_GROUP = re.compile(r"\{(\w+)\}")
# Rules of less weight match any exception, also those of ranks whose peer is lost.
GENERAL = 40
_SURVIVED = 100  # subtracted from the weight of a line after which its log goes on normally
_FRAMES_BACK = 200
_GOES_ON = 4  # lines of normal output after an error that was survived
# A test that passed, or failed as its author expects, may be named after any failure.
_EXPECTED = (
    r"\.py::.{1,300} (?:PASSED|XFAIL|XPASS|SKIPPED)\b"
    r"|\.\.\. (?:ok|expected failure|skipped)\b"
)
_INFORMATION = re.compile(rf"NCCL INFO|\(ignored\)|{_EXPECTED}")
_NORMAL = re.compile(r"^\S.*\w")
_ALARMING = re.compile(
    r"error|exception|traceback|fatal|abort|kill|cannot|can't|could not|fail|denied|refused"
    r"|signal|-----|=====",
    re.IGNORECASE,
)


class Rule(Model, frozen=True, kw_only=True):
    """A cause of failures: ``explain/rules/<name>.toml``.

    Attributes:
        summary: what happened, in a few words.
        cause: the same as a sentence; ``{name}`` is replaced by a group of the matching signature.
        fix: what to do about it, the best first; groups are replaced as well.
        source: the documentation or report that it is based on.
        signatures: regular expressions; a line that one of them matches shows the cause.
        words: in small letters; a line that a signature matches has one of them, so that others
            need not be tried. Empty: all lines are.
        also: each of these must match some line of the log.
        without: none of these may match any line of the log.
        states: Slurm's final states that the rule is for; empty: any.
        exit_codes: of the run, that the rule is for; empty: any.
        nodes_down: the rule is for runs with a node that is down.
        early: a rank prints it as a warning, goes on, and fails later with another error.
        any_rank: one rank prints it for all, such as the result of a training.
        weight: the matching rule with most weight is the cause: 10 for a general rule, 90 for a
            message that no other failure prints.
        role: a ``consequence`` is what other ranks print when a rank is lost; it is only named if
            no cause is found.
        sure: the confidence in the cause when the rule matches.
        examples: logs that it must recognize. ``origin`` is ``captured`` on the local cluster,
            ``published`` at ``url``, or ``composed`` by hand, as the rule's source documents it;
            ``log`` has lines as `toolkit logs` prints them; further keys are of ``Evidence``.
    """

    summary: str
    cause: str
    fix: tuple[str, ...]
    source: str
    signatures: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    exit_codes: tuple[int, ...] = ()
    nodes_down: bool = False
    early: bool = False
    any_rank: bool = False
    weight: int = 50
    role: Literal["cause", "consequence"] = "cause"
    sure: Certainty = "likely"
    examples: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        for pattern in (*self.signatures, *self.also, *self.without):
            try:
                compiled(pattern)
            except re.error as error:
                raise BadDataError(
                    f"{pattern!r} is not a regular expression: {error}", "signatures"
                ) from None
        facts = self.states or self.nodes_down or self.exit_codes
        if not (self.signatures or facts):
            raise ValueError("a rule needs a signature or a condition")


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> re.Pattern[str]:
    """Return a signature, compiled once."""
    return re.compile(pattern)


class Evidence(NamedTuple):
    """The facts that a failure is explained from.

    Attributes:
        entries: every line of every log, each log's in order.
        state: Slurm's final state; empty if unknown, as of a pasted log.
        exit_code: of the run; None if unknown.
        launcher: of the run; empty if unknown.
        nodes_down: unhealthy nodes of the job, and their states in Slurm.
        first_rank, first_host: the rank that failed first; None and "" if unknown.
        first_text: the first failure as text.
        reported: the rank that failed first according to its launcher, in a log without a run.
        failure: the first failing rank by its record or its launcher; None if only lines tell.
        names: values of placeholders in fixes: ``run``, ``image``, ``job``.
        stacks: where each rank was when it was asked, and what NCCL left.
    """

    entries: tuple[Line, ...]
    state: str = ""
    exit_code: int | None = None
    launcher: str = ""
    nodes_down: dict[str, str] = {}
    first_rank: int | None = None
    first_host: str = ""
    first_text: str = ""
    reported: str = ""
    failure: Failure | None = None
    names: dict[str, str] = {}
    stacks: tuple[str, ...] = ()


class Match(Model, frozen=True, kw_only=True):
    """A rule that matches.

    Attributes:
        rule: its name.
        rank, host: of the line that shows it; None and "" without a line.
        line: that line.
        ranks: every rank that printed such a line.
        cause, fix: with the groups of the line filled in.
    """

    rule: str
    cause: str
    fix: tuple[str, ...]
    source: str
    sure: Certainty
    role: str
    weight: int
    rank: int | None = None
    host: str = ""
    line: str = ""
    ranks: tuple[int, ...] = ()


class Explanation(Model, frozen=True, kw_only=True):
    """The explanation of a failure.

    Attributes:
        first: what happened first, on which rank and node.
        reported: the rank that its launcher reports as the first to fail, if ``first`` does not
            name it.
        source: the line of the user's code at which it happened; empty if unknown.
        match: the cause; None if no rule matches.
        suspicious: the earliest lines of each rank that look like errors, if no cause is known.
        searched: what was read.
        last: the last line of the rank that failed first, if only its exit code is known.
        every_line: the command that shows every line; empty for a pasted log.
        stacks: where each rank was when it was asked, and what NCCL left.
    """

    first: str
    match: Match | None
    reported: str = ""
    source: str = ""
    suspicious: tuple[str, ...] = ()
    searched: str = ""
    last: str = ""
    every_line: str = ""
    stacks: tuple[str, ...] = ()


class Hit(NamedTuple):
    """A line that a signature matches, and the signature's groups.

    ``position`` counts all lines, and ``number`` those of the line's own log.
    """

    position: int
    number: int
    entry: Line
    groups: dict[str, str]


def find(entries: Sequence[Line], rules: Mapping[str, Rule]) -> dict[str, list[Hit]]:
    """Return the lines that each rule's signatures match.

    Thousands of ranks print hundreds of thousands of lines, many of them equal. Each text is
    examined once, and only if it has one of a rule's words, which are found a hundred times faster
    than a regular expression.
    """
    positions: dict[str, list[tuple[int, int]]] = {}
    counts = Counter[str]()
    for position, entry in enumerate(entries):
        positions.setdefault(entry.text, []).append((position, counts[entry.label]))
        counts[entry.label] += 1
    lowered = {text: text.lower() for text in positions}
    joined = "\n".join(lowered.values())
    hits = {}
    for name, rule in rules.items():
        words = [word for word in rule.words if word in joined]
        texts = {text for word in words for text, low in lowered.items() if word in low}
        shown = []
        for text in texts if rule.words else positions:
            matches = (compiled(pattern).search(text) for pattern in rule.signatures)
            if match := next(filter(None, matches), None):
                groups = {group: value or "" for group, value in match.groupdict().items()}
                shown += [Hit(at, number, entries[at], groups) for at, number in positions[text]]
        hits[name] = sorted(shown, key=lambda hit: hit.position)
    return hits


def survived(entries: Sequence[Line]) -> frozenset[int]:
    """Return the positions of the lines after which their own log goes on normally.

    Healthy programs print errors, too: they retry, take another port or a smaller batch, and go on.
    """
    normal_after: dict[str, int] = {}
    positions = []
    for position in reversed(range(len(entries))):
        entry = entries[position]
        after = normal_after.get(entry.label, 0)
        if after >= _GOES_ON or _INFORMATION.search(entry.text):
            positions.append(position)
        elif _NORMAL.match(entry.text) and not _ALARMING.search(entry.text):
            normal_after[entry.label] = after + 1
    return frozenset(positions)


def positions_of(
    role: str, hits: Mapping[str, Sequence[Hit]], rules: Mapping[str, Rule]
) -> frozenset[int]:
    """Return the positions of the lines that match a rule of this role."""
    return frozenset(
        hit.position for name, lines in hits.items() if rules[name].role == role for hit in lines
    )


def matches(
    evidence: Evidence,
    rules: Mapping[str, Rule],
    hits: Mapping[str, Sequence[Hit]] | None = None,
) -> Iterator[Match]:
    """Yield a match for each rule that applies; ``hits`` is what ``find`` returns for them."""
    hits = find(evidence.entries, rules) if hits is None else hits
    # Lines that only report the loss of another rank.
    consequences = positions_of("consequence", hits, rules)
    past = frozenset[int]() if evidence.state else survived(evidence.entries)
    for name, rule in rules.items():
        is_general = rule.role == "cause" and rule.weight < GENERAL
        shown = [hit for hit in hits[name] if not (is_general and hit.position in consequences)]
        if (rule.signatures and not shown) or not _holds(rule, evidence):
            continue
        present = [hit for hit in shown if hit.position not in past]
        is_past = bool(shown) and not present
        shown = present or shown
        # The code in a traceback is indented; the message of an exception comes before it.
        shown = [hit for hit in shown if not hit.entry.text[:1].isspace()] or shown
        yield _match(name, rule, evidence, shown, is_past=is_past)


def _match(
    name: str, rule: Rule, evidence: Evidence, hits: Sequence[Hit], *, is_past: bool
) -> Match:
    # The line of the rank that failed first, else the earliest in its own log; one that fills more
    # of the groups comes before one that fills fewer.
    first = evidence.first_rank
    own = [hit for hit in hits if first is not None and hit.entry.rank == first]
    best = min(
        own or hits,
        key=lambda hit: (list(hit.groups.values()).count(""), hit.number),
        default=None,
    )
    entry = best.entry if best else None
    daemon = _DAEMON.match(entry.text) if entry else None
    groups = {**placeholders(evidence, entry), "node": ",".join(sorted(evidence.nodes_down))}
    if best:
        groups |= {
            "place": _place(evidence.entries, best.position),
            **{group: text for group, text in best.groups.items() if text or group != "node"},
            "where": _where(evidence, best),
        }
    ranks = {hit.entry.rank for hit in hits if not _DAEMON.match(hit.entry.text)}
    return Match(
        rule=name,
        cause=redacted(filled(rule.cause, groups)),
        fix=fixes(rule, evidence, groups),
        source=rule.source,
        sure="possible" if is_past else rule.sure,
        role=rule.role,
        weight=rule.weight - (_SURVIVED if is_past else 0),
        rank=entry.rank if entry and not daemon else None,
        host=daemon["host"] if daemon else entry.host if entry else "",
        line=redacted(entry.text.strip()) if entry else "",
        ranks=tuple(sorted(rank for rank in ranks if rank is not None)),
    )


def fixes(rule: Rule, evidence: Evidence, groups: Mapping[str, str]) -> tuple[str, ...]:
    """Return the fixes of a rule that fit the run: one without an image has none to look into."""
    without = "run" in evidence.names and "image" not in evidence.names
    texts = [text for text in rule.fix if not (without and "{image}" in text)]
    return tuple(filter(None, (redacted(filled(text, groups)) for text in texts)))


def _holds(rule: Rule, evidence: Evidence) -> bool:
    """Return whether the conditions of a rule hold.

    A fact that is unknown, as of a pasted log, does not rule out a rule that has signatures.
    """
    facts: tuple[tuple[Collection[str | int], str | int | None], ...] = (
        (rule.states, evidence.state or None),
        (rule.exit_codes, evidence.exit_code),
    )
    for allowed, value in facts:
        if allowed and value not in allowed and (value is not None or not rule.signatures):
            return False
    if rule.nodes_down and not evidence.nodes_down and not rule.signatures:
        return False
    return all(_anywhere(pattern, evidence) for pattern in rule.also) and not any(
        _anywhere(pattern, evidence) for pattern in rule.without
    )


def _anywhere(pattern: str, evidence: Evidence) -> bool:
    return any(compiled(pattern).search(entry.text) for entry in evidence.entries)


def placeholders(evidence: Evidence, entry: Line | None = None) -> dict[str, str]:
    """Return the values of the placeholders in fixes: real names where they are known."""
    rank = evidence.first_rank if entry is None or entry.rank is None else entry.rank
    host = (entry.host if entry else "") or evidence.first_host
    run = evidence.names.get("run")
    option = "" if rank is None else f"--rank {rank} "
    return {
        "run": "RUN",
        "run_path": "RUN",
        "image": "IMAGE",
        "job": "JOB",
        "rank": "N" if rank is None else str(rank),
        "host": host or "NODE",
        "logs": f"toolkit logs {option}{run}" if run else "the log",
        **evidence.names,
    }


def is_plain(evidence: Evidence) -> bool:
    """Return whether it is unknown which process printed a line, as in a log file of a user."""
    if evidence.names or evidence.launcher:
        return False
    return all(entry.rank is None and not entry.host for entry in evidence.entries)


def _where(evidence: Evidence, hit: Hit) -> str:
    entry = hit.entry
    # The rank that Slurm or an agent reports about, if it is known.
    is_known = evidence.failure is not None and evidence.failure.certainty
    if entry.rank is None and evidence.first_rank is not None and is_known:
        return source_of(evidence.first_rank, evidence.first_host)
    if hit.groups.get("where"):
        return hit.groups["where"]
    if is_plain(evidence):
        return "a process of the job"
    daemon = _DAEMON.match(entry.text)
    return f"the step on {daemon['host']}" if daemon else source_of(entry.rank, entry.host)


def source_of(rank: int | None, host: str) -> str:
    """Return the process that printed a line: ``rank 3 on nid001``, ``the batch script``."""
    if rank is None and not host:
        return "the batch script"
    who = "a task" if rank is None else f"rank {rank}"
    return f"{who} on {host}" if host else who


def _place(entries: Sequence[Line], position: int) -> str:
    """Return the user's last line in the traceback that ends at a line: ``train.py, line 12``."""
    frames: list[str] = []
    for entry in reversed(entries[max(0, position - _FRAMES_BACK) : position]):
        if entry.label != entries[position].label:
            continue
        if frame := _FRAME.search(entry.text):
            frames.append(f"{frame['file']}, line {frame['line']}")
        if "Traceback (most recent call last)" in entry.text:
            own = (frame for frame in frames if not _FOREIGN.search(frame))
            return next(own, frames[0] if frames else "")
    return ""


def filled(text: str, groups: Mapping[str, str]) -> str:
    """Fill in the groups of a text, such as ``it failed[ at {place}]``.

    A part in brackets that names groups is left out if one of them is empty.
    """

    def optional(part: re.Match[str]) -> str:
        names = _GROUP.findall(part[1])
        if not names:
            return part[0]
        return part[1] if all(groups.get(name) for name in names) else ""

    text = re.sub(r"\[([^\[\]]*)\]", optional, text)
    return _GROUP.sub(lambda match: groups.get(match[1], "?"), text)
