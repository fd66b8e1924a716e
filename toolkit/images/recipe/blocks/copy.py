"""A small text file, written into the image.

Its text is part of the recipe, so that the definition needs no other file.
"""

from __future__ import annotations

import re

from toolkit.images.recipe.block import Block, BlockOutput, require_directory, require_step_name
from toolkit.images.recipe.words import word

_MODE = re.compile(r"0?[0-7]{3}\Z")


class Copy(Block, frozen=True, kw_only=True):
    """``block = "copy"``.

    Attributes:
        path: of the file in the image, absolute.
        lines: of the file.
        mode: its permissions, octal: ``755`` for a program.
        name: of the step.
    """

    path: str
    lines: tuple[str, ...]
    mode: str = "644"
    name: str = "copy"

    def __post_init__(self) -> None:
        require_directory(self.path)
        require_step_name(self.name)
        if not _MODE.match(self.mode):
            raise ValueError(f"{self.mode!r} are no permissions, such as 644 or 755")

    def output(self, holds: frozenset[str] = frozenset()) -> BlockOutput:
        """Return what the definition gets from this step."""
        del holds
        directory = self.path.rpartition("/")[0] or "/"
        write = (
            f"printf '%s\\n' {' '.join(map(word, self.lines))} > {word(self.path)}"
            if self.lines
            else f": > {word(self.path)}"
        )
        return BlockOutput(
            name=self.name,
            detail=self.path,
            lines=(f"mkdir -p {word(directory)}", write, f"chmod {self.mode} {word(self.path)}"),
        )
