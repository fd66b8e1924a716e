"""Match the rules with the lines of a failed run. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from toolkit.explain.candidates import Candidates
from toolkit.explain.entries import survived
from toolkit.explain.model import Entry, Evidence, Match, Rule, compiled
from toolkit.text import redacted

_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_FRAME_LINE = re.compile(r'\s+File "[^"]+", line \d+')
# slurmstepd reports about a step on its node; the task whose log has the report is arbitrary.
_DAEMON = re.compile(r"slurmstepd-(?P<host>[\w.-]+): error: ")
_FOREIGN = re.compile(r"/(?:site|dist)-packages/|/lib/python3|<frozen |/__autograph_generated_file")
# Rules of less weight match any exception, also those of ranks whose peer is lost.
GENERAL = 40
_SURVIVED = 100  # subtracted from the weight of a line after which its log goes on normally
_FRAMES_BACK = 200


def recognized(entries: Sequence[Entry], rules: Mapping[str, Rule], role: str) -> Iterator[int]:
    """Yield the positions of the lines that match a rule of this role."""
    return _recognized(_candidates(entries), rules, role)


def _candidates(entries: Sequence[Entry]) -> Candidates:
    return Candidates([entry.text for entry in entries])


def _recognized(lines: Candidates, rules: Mapping[str, Rule], role: str) -> Iterator[int]:
    patterns = [
        compiled(pattern)
        for rule in rules.values()
        if rule.role == role
        for pattern in rule.signatures
    ]
    return (position for position, _ in lines.search(patterns))


def matches(evidence: Evidence, rules: Mapping[str, Rule]) -> Iterator[Match]:
    """Yield a match for each rule that applies."""
    candidates = _candidates(evidence.entries)
    # Lines that only report the loss of another rank.
    consequences = frozenset(_recognized(candidates, rules, "consequence"))
    past = frozenset[int]() if evidence.state else survived(evidence.entries)
    quoted, plain = _quoted_code(evidence.entries), is_plain(evidence)
    for name, rule in rules.items():
        if not _applies(rule, evidence, candidates):
            continue
        general = rule.role == "cause" and rule.weight < GENERAL
        lines = [
            line
            for line in _lines(rule, evidence, candidates, plain=plain)
            if not (general and line.position in consequences)
        ]
        if rule.signatures and not lines:
            continue
        lines, is_past = _present(lines, past)
        lines = [line for line in lines if line.position not in quoted] or lines
        best = _best_line(lines, evidence.first_rank) if lines else None
        entry = best.entry if best else None
        daemon = _DAEMON.match(entry.text) if entry else None
        groups = {"place": _place(evidence.entries, best.position), **best.groups} if best else {}
        groups |= {"node": groups.get("node") or ",".join(sorted(evidence.nodes_down))}
        groups = {**placeholders(evidence, entry), **groups}
        yield Match(
            rule=name,
            summary=rule.summary,
            cause=redacted(_filled(rule.cause, groups)),
            fix=tuple(redacted(_filled(text, groups)) for text in _fixes(rule, evidence)),
            source=rule.source,
            sure="possible" if is_past else rule.sure,
            role=rule.role,
            weight=rule.weight - (_SURVIVED if is_past else 0),
            rank=entry.rank if entry and not daemon else None,
            host=daemon["host"] if daemon else entry.host if entry else "",
            line=redacted(entry.text.strip()) if entry else "",
            ranks=_ranks(lines),
        )


# Parts of fixes that name the logs of a run; a pasted log has no run.
_LOGS_SHOW = re.compile(r"toolkit logs (?:--rank \{rank\} )?\{run\} shows")
_SEE_LOGS = re.compile(r": toolkit logs (?:--rank \{rank\} )?\{run\}$")
_RUN_AGAIN = "toolkit run {run_path} starts it again"


def _fixes(rule: Rule, evidence: Evidence) -> Iterator[str]:
    """Yield the fixes of a rule that fit the run: one without an image has none to look into."""
    without = "run" in evidence.names and "image" not in evidence.names
    for text in rule.fix:
        if not (without and "{image}" in text):
            yield _of_log(text, evidence)


def _of_log(text: str, evidence: Evidence) -> str:
    """Return a fix without commands that name the run, if the run of a log is not known."""
    if "run" in evidence.names:
        return text
    if text == _RUN_AGAIN:
        return "submit it again"
    return _SEE_LOGS.sub("", _LOGS_SHOW.sub("the log shows", text))


def is_plain(evidence: Evidence) -> bool:
    """Return whether it is unknown which process printed a line, as in a log file of a user."""
    if evidence.names or evidence.launcher:
        return False
    return all(entry.rank is None and not entry.host for entry in evidence.entries)


def _present(lines: list[_Line], past: Collection[int]) -> tuple[list[_Line], bool]:
    """Return the lines that were not survived, and False; if all were, all lines and True."""
    present = [line for line in lines if line.position not in past]
    return (present, False) if present else (lines, bool(lines))


def _ranks(lines: Iterable[_Line]) -> tuple[int, ...]:
    """Return the ranks whose own lines show the cause."""
    entries = (line.entry for line in lines if not _DAEMON.match(line.entry.text))
    return tuple(sorted({entry.rank for entry in entries if entry.rank is not None}))


def _quoted_code(entries: Sequence[Entry]) -> frozenset[int]:
    """Return the positions of the lines of code in tracebacks, each below its frame in its log."""
    below_frame: dict[str, bool] = {}
    positions = []
    for position, entry in enumerate(entries):
        if below_frame.get(entry.label) and entry.text[:1].isspace():
            positions.append(position)
        below_frame[entry.label] = bool(_FRAME_LINE.match(entry.text))
    return frozenset(positions)


def placeholders(evidence: Evidence, entry: Entry | None = None) -> dict[str, str]:
    """Return the values of the placeholders in fixes: real names where they are known."""
    rank = evidence.first_rank if entry is None or entry.rank is None else entry.rank
    host = (entry.host if entry else "") or evidence.first_host
    known = {"rank": "N" if rank is None else str(rank), "host": host or "NODE"}
    return {
        "run": "RUN",
        "run_path": "RUN",
        "image": "IMAGE",
        "job": "JOB",
        **known,
        **evidence.names,
    }


def _applies(rule: Rule, evidence: Evidence, lines: Candidates) -> bool:
    """Return whether the conditions of a rule hold.

    A fact that is unknown, as of a pasted log, does not rule out a rule that has signatures.
    """
    for allowed, value in ((rule.states, evidence.state), (rule.launchers, evidence.launcher)):
        if allowed and value not in allowed and (value or not rule.signatures):
            return False
    if (
        rule.exit_codes
        and evidence.exit_code not in rule.exit_codes
        and (evidence.exit_code is not None or not rule.signatures)
    ):
        return False
    if rule.nodes_down and not evidence.nodes_down and not rule.signatures:
        return False
    if rule.unrecorded and not evidence.unrecorded:
        return False
    return all(_anywhere(pattern, lines) for pattern in rule.also) and not any(
        _anywhere(pattern, lines) for pattern in rule.without
    )


def _anywhere(pattern: str, lines: Candidates) -> bool:
    return next(lines.search((compiled(pattern),)), None) is not None


class _Line(NamedTuple):
    """A line that shows the cause, its position among all lines, and the signature's groups."""

    entry: Entry
    position: int
    groups: dict[str, str]


def _lines(
    rule: Rule, evidence: Evidence, candidates: Candidates, *, plain: bool
) -> Iterator[_Line]:
    """Yield every line that shows the cause."""
    for position, match in candidates.search(map(compiled, rule.signatures)):
        entry = evidence.entries[position]
        groups = {name: text or "" for name, text in match.groupdict().items()}
        where = "a process of the job" if plain else _where(entry)
        yield _Line(entry, position, {"where": where} | groups | _known_place(entry, evidence))


def _best_line(lines: Sequence[_Line], first_rank: int | None) -> _Line:
    """Return the line of the rank that failed first, else the earliest in its own log.

    A line that fills more of the groups comes before one that fills fewer.
    """
    own = [line for line in lines if line.entry.rank is not None and line.entry.rank == first_rank]

    def order(line: _Line) -> tuple[int, int]:
        return sum(not text for text in line.groups.values()), line.entry.number

    return min(own or lines, key=order)


def _known_place(entry: Entry, evidence: Evidence) -> dict[str, str]:
    """Return the rank that Slurm or an agent reports about, if it is known."""
    if (
        entry.rank is None
        and evidence.failure
        and evidence.failure.certainty
        and evidence.first_rank is not None
    ):
        return {"where": f"rank {evidence.first_rank} on {evidence.first_host}"}
    return {}


def _where(entry: Entry) -> str:
    daemon = _DAEMON.match(entry.text)
    if daemon:
        return f"the step on {daemon['host']}"
    return source_of(entry.rank, entry.host)


def source_of(rank: int | None, host: str) -> str:
    """Return the process that printed a line: ``rank 3 on nid001``, ``the batch script``."""
    if rank is None and not host:
        return "the batch script"
    who = "a task" if rank is None else f"rank {rank}"
    return f"{who} on {host}" if host else who


def _place(entries: Sequence[Entry], position: int) -> str:
    """Return the user's last line in the traceback that ends at a line: ``train.py, line 12``."""
    frames: list[tuple[str, str]] = []
    last = entries[position]
    for entry in reversed(entries[max(0, position - _FRAMES_BACK) : position]):
        if entry.label != last.label:
            continue
        frame = _FRAME.search(entry.text)
        if frame:
            frames.append((frame["file"], frame["line"]))
        if _TRACEBACK.search(entry.text):
            break
    else:
        return ""
    own = next(
        ((file, line) for file, line in frames if not _FOREIGN.search(file)),
        frames[0] if frames else None,
    )
    return f"{own[0]}, line {own[1]}" if own else ""


_GROUP = re.compile(r"\{(\w+)\}")


def _filled(text: str, groups: Mapping[str, str]) -> str:
    """Fill in the groups of a text, such as ``it failed[ at {place}]``.

    A part in brackets is left out if one of its groups is empty.
    """

    def optional(match: re.Match[str]) -> str:
        names = _GROUP.findall(match[1])
        return (
            match[1]
            if names and all(groups.get(name) for name in names)
            else ("" if names else match[0])
        )

    return _GROUP.sub(
        lambda match: groups.get(match[1], "?"), re.sub(r"\[([^\[\]]*)\]", optional, text)
    )
