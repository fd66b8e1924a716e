"""What is known of a failed run, the rules that read it, and what they say."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple

from toolkit.model.base import BadDataError, Model
from toolkit.model.run import Failure

Certainty = Literal["certain", "likely", "possible"]


class Example(Model, frozen=True, kw_only=True):
    """A log that a rule must recognise.

    Attributes:
        origin: ``captured``: it happened on the local cluster, and this is its log; ``published``: it is quoted from ``url``; ``composed``:
            it was written by hand, in the words that the rule's source documents.
        url: where it was published.
        log: lines as `toolkit logs` prints them: ``3| text``, ``nid001| text``, ``batch| text``.
        state: Slurm's final state, where the rule asks for it.
        exit_code: of the run, where the rule asks for it.
        launcher: of the run, where the rule asks for it.
        nodes_down: what Slurm says of nodes that are not well.
    """

    origin: Literal["captured", "published", "composed"]
    url: str = ""
    log: str = ""
    state: str = "FAILED"
    exit_code: int = 1
    launcher: str = ""
    nodes_down: dict[str, str] = {}

    def __post_init__(self) -> None:
        if (self.origin == "published") != bool(self.url):
            raise ValueError("a published example, and no other, says where: url")


class Rule(Model, frozen=True, kw_only=True):
    """A cause of failures: ``explain/rules/<name>.toml``.

    Attributes:
        summary: what happened, in a few words.
        cause: the same in a sentence; ``{name}`` is replaced by a group of the signature that matched.
        fix: what to do about it, the best way first; groups are replaced as well.
        source: where it is known from.
        pitfall: its number in the list of pitfalls.
        signatures: regular expressions; a line that one of them matches shows the cause.
        also: each of these must match some line of the log.
        without: none of these may match any line of the log.
        states: Slurm's final states that the rule is for; empty: any.
        exit_codes: of the run, that the rule is for; empty: any.
        launchers: that the rule is for; empty: any.
        nodes_down: the rule is for runs of which a node is down.
        early: a rank warns of it, goes on, and fails of it later, in words of its own.
        weight: where several rules match, the one with most weight is the cause: 10 for what is general, 90 for what nothing else prints.
        role: a ``consequence`` is only named where no cause is found: what other ranks print when one has gone.
        sure: how sure the rule is when it matches.
        examples: logs that it must recognise.
    """

    summary: str
    cause: str
    fix: tuple[str, ...]
    source: str
    pitfall: int | None = None
    signatures: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    exit_codes: tuple[int, ...] = ()
    launchers: tuple[str, ...] = ()
    nodes_down: bool = False
    early: bool = False
    weight: int = 50
    role: Literal["cause", "consequence"] = "cause"
    sure: Certainty = "likely"
    examples: tuple[Example, ...] = ()

    def __post_init__(self) -> None:
        for pattern in (*self.signatures, *self.also, *self.without):
            try:
                compiled(pattern)
            except re.error as error:
                raise BadDataError(
                    f"{pattern!r} is no regular expression: {error}", "signatures"
                ) from None
        if not (self.signatures or self.states or self.nodes_down or self.exit_codes):
            raise ValueError("a rule needs a signature or a condition")


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> re.Pattern[str]:
    """A signature, compiled once."""
    return re.compile(pattern)


class Entry(NamedTuple):
    """A line of a log. ``rank`` and ``host`` are None and "" where nobody knows; ``number`` counts the lines of its own stream."""

    text: str
    host: str
    rank: int | None
    number: int

    @property
    def label(self) -> str:
        """As `toolkit logs` calls it: ``3``, ``nid001``, ``batch``."""
        return str(self.rank) if self.rank is not None else self.host or "batch"


class Evidence(NamedTuple):
    """All that is looked at.

    Attributes:
        entries: every line of every log, each stream's in order.
        state: Slurm's final state; empty: not known, as of a log that somebody pasted.
        exit_code: of the run; None: not known.
        launcher: of the run; empty: not known.
        nodes_down: nodes of the job that are not well, and what Slurm says of them.
        first_rank, first_host: the rank that failed first, as Slurm or its launcher tells; None and "": nobody told.
        first_text: that in words.
        forced: rules that would have stopped it before it was submitted, and the reason that somebody gave.
        failure: the first failing rank in its own words, where a record or its launcher tells; None: only the lines tell.
        names: what stands for placeholders in fixes: ``run``, ``image``, ``job``.
    """

    entries: tuple[Entry, ...]
    state: str = ""
    exit_code: int | None = None
    launcher: str = ""
    nodes_down: dict[str, str] = {}
    first_rank: int | None = None
    first_host: str = ""
    first_text: str = ""
    forced: tuple[str, ...] = ()
    failure: Failure | None = None
    names: dict[str, str] = {}


class Match(Model, frozen=True, kw_only=True):
    """A rule that fits.

    Attributes:
        rule: its name.
        rank, host: of the line that shows it; None and "" where no line does.
        line: that line.
        ranks: every rank that printed the like.
        cause, fix: with what the line says filled in.
    """

    rule: str
    summary: str
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
    """What came of it.

    Attributes:
        first: what happened first, on which rank and node.
        source: the user's own line of code at which it happened; empty if not known.
        match: the cause; None: no rule knows it.
        others: what else fits, less likely.
        suspicious: where the cause is not known: the earliest lines of each rank that look like errors.
        looked_at: what was read.
        last: the last line of the rank that failed first, where only its exit code is known.
        every_line: the command that shows every line; empty for a pasted log.
    """

    first: str
    match: Match | None
    source: str = ""
    others: tuple[Match, ...] = ()
    suspicious: tuple[str, ...] = ()
    looked_at: tuple[str, ...] = ()
    last: str = ""
    every_line: str = ""
