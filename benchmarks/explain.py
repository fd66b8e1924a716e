"""Count the failures that `toolkit explain` names correctly, and its false alarms.

There are three sets of logs, each with its bar: known (rules were made from these logs: all),
later (captured afterwards, used for no rule: 90 %, and nothing wrong called certain), healthy (of
runs that succeeded, many with frightening words: all).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks import runner
from toolkit.explain.explanation import explain
from toolkit.explain.gather import entries_of, labelled, of_file, rules
from toolkit.explain.match import Evidence, Rule
from toolkit.runs.logs import Line

LOGS = Path(__file__).resolve().parents[1] / "tests" / "golden" / "explain"
LATER = Path(__file__).parent / "data" / "explain"
# Which part of a set must come out right.
BARS = {"known": 1.0, "later": 0.9, "healthy": 1.0}


class Count(NamedTuple):
    """The result for one set of logs.

    Attributes:
        kind: a key of ``BARS``.
        right: how many came out as they should.
        wrong: the others, with the rule that was named.
        certain: how many of these were called certain.
    """

    kind: str
    right: int
    wrong: tuple[str, ...]
    certain: int = 0

    @property
    def held(self) -> bool:
        """Return whether the bar of the set is held."""
        total = self.right + len(self.wrong)
        return total > 0 and self.right >= BARS[self.kind] * total and not self.certain


class _Log(NamedTuple):
    """A log, its name, and the expected result: a rule, words of the cause, or neither."""

    name: str
    evidence: Evidence
    rule: str | None = None
    words: str = ""


def count() -> tuple[Count, ...]:
    """Explain every log of the repository."""
    known = rules()
    return (
        _counted("known", [*_captured(), *_examples(known)], known),
        _counted("later", _later(), known),
        _counted("healthy", _healthy(), known),
    )


def of_capture(path: Path) -> Evidence:
    """Return evidence from JSON: the fields of ``Evidence``, and lines of text, host and rank."""
    data = json.loads(path.read_text(encoding="utf-8"))
    lines = data.pop("lines")
    return Evidence(entries=entries_of(Line(*line) for line in lines), **data)


def _captured() -> Iterator[_Log]:
    for path in sorted((LOGS / "captured").glob("*.json")):
        yield _Log(path.name, of_capture(path), path.name.split(".")[0])


def _examples(known: Mapping[str, Rule]) -> Iterator[_Log]:
    for name, rule in known.items():
        for number, example in enumerate(rule.examples):
            facts = {"state": "FAILED", "exit_code": 1, **example}
            facts = {key: facts[key] for key in Evidence._fields if key in facts}
            entries = labelled(example.get("log", "").rstrip("\n").split("\n"))
            yield _Log(f"{name} {number + 1}", Evidence(entries, **facts), name)


def _later() -> Iterator[_Log]:
    """Yield logs as users paste them.

    ``expected.json`` holds the words that the cause of each must have.
    """
    expected = json.loads((LATER / "expected.json").read_text(encoding="utf-8"))
    for name, words in sorted(expected.items()):
        yield _Log(name, of_file(LATER / name), words=words)


def _healthy() -> Iterator[_Log]:
    for path in sorted((LOGS / "healthy").glob("*.json")):
        yield _Log(path.name, of_capture(path))
    for path in sorted((LOGS / "frightening").glob("*.log")):
        yield _Log(path.name, of_file(path))


def _counted(kind: str, logs: Iterable[_Log], known: Mapping[str, Rule]) -> Count:
    right, certain, wrong = 0, 0, []
    for log in logs:
        explanation = explain(log.evidence, known)
        match = explanation.match
        rule, cause = (match.rule, match.cause) if match else (None, "")
        if log.words in f"{explanation.first} {cause}" if log.words else rule == log.rule:
            right += 1
        else:
            certain += match is not None and match.sure == "certain"
            wrong.append(f"{log.name}: {rule or 'nothing'}")
    return Count(kind, right, tuple(wrong), certain)


def main() -> int:
    """Count and print; return 1 if a bar is missed."""
    rows = []
    for item in count():
        text = f"{item.right} of {item.right + len(item.wrong)}"
        bar = f"{BARS[item.kind]:.0%}, none wrongly certain"
        rows.append(runner.Row(item.kind, text, "; ".join(item.wrong), bar, item.held))
    return runner.report(rows)


if __name__ == "__main__":
    sys.exit(main())
