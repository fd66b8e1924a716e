"""From the evidence to the cause: which rules fit, and which of them is first. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from toolkit.explain import ending, own_words
from toolkit.explain.model import Certainty, Entry, Evidence, Explanation, Match, Rule, compiled
from toolkit.redaction import redacted
from toolkit.units import counted

_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_FRAME_LINE = re.compile(r'\s+File "[^"]+", line \d+')
# slurmstepd speaks of a step on its node. In which task's log it does so says nothing about the
# task.
_DAEMON = re.compile(r"slurmstepd-(?P<host>[\w.-]+): error: ")
_FOREIGN = re.compile(r"/(?:site|dist)-packages/|/lib/python3|<frozen |/__autograph_generated_file")
_SUSPICIOUS = re.compile(
    r"error|exception|traceback|fatal|abort|killed|segmentation|cannot|can't|could not|failed|failure|denied|refused|"
    r"no such|not found|panic",
    re.IGNORECASE,
)
_HARMLESS = re.compile(
    r"warning|0 errors|no errors?\b|error(?:_|-)?rate|errors?[=:] ?0\b", re.IGNORECASE
)
_RUNTIME = re.compile(r"INFO: {1,4}|WARNING: |slurmstepd|srun: ")  # printed around a program
_OF_FIRST_RANK = 5  # how much a line of the rank that failed first counts more than another's
_GENERAL = (
    40  # rules of less weight than this know any exception, also those of ranks whose peer has gone
)
_SURVIVED = 100  # how much less a line counts after which its log goes on normally
_MOST_RANKS, _LINES_EACH, _FRAMES_BACK = 8, 2, 200
# Characters of a longer line that are searched and shown: its first and its last. A cause stands at
# the beginning of a line, or after what a progress bar or a dump of numbers has printed before it.
# The time of a search is linear, but a line can be megabytes long.
_BEGIN, _END = 3072, 1024
_CUT = " [...] "
NO_FAILURE = "no failure found"
_CERTAINTIES: tuple[Certainty, ...] = ("certain", "likely", "possible")


def explain(evidence: Evidence, rules: Mapping[str, Rule]) -> Explanation:
    """Return what happened, by the rules.

    The middle of a line of more than 4,096 characters is not searched.
    """
    long = sum(len(entry.text) > _BEGIN + _END for entry in evidence.entries)
    if long:
        entries = tuple(entry._replace(text=_shortened(entry.text)) for entry in evidence.entries)
        evidence = evidence._replace(entries=entries)
    if _is_healthy(evidence, rules):
        return Explanation(
            first=NO_FAILURE, match=None, looked_at=_looked_at(evidence, len(rules), long)
        )
    matches = _of_first_rank(evidence, rules) or sorted(
        _matches(evidence, rules), key=lambda match: _rank_of(match, evidence)
    )
    best = matches[0] if matches else None
    others = tuple(
        match
        for match in matches[1:]
        if match.role == "cause" and best and match.line not in ("", best.line)
    )[:3]
    return Explanation(
        first=_first(evidence, best),
        match=best,
        source=evidence.failure.source if evidence.failure else "",
        others=others,
        suspicious=() if best and best.role == "cause" else tuple(_suspicious(evidence)),
        looked_at=_looked_at(evidence, len(rules), long),
        last=_last(evidence) if best is None or best.role != "cause" else "",
        every_line=f"toolkit logs --raw {evidence.names['run']}" if "run" in evidence.names else "",
    )


def _is_healthy(evidence: Evidence, rules: Mapping[str, Rule]) -> bool:
    """Return whether a log of which only the lines are known shows no failure."""
    if evidence.state or evidence.nodes_down or evidence.failure:
        return False
    causes, consequences = (
        _recognized(evidence.entries, rules, role) for role in ("cause", "consequence")
    )
    return not ending.shows_failure(
        evidence.entries, causes, consequences, ending.survived(evidence.entries)
    )


def _recognized(entries: Sequence[Entry], rules: Mapping[str, Rule], role: str) -> Iterator[int]:
    patterns = [
        compiled(pattern)
        for rule in rules.values()
        if rule.role == role
        for pattern in rule.signatures
    ]
    return (
        position
        for position, entry in enumerate(entries)
        if any(pattern.search(entry.text) for pattern in patterns)
    )


def _of_first_rank(evidence: Evidence, rules: Mapping[str, Rule]) -> list[Match]:
    """Return what the first failing rank's own words show, the best first; empty if its words are not known.

    Lines of other ranks are consequences then, and earlier lines of its own are what it went on
    after.
    """
    failure = evidence.failure
    if failure is None or not (failure.words or failure.certainty):
        return []
    causes = {name: rule for name, rule in rules.items() if rule.role == "cause"}
    own = evidence._replace(entries=own_words.entries(evidence), nodes_down={})
    found = sorted(_matches(own, causes), key=lambda match: -match.weight)
    if not failure.words:
        return found or [own_words.silent(failure, _names(evidence))]
    special = [
        match
        for match in found
        if match.weight >= _GENERAL and (match.line or evidence.state == "OUT_OF_MEMORY")
    ]
    if not special and failure.kind != "argparse":
        early = {name: rule for name, rule in causes.items() if rule.early}
        special = list(_matches(evidence._replace(entries=own_words.printed(evidence)), early))
    certainty = min((failure.certainty or "likely"), "likely", key=_CERTAINTIES.index)
    special = [
        replace(match, sure=max(match.sure, certainty, key=_CERTAINTIES.index)) for match in special
    ]
    return [*special, own_words.match(failure, _names(evidence), evidence)]


def _shortened(text: str) -> str:
    return text if len(text) <= _BEGIN + _END else text[:_BEGIN] + _CUT + text[-_END:]


def _rank_of(match: Match, evidence: Evidence) -> tuple[bool, int]:
    """Causes before consequences, then by weight; a line of the rank that failed first counts for a little more."""
    own = evidence.first_rank is not None and match.rank == evidence.first_rank
    return (match.role != "cause", -(match.weight + (_OF_FIRST_RANK if own else 0)))


def _matches(evidence: Evidence, rules: Mapping[str, Rule]) -> Iterator[Match]:
    echoes = _echoes(evidence.entries, rules)
    past = frozenset[int]() if evidence.state else ending.survived(evidence.entries)
    quoted, is_plain = _quoted_code(evidence.entries), _is_plain(evidence)
    for name, rule in rules.items():
        if not _applies(rule, evidence):
            continue
        general = rule.role == "cause" and rule.weight < _GENERAL
        lines = _lines(rule, evidence, is_plain=is_plain)
        found = [line for line in lines if not (general and line.entry in echoes)]
        if rule.signatures and not found:
            continue
        found, is_past = _present(found, past)
        found = [line for line in found if line.position not in quoted] or found
        best = _best_line(found, evidence.first_rank) if found else None
        entry = best.entry if best else None
        daemon = _DAEMON.match(entry.text) if entry else None
        groups = {"place": _place(evidence.entries, best.position), **best.groups} if best else {}
        groups |= {"node": groups.get("node") or ",".join(sorted(evidence.nodes_down))}
        groups = {**_names(evidence, entry), **groups}
        yield Match(
            rule=name,
            summary=rule.summary,
            cause=redacted(_filled(rule.cause, groups)),
            fix=tuple(redacted(_filled(_of_log(text, evidence), groups)) for text in rule.fix),
            source=rule.source,
            sure="possible" if is_past else rule.sure,
            role=rule.role,
            weight=rule.weight - (_SURVIVED if is_past else 0),
            rank=entry.rank if entry and not daemon else None,
            host=daemon["host"] if daemon else entry.host if entry else "",
            line=redacted(entry.text.strip()) if entry else "",
            ranks=_ranks(found),
        )


# What fixes say of the logs of a run, which a pasted log is not.
_LOGS_SHOW = re.compile(r"toolkit logs (?:--rank \{rank\} )?\{run\} shows")
_SEE_LOGS = re.compile(r": toolkit logs (?:--rank \{rank\} )?\{run\}$")
_RUN_AGAIN = "toolkit run {run_path} starts it again"


def _of_log(text: str, evidence: Evidence) -> str:
    """Return a fix as it reads for a log whose run is not known: no command can name the run."""
    if "run" in evidence.names:
        return text
    if text == _RUN_AGAIN:
        return "submit it again"
    return _SEE_LOGS.sub("", _LOGS_SHOW.sub("the log shows", text))


def _is_plain(evidence: Evidence) -> bool:
    """Return whether nothing tells which process printed a line: a log that people have kept."""
    if evidence.names or evidence.launcher:
        return False
    return all(entry.rank is None and not entry.host for entry in evidence.entries)


def _present(found: list[_Line], past: Collection[int]) -> tuple[list[_Line], bool]:
    """Return the lines that were not survived; where all were, all of them, and that they were."""
    present = [line for line in found if line.position not in past]
    return (present, False) if present else (found, bool(found))


def _ranks(found: Iterable[_Line]) -> tuple[int, ...]:
    """Return the ranks whose own lines show the cause."""
    entries = (line.entry for line in found if not _DAEMON.match(line.entry.text))
    return tuple(sorted({entry.rank for entry in entries if entry.rank is not None}))


def _quoted_code(entries: Sequence[Entry]) -> frozenset[int]:
    """Return the positions of the lines of code in tracebacks, each below its frame in its log."""
    below_frame: dict[str, bool] = {}
    found = []
    for position, entry in enumerate(entries):
        if below_frame.get(entry.label) and entry.text[:1].isspace():
            found.append(position)
        below_frame[entry.label] = bool(_FRAME_LINE.match(entry.text))
    return frozenset(found)


def _names(evidence: Evidence, entry: Entry | None = None) -> dict[str, str]:
    """Return what placeholders of fixes stand for: real names where they are known."""
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


def _echoes(entries: Sequence[Entry], rules: Mapping[str, Rule]) -> set[Entry]:
    """Lines that only say that another rank has gone."""
    patterns = [
        compiled(pattern)
        for rule in rules.values()
        if rule.role == "consequence"
        for pattern in rule.signatures
    ]
    return {entry for entry in entries if any(pattern.search(entry.text) for pattern in patterns)}


def _applies(rule: Rule, evidence: Evidence) -> bool:
    """Whether the conditions hold; what is not known of a pasted log does not stand in the way of a rule that has signatures."""
    for wanted, given in ((rule.states, evidence.state), (rule.launchers, evidence.launcher)):
        if wanted and given not in wanted and (given or not rule.signatures):
            return False
    if (
        rule.exit_codes
        and evidence.exit_code not in rule.exit_codes
        and (evidence.exit_code is not None or not rule.signatures)
    ):
        return False
    if rule.nodes_down and not evidence.nodes_down and not rule.signatures:
        return False
    texts = [entry.text for entry in evidence.entries]
    return all(_anywhere(pattern, texts) for pattern in rule.also) and not any(
        _anywhere(pattern, texts) for pattern in rule.without
    )


def _anywhere(pattern: str, texts: Sequence[str]) -> bool:
    return any(compiled(pattern).search(text) for text in texts)


class _Line(NamedTuple):
    """A line that shows the cause, its position among all lines, and the signature's groups."""

    entry: Entry
    position: int
    groups: dict[str, str]


def _lines(rule: Rule, evidence: Evidence, *, is_plain: bool) -> Iterator[_Line]:
    """Yield every line that shows the cause."""
    patterns = [compiled(pattern) for pattern in rule.signatures]
    for position, entry in enumerate(evidence.entries):
        found = next((match for pattern in patterns if (match := pattern.search(entry.text))), None)
        if found:
            groups = {name: text or "" for name, text in found.groupdict().items()}
            where = "a process of the job" if is_plain else _where(entry)
            yield _Line(entry, position, {"where": where} | groups | _known_where(entry, evidence))


def _best_line(found: Sequence[_Line], first_rank: int | None) -> _Line:
    """Return the line of the rank that failed first, else the earliest in its own log.

    A line that fills more of the groups comes before one that fills fewer.
    """
    own = [line for line in found if line.entry.rank is not None and line.entry.rank == first_rank]

    def order(line: _Line) -> tuple[int, int]:
        return sum(not text for text in line.groups.values()), line.entry.number

    return min(own or found, key=order)


def _known_where(entry: Entry, evidence: Evidence) -> dict[str, str]:
    """Return the rank of which Slurm or an agent speaks, if it is known."""
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
    who = (
        f"rank {entry.rank}"
        if entry.rank is not None
        else "the batch script"
        if not entry.host
        else "a task"
    )
    return f"{who} on {entry.host}" if entry.host else who


def _place(entries: Sequence[Entry], position: int) -> str:
    """The last line of the user's own in the traceback that ends here: ``train.py, line 12``; empty where there is none."""
    frames: list[tuple[str, str]] = []
    here = entries[position]
    for entry in reversed(entries[max(0, position - _FRAMES_BACK) : position]):
        if entry.label != here.label:
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
    """``text`` with its groups; a part in brackets whose group is empty is left out: ``it failed[ at {place}]``."""

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


def _first(evidence: Evidence, best: Match | None) -> str:
    """What happened first, in words."""
    if evidence.first_text:
        return evidence.first_text
    if evidence.nodes_down:
        return "; ".join(
            f"node {name} is {text}" for name, text in sorted(evidence.nodes_down.items())
        )
    if best and best.line:
        if _is_plain(evidence):
            return best.line
        where = f" on {best.host}" if best.host else ""
        who = (
            f"rank {best.rank}"
            if best.rank is not None
            else "the batch script"
            if not best.host
            else "a task"
        )
        return f"{who}{where}: {best.line}"
    return f"Slurm says {evidence.state}" if evidence.state else "not known"


def _last(evidence: Evidence) -> str:
    """Return the last line of the rank that failed first, where no more is known of it."""
    own = [entry.text.strip() for entry in own_words.printed(evidence) if entry.rank is not None]
    text = next((text for text in reversed(own) if text and not _RUNTIME.match(text)), "")
    return redacted(f"{evidence.first_rank}| {text}") if text else ""


def _suspicious(evidence: Evidence) -> Iterator[str]:
    """The earliest lines that look like errors, a few for each of the first ranks; the one that failed first comes first."""
    streams: dict[str, list[str]] = {}
    for entry in evidence.entries:
        if _SUSPICIOUS.search(entry.text) and not _HARMLESS.search(entry.text):
            kept = streams.setdefault(entry.label, [])
            if len(kept) < _LINES_EACH:
                kept.append(redacted(entry.text.rstrip()))
    first = str(evidence.first_rank)
    labels = sorted(
        streams,
        key=lambda label: (
            label != first,
            not label.isdigit(),
            int(label) if label.isdigit() else 0,
            label,
        ),
    )
    is_plain = _is_plain(evidence)
    for label in labels[:_MOST_RANKS]:
        yield from (text if is_plain else f"{label}| {text}" for text in streams[label])
    if len(labels) > _MOST_RANKS:
        yield f"... and {len(labels) - _MOST_RANKS} more"


def _looked_at(evidence: Evidence, rules: int, long: int) -> tuple[str, ...]:
    streams = {entry.label for entry in evidence.entries}
    count, logs = len(evidence.entries), len(streams)
    seen = [f"{counted(count, 'line')} in {counted(logs, 'log')}", f"{rules} rules"]
    if evidence.state:
        seen.append(
            f"Slurm's state {evidence.state}"
            + (f", exit code {evidence.exit_code}" if evidence.exit_code is not None else "")
        )
    if long:
        seen.append(
            f"of {counted(long, 'line')} only the first {_BEGIN:,} and the last {_END:,} characters"
        )
    if evidence.nodes_down:
        seen.append(f"nodes that are not well: {', '.join(sorted(evidence.nodes_down))}")
    return tuple(seen)


# As torch begins each line of an exception once a rank belongs to a group.
_RAISED = re.compile(r"\[rank(?P<rank>\d+)\]: ?(?P<text>.*)")


def entries_of(lines: Iterable[tuple[str, str, int | None]]) -> tuple[Entry, ...]:
    """Number the lines of each stream: from (text, host, rank). What torch puts before a line names its rank, and is none of its text."""
    counts: dict[tuple[str, int | None], int] = {}
    entries: list[Entry] = []
    for text, host, rank in lines:
        raised = _RAISED.match(text)
        if raised:
            text, rank = raised["text"], int(raised["rank"]) if rank is None else rank
        key = (host, rank)
        counts[key] = counts.get(key, -1) + 1
        entries.append(Entry(text, host, rank, counts[key]))
    return tuple(entries)


_LABELLED = re.compile(
    r"(?:(?P<rank>\d{1,9})|(?P<batch>batch)|(?P<host>[a-zA-Z](?=[\w.-]{0,253}\d)[\w.-]{0,253}))"
    r"[|:] ?(?P<text>.*)"
)
_TORCH = re.compile(r"\[(?:default)?(?P<rank>\d+)\]:(?P<text>.*)")


def pasted(text: str) -> tuple[Entry, ...]:
    """Return the lines of a pasted log as entries, see ``labelled``."""
    return labelled(text.replace("\r\n", "\n").rstrip("\n").split("\n"))


def labelled(lines: Iterable[str]) -> tuple[Entry, ...]:
    """Return lines as entries: labelled as `toolkit logs`, ``srun --label`` or torchrun do it, or not at all."""
    return entries_of(_labelled(line) for line in lines)


def _labelled(line: str) -> tuple[str, str, int | None]:
    torch = _TORCH.match(line)
    if torch:
        return torch["text"], "", int(torch["rank"])
    found = _LABELLED.match(line)
    if not found:
        return line, "", None
    return found["text"], found["host"] or "", int(found["rank"]) if found["rank"] else None
