"""How many failures `toolkit explain` names rightly, and how many healthy logs it leaves alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

from toolkit.errors import ConfigError
from toolkit.explain.gather import of_capture, of_file
from toolkit.explain.matcher import explain, pasted
from toolkit.explain.model import Evidence, Rule
from toolkit.explain.rulebook import rules
from toolkit.model.base import Model


class Count(Model, frozen=True, kw_only=True):
    """Of one kind of logs.

    Attributes:
        kind: ``captured``: from failures that were provoked on a real cluster; ``reported``: as published; ``healthy``: of runs that
            ended well.
        right: how many came out as they should.
        wrong: the others, and what was said of them.
    """

    kind: str
    right: int
    wrong: tuple[str, ...]


def count(directory: Path) -> tuple[Count, ...]:
    """Read every log that is kept.

    Args:
        directory: of the repository's captured logs.

    Raises:
        ConfigError: it is not there.
    """
    if not directory.is_dir():
        raise ConfigError("the captured logs are not here", place=str(directory), next_step="run it in a checkout, or name their directory")
    known = rules()
    captured = ((path.name.split(".")[0], path.name, of_capture(path)) for path in sorted((directory / "captured").glob("*.json")))
    kept = (("", path.name, of_capture(path)) for path in sorted((directory / "healthy").glob("*.json")))
    frightening = (("", path.name, of_file(path)) for path in sorted((directory / "frightening").glob("*.log")))
    healthy = chain(kept, frightening)
    return (
        _counted("captured", captured, known),
        _counted("reported", _reported(known), known),
        _counted("healthy", healthy, known),
    )


def _reported(known: Mapping[str, Rule]) -> Iterator[tuple[str, str, Evidence]]:
    for name, rule in known.items():
        for number, one in enumerate(rule.examples):
            yield name, f"{name} {number + 1}", Evidence(pasted(one.log), one.state, one.exit_code, one.launcher, one.nodes_down)


def _counted(kind: str, logs: Iterator[tuple[str, str, Evidence]], known: Mapping[str, Rule]) -> Count:
    right, wrong = 0, []
    for wanted, name, evidence in logs:
        found = explain(evidence, known).match
        said = found.rule if found else ""
        if said == wanted:
            right += 1
        else:
            wrong.append(f"{name}: {said or 'nothing'}")
    return Count(kind=kind, right=right, wrong=tuple(wrong))
