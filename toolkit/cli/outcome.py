"""Print the outcome of a run, its attempts, and the explanation of its failure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolkit.cli import console
from toolkit.errors import ToolkitError
from toolkit.units import human_time

if TYPE_CHECKING:
    from toolkit.explain.model import Explanation
    from toolkit.model.run import Outcome
    from toolkit.model.ways import Stint
    from toolkit.records.store import Paths


def show_outcome(outcome: Outcome, paths: Paths) -> None:
    """Print the outcome of a run, where its ranks were, and the next commands."""
    from toolkit.runs.outcome import headline

    word = "done" if outcome.kind == "ok" else outcome.kind
    message = outcome.message or headline(outcome.results)
    console.note(
        console.subject(word, f"{human_time(outcome.seconds)}  exit {outcome.exit_code}  {message}")
    )
    if outcome.ranks:
        places = "   ".join(
            f"rank {','.join(map(str, numbers))} {host}" for host, numbers in outcome.ranks.items()
        )
        console.note(console.subject("", places))
    show_attempts(outcome.stints)
    directory = os.path.relpath(paths.directory)
    if outcome.points and outcome.kind != "ok":
        again = f"failed ones again: toolkit run --failed {directory}"
        console.note(console.subject("", f"results: toolkit results {paths.word}     {again}"))
    console.note(
        console.subject("", f"logs: toolkit logs {paths.word}     again: toolkit run {directory}")
    )


def show_attempts(stints: Sequence[Stint]) -> None:
    """Print the attempts of a run that was requeued."""
    from toolkit.runs.attempts import describe, warning

    for index, line in enumerate(describe(stints) if len(stints) > 1 else ()):
        console.note(console.subject("" if index else "attempts", line))
    if text := warning(stints):
        console.note(console.subject("warning", text))


def show_explanation(paths: Paths) -> None:
    """Print why a run failed, as far as the rules know.

    A rule of the user's that is broken does not hide the outcome.
    """
    from toolkit.explain.explanation import explain
    from toolkit.explain.gather import of_run, rules

    try:
        lines = lines_of(explain(of_run(paths)[0], rules()))
    except ToolkitError as error:
        lines = [console.subject("explain", f"{error.cause} ({error.place})")]
    console.note("")
    for line in lines:
        console.note(line)


def lines_of(explanation: Explanation) -> list[str]:
    """Format an explanation: the first failure, the cause, the fix, the confidence."""
    from toolkit.explain.explanation import NO_FAILURE

    subject = console.subject
    lines = [subject("first", explanation.first)]
    if explanation.first == NO_FAILURE:
        lines = [subject("result", explanation.first)]
    elif explanation.match is None:
        lines.append(
            subject(
                "cause",
                "not known: no rule matches. The earliest lines that look like errors:",
            )
        )
        lines += [subject("", line) for line in explanation.suspicious] or [subject("", "none")]
        if explanation.every_line:
            lines.append(subject("next", f"{explanation.every_line} shows everything"))
    else:
        match = explanation.match
        lines += [subject("code", explanation.source)] if explanation.source else []
        lines.append(subject("cause", match.cause))
        if match.line and match.line not in explanation.first and match.line not in match.cause:
            source = match.rank if match.rank is not None else match.host or "batch"
            lines.append(subject("line", f"{source}| {match.line}"))
        lines += [subject("last", explanation.last)] if explanation.last else []
        if len(match.ranks) > 1:
            lines.append(subject("ranks", f"{len(match.ranks)} printed it: {_some(match.ranks)}"))
        lines += [
            subject("fix" if number == 0 else "or", text) for number, text in enumerate(match.fix)
        ]
        lines.append(subject("confidence", f"{match.sure} (rule {match.rule}; {match.source})"))
        lines += [
            subject("or else", f"{other.summary} ({other.rule}: {other.line})")
            for other in explanation.others
        ]
        if explanation.suspicious:
            lines.append(subject("lines", "the earliest that look like errors:"))
            lines += [subject("", line) for line in explanation.suspicious]
    lines.append(subject("searched", "; ".join(explanation.searched)))
    return lines


def _some(ranks: tuple[int, ...], most: int = 8) -> str:
    shown = ", ".join(map(str, ranks[:most]))
    return f"{shown}, ..." if len(ranks) > most else shown
