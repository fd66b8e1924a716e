"""Asking an image what is in it: one start of a container."""

from __future__ import annotations

import os
from pathlib import Path

from toolkit import shell
from toolkit.errors import BuildError, NeedsInstallError
from toolkit.images.build.contents import SCRIPT, Contents, parse
from toolkit.images.store.settings import temporary_settings

_PATIENCE = 300.0  # seconds


def contents(path: str) -> Contents:
    """What is in the image at ``path``.

    Raises:
        BuildError: it does not run, or says something else.
        NeedsInstallError: there is no Apptainer.
    """
    program = shell.which("apptainer") or shell.which("singularity")
    if program is None:
        raise NeedsInstallError("Apptainer is not installed here", next_step="toolkit setup")
    # Nothing of this machine may get into the answer: no home, no variables, no /tmp.
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(Path.home()),
        "LC_ALL": "C.UTF-8",
    }
    argv = [
        program,
        "--silent",
        "exec",
        "--cleanenv",
        "--containall",
        path,
        "/bin/sh",
        "-c",
        SCRIPT,
    ]
    with temporary_settings() as settings:
        said = shell.run(argv, env=environment | settings, cwd="/", timeout=_PATIENCE, check=False)
    try:
        found = parse(said.stdout)
    except ValueError as error:
        raise BuildError(
            f"what the image says of its contents cannot be read: {error}",
            place=path,
            details=said.tail(),
        ) from None
    if found is None:
        raise BuildError(
            "the image could not be asked what is in it", place=path, details=said.tail()
        )
    return found
