"""Remove a build's directory, also files of the subordinate ids of an ordinary user."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from toolkit.errors import ForbiddenError
from toolkit.images.host.kernel import namespace_command
from toolkit.images.host.privilege import namespace_ids

_TIMEOUT = 300  # seconds
MARKER = ".toolkit-workspace.json"  # tells whose directory it is


def clear(directory: Path) -> None:
    """Remove a build's directory, its marker last: what is left without it is never removed."""
    with suppress(OSError):
        for entry in list(directory.iterdir()):
            if entry.name != MARKER:
                remove(entry)
    remove(directory)


def remove(directory: Path) -> bool:
    """Remove a directory with its contents; return whether it is gone.

    The files of a user's subordinate ids can only be removed in a namespace that has these ids.
    ``shutil.rmtree`` ends at some depth of directories, so ``rm`` does it.
    """
    words = ("rm", "-rf", "--", str(directory.absolute()))
    _run(words)
    if directory.exists() and os.getuid() != 0:
        with suppress(ForbiddenError):
            _run((*namespace_command(namespace_ids()), *words))
    return not directory.exists()


def _run(words: Iterable[str]) -> None:
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            list(words),
            cwd="/",  # -m looks for modules in the current working directory first
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT,
            check=False,
        )
