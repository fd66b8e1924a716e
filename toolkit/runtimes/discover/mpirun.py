"""The MPI of this machine, as far as a launcher needs to know: which mpirun is on PATH."""

from __future__ import annotations

from toolkit import shell
from toolkit.errors import CommandFailedError


def mpirun() -> str | None:
    """How the mpirun on PATH introduces itself, such as ``mpirun (Open MPI) 4.1.4``; None where there is none, or it says nothing."""
    if shell.which("mpirun") is None:
        return None
    try:
        said = shell.run(["mpirun", "--version"], timeout=20, check=False)
    except CommandFailedError:
        return None
    return next((line.strip() for line in said.stdout.splitlines() if line.strip()), None)
