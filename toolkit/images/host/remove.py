"""Remove a build's directory, also files of the subordinate ids of an ordinary user.

The user cannot remove those files directly: ``python -m toolkit.images.host.remove DIRECTORY``
does it as root of a user namespace that has these ids. ``unshare --map-auto`` would do the same
where util-linux is new enough.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

_SOURCE = Path(__file__).resolve().parents[3]  # the directory of our own package
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
    """Remove a directory with its contents; return whether it is gone."""
    _remove(directory)
    if directory.exists() and os.getuid() != 0:
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                # In /, since -m looks for modules in the current working directory first.
                [sys.executable, "-m", "toolkit.images.host.remove", str(directory.absolute())],
                cwd="/",
                env={**os.environ, "PYTHONPATH": str(_SOURCE)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_TIMEOUT,
                check=False,
            )
    return not directory.exists()


def main(directory: str) -> None:
    """Remove a directory as root of a user namespace."""
    from toolkit.images.host.kernel import enter
    from toolkit.images.host.privilege import namespace_ids

    enter(*namespace_ids())
    _remove(Path(directory))


def _remove(directory: Path) -> None:
    """Remove what can be removed; ``shutil.rmtree`` ends at some depth of directories."""
    words = ["rm", "-rf", "--", str(directory.absolute())]
    subprocess.run(words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


if __name__ == "__main__":
    main(sys.argv[1])
