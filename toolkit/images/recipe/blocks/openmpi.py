"""Open MPI as Debian packages it: starts under Slurm by PMIx."""

from __future__ import annotations

from toolkit.images.recipe.block import Block, BlockOutput, CheckCall


class OpenMpi(Block, frozen=True, kw_only=True):
    """``block = "openmpi"``."""

    def output(self, holds: frozenset[str] = frozenset()) -> BlockOutput:
        """Return what the definition gets from this step."""
        del holds
        check = CheckCall(name="openmpi", command="sh openmpi.sh", scripts=("openmpi.sh",))
        return BlockOutput(name="openmpi", packages=("openmpi-bin",), checks=(check,))
