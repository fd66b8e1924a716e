"""The evidence of a failed run, the rules that read it, and the explanation."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from toolkit.model.base import BadDataError, Model
from toolkit.model.run import Failure

Certainty = Literal["certain", "likely", "possible"]


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
        launchers: that the rule is for; empty: any.
        nodes_down: the rule is for runs with a node that is down.
        unrecorded: the rule is for runs whose outcome found no room on the disk.
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
    launchers: tuple[str, ...] = ()
    nodes_down: bool = False
    unrecorded: bool = False
    early: bool = False
    any_rank: bool = False
    weight: int = 50
    role: Literal["cause", "consequence"] = "cause"
    sure: Certainty = "likely"
    examples: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        """Check the patterns, and that there is a condition."""
        for pattern in (*self.signatures, *self.also, *self.without):
            try:
                compiled(pattern)
            except re.error as error:
                raise BadDataError(
                    f"{pattern!r} is not a regular expression: {error}", "signatures"
                ) from None
        facts = self.states or self.nodes_down or self.exit_codes or self.unrecorded
        if not (self.signatures or facts):
            raise ValueError("a rule needs a signature or a condition")


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> re.Pattern[str]:
    """Return a signature, compiled once."""
    return re.compile(pattern)


class Entry(NamedTuple):
    """A line of a log.

    ``rank`` and ``host`` are None and "" if unknown; ``number`` counts the lines of its own log.
    """

    text: str
    host: str
    rank: int | None
    number: int

    @property
    def label(self) -> str:
        """The label of the line in `toolkit logs`: ``3``, ``nid001``, ``batch``."""
        return str(self.rank) if self.rank is not None else self.host or "batch"


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
        unrecorded: the outcome found no room in the run's directory; logs may be cut off as well.
        stacks: where each rank was when it was asked, and what NCCL left.
    """

    entries: tuple[Entry, ...]
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
    unrecorded: bool = False
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
    """The explanation of a failure.

    Attributes:
        first: what happened first, on which rank and node.
        reported: the rank that its launcher reports as the first to fail, if ``first`` does not
            name it.
        source: the line of the user's code at which it happened; empty if unknown.
        match: the cause; None if no rule matches.
        others: other rules that match, less likely.
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
    others: tuple[Match, ...] = ()
    suspicious: tuple[str, ...] = ()
    searched: tuple[str, ...] = ()
    last: str = ""
    every_line: str = ""
    stacks: tuple[str, ...] = ()
