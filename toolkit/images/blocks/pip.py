"""Packages of Python, from wherever the host's pip gets its own, or from an index that the recipe names."""

from __future__ import annotations

from toolkit.images.piece import Block, Piece, require_requirements, require_step_name, spoken
from toolkit.images.words import word, words


class Pip(Block, frozen=True, kw_only=True):
    """``block = "pip"``. Needs ``python`` before it.

    Attributes:
        packages: requirements as pip reads them.
        imports: modules that a script can import afterwards; the image's checks import them and record their versions.
        index: a further index, asked only where what pip is configured to ask does not have the packages.
        name: of the step.
    """

    packages: tuple[str, ...]
    imports: tuple[str, ...] = ()
    index: str | None = None
    name: str = "pip"

    def __post_init__(self) -> None:
        require_requirements(self.packages)
        require_step_name(self.name)

    def piece(self) -> Piece:
        install = f"pip install --no-compile {words(self.packages)}"
        if self.index is not None:
            install += f" || pip install --no-compile --extra-index-url {word(self.index)} {words(self.packages)}"
        return Piece(name=self.name, detail=", ".join(map(spoken, self.packages)), lines=(install,), imports=self.imports)
