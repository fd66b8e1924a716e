"""Packages of Debian that stay in the image."""

from __future__ import annotations

from toolkit.images.recipe.block import Block, BlockOutput, require_debian_packages


class Apt(Block, frozen=True, kw_only=True):
    """``block = "apt"``.

    Attributes:
        packages: their names, each optionally with ``=version``.
    """

    packages: tuple[str, ...]

    def __post_init__(self) -> None:
        require_debian_packages(self.packages)

    def output(self, holds: frozenset[str] = frozenset()) -> BlockOutput:
        """Return what the definition gets from this step."""
        del holds
        return BlockOutput(name="apt", packages=self.packages)
