"""Variables of the image."""

from __future__ import annotations

import re

from toolkit.images.piece import Block, Piece

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Env(Block, frozen=True, kw_only=True):
    """``block = "env"``.

    Attributes:
        variables: name -> value, for every program that runs in the image.
    """

    variables: dict[str, str]

    def __post_init__(self) -> None:
        wrong = next((name for name in self.variables if not _VARIABLE.match(name)), None)
        if wrong is not None:
            raise ValueError(f"{wrong!r} cannot be the name of a variable")

    def piece(self, holds: frozenset[str] = frozenset()) -> Piece:
        del holds
        return Piece(name="env", detail=", ".join(self.variables), environment=self.variables)
