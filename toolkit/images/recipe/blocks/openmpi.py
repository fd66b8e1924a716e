"""Open MPI as Debian packages it: starts under Slurm by PMIx."""

from __future__ import annotations

from toolkit.images.recipe.block import Block, CheckCall, Piece


class OpenMpi(Block, frozen=True, kw_only=True):
    """``block = "openmpi"``."""

    def piece(self, holds: frozenset[str] = frozenset()) -> Piece:
        del holds
        check = CheckCall(name="openmpi", command="sh openmpi.sh", scripts=("openmpi.sh",))
        return Piece(name="openmpi", packages=("openmpi-bin",), checks=(check,))
