"""Debian's Python, in a virtual environment of the image.

There pip and apt do not overwrite each other's files.
"""

from __future__ import annotations

from toolkit.images.recipe.block import VENV, Block, BlockOutput, CheckCall


class Python(Block, frozen=True, kw_only=True):
    """``block = "python"``. Comes before every ``pip``."""

    def output(self, holds: frozenset[str] = frozenset()) -> BlockOutput:
        """Return what the definition gets from this step."""
        del holds
        return BlockOutput(
            name="python",
            detail=f"a virtual environment in {VENV}",
            packages=("python3", "python3-venv"),
            lines=(f"python3 -m venv {VENV}",),
            # All at once on every core, and so that an import checks no time stamp of a source.
            # Tests of packages are left out: a quarter of all files. A few templates are not valid
            # in this version of Python; they are never imported.
            finish=(
                "python3 -m compileall -qq -j 0 -x '/tests?/' --invalidation-mode unchecked-hash "
                f"{VENV}/lib || true",
            ),
            environment={"PYTHONNOUSERSITE": "1"},
            path=(f"{VENV}/bin",),
            checks=(
                CheckCall(
                    name="user-site", command="python3 user_site.py", scripts=("user_site.py",)
                ),
            ),
        )
