"""Blocks of Debian packages: any, Open MPI and Python."""

from __future__ import annotations

from toolkit.images.recipe.block import VENV, Block, BlockOutput, CheckCall, require_debian_packages


class Apt(Block, frozen=True, kw_only=True):
    """``block = "apt"``: Debian packages that stay in the image.

    Attributes:
        packages: their names, each optionally with ``=version``.
    """

    packages: tuple[str, ...]

    def __post_init__(self) -> None:
        require_debian_packages(self.packages)

    def output(self) -> BlockOutput:
        """Return what the definition gets from this step."""
        return BlockOutput(name="apt", packages=self.packages)


class OpenMpi(Block, frozen=True, kw_only=True):
    """``block = "openmpi"``: Open MPI as Debian packages it, which starts under Slurm by PMIx."""

    def output(self) -> BlockOutput:
        """Return what the definition gets from this step."""
        check = CheckCall(name="openmpi", command="sh openmpi.sh", scripts=("openmpi.sh",))
        return BlockOutput(name="openmpi", packages=("openmpi-bin",), checks=(check,))


class Python(Block, frozen=True, kw_only=True):
    """``block = "python"``: Debian's Python, before every ``pip``.

    It is in a virtual environment of the image, where pip and apt do not overwrite each other's
    files.
    """

    def output(self) -> BlockOutput:
        """Return what the definition gets from this step."""
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
                    name="user-site",
                    command="user_site.py",
                    scripts=("user_site.py",),
                    is_python=True,
                ),
            ),
        )
