"""Variables of the image."""

from __future__ import annotations

import re
from collections.abc import Iterable

from toolkit.images.recipe.block import Block, BlockOutput
from toolkit.images.recipe.expansion import require_expandable, separated

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Env(Block, frozen=True, kw_only=True):
    """``block = "env"``.

    Attributes:
        variables: name -> value, for every program that runs in the image.
        expand: those of them whose values hold ``${NAME}``, a variable of the base image; ``$$`` is
            a dollar sign.
    """

    variables: dict[str, str]
    expand: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_names(self.variables)
        require_expandable(self.variables, self.expand)

    def output(self, holds: frozenset[str] = frozenset()) -> BlockOutput:
        """Return what the definition gets from this step."""
        del holds
        literals, expanding = separated(self.variables, self.expand)
        return BlockOutput(
            name="env", detail=", ".join(self.variables), environment=literals, expanding=expanding
        )


def require_names(variables: Iterable[str]) -> None:
    """Raise for a text that cannot be the name of a variable.

    Raises:
        ValueError: A name is invalid; gives the first.
    """
    wrong = next((name for name in variables if not _VARIABLE.match(name)), None)
    if wrong is not None:
        raise ValueError(f"{wrong!r} cannot be the name of a variable")
