"""Checks and their registry: the checks of a package are found in its modules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from toolkit.checks.result import Result, failed, next_step
from toolkit.errors import ToolkitError

CaseT = TypeVar("CaseT")
Scope = Literal["host", "site", "nodes"]


class Traits(NamedTuple):
    """The traits of a check: its place and cost, and what its results have in common.

    Attributes:
        order: position in the registry; what later checks need comes first.
        scope: ``site``: the result holds for one cluster only; ``nodes``: the check takes nodes.
        at_build: every build of an image ends with it, since it is quick.
        severity: ``warning`` if a failure does not stop anything.
        cause, fix, source: why a failure matters, what to do about it, where that is known from.
    """

    order: int = 1000
    scope: Scope = "host"
    at_build: bool = False
    severity: Literal["error", "warning"] = "error"
    cause: str = ""
    fix: str = ""
    source: str = ""


class Check(Generic[CaseT]):
    """A check: its name, what it is about, and the function that makes it.

    Attributes:
        name: unique within its registry.
        about: what must hold, in a few words.
        function: from a case to one result, or to a result for each fault.
        traits: what all its results have in common.
    """

    def __init__(
        self,
        name: str,
        about: str,
        function: Callable[[CaseT], Result | Iterable[Result]],
        traits: Traits,
    ) -> None:
        self.name, self.about, self.function, self.traits = name, about, function, traits

    def __call__(self, case: CaseT) -> Iterator[Result]:
        """Make the check and yield its results, each with the name and the traits of the check."""
        given, traits = self.function(case), self.traits
        for result in (given,) if isinstance(given, Result) else given:
            is_mild = result.outcome == "failed" and traits.severity == "warning"
            yield result._replace(
                outcome="warning" if is_mild else result.outcome,
                name=self.name,
                cause=result.cause or traits.cause,
                fix=result.fix or traits.fix,
                source=result.source or traits.source,
            )

    def only(self, case: CaseT) -> Result:
        """Make a check that has exactly one result; an error of ours counts as a failure."""
        try:
            (result,) = self(case)
        except ToolkitError as error:
            result = failed(error.cause, next_step(error))._replace(name=self.name)
        return result


def check(
    name: str, about: str = "", **traits: Any
) -> Callable[[Callable[[CaseT], Result | Iterable[Result]]], Check[CaseT]]:
    """Turn a function into a check.

    Args:
        name: of the check, unique within its registry.
        about: what must hold, in a few words.
        traits: fields of ``Traits``.
    """
    return lambda function: Check(name, about, function, Traits(**traits))


class Registry(Generic[CaseT]):
    """The checks of a package, found in its modules when they are first needed."""

    def __init__(self, package: str) -> None:
        self._package = package

    @cached_property
    def checks(self) -> dict[str, Check[CaseT]]:
        """The checks by name, in their order; equal ones as their modules have them."""
        ordered = sorted(self._find(), key=lambda check: check.traits.order)
        named = {check.name: check for check in ordered}
        assert len(named) == len(ordered), f"two checks of {self._package} have one name"
        return named

    def _find(self) -> Iterator[Check[CaseT]]:
        directory = Path(import_module(self._package).__path__[0])
        stems = sorted(file.stem for file in directory.glob("*.py") if file.stem.isidentifier())
        for stem in stems:
            for value in vars(import_module(f"{self._package}.{stem}")).values():
                yield from _checks_in(value)

    def results(self, case: CaseT, names: Collection[str] | None = None) -> Iterator[Result]:
        """Make all checks, or those with these names, and yield every result."""
        for name, check in self.checks.items():
            if names is None or name in names:
                yield from check(case)


def _checks_in(value: object) -> Iterator[Check[Any]]:
    """Yield the checks of a module's variable: one check, or a table of them."""
    if isinstance(value, Check):
        yield value
    elif isinstance(value, tuple):
        yield from (item for item in value if isinstance(item, Check))
