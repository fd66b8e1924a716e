"""Install the programs that we compare with, in a virtual environment of their own.

Nothing of ours depends on them.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from toolkit import shell
from toolkit.files import write_atomically
from toolkit.shell import Progress

# Pinned, so that a bar means the same next year. torchx plans and renders without torch, which is
# not installed.
PINS = {"torchx": "0.7.0", "hpccm": "26.5.0", "submitit": "1.5.4"}


def cache_directory() -> Path:
    """Return the directory of the benchmark's files, below the user's cache directory."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "toolkit" / "bench"


def name(peer: str) -> str:
    """``torchx 0.7.0``."""
    return f"{peer} {PINS[peer]}"


def program(peer: str) -> str:
    """Return a program of the peers' environment, such as ``torchx`` or ``python``."""
    return str(cache_directory() / "peers" / "bin" / peer)


def install(progress: Progress) -> None:
    """Install the peers, unless these very versions are there.

    Raises:
        CommandFailedError: pip could not install them; its last lines are in the details.
    """
    directory = cache_directory() / "peers"
    # Written last: an installation that was interrupted has no list, and is made again.
    listed = directory / "installed.txt"
    wanted = [f"{peer}=={version}" for peer, version in PINS.items()]
    if listed.is_file() and listed.read_text(encoding="utf-8").split() == wanted:
        return
    progress.begin("peers", ", ".join(name(peer) for peer in PINS), expected=20)
    shutil.rmtree(directory, ignore_errors=True)
    shell.run([sys.executable, "-m", "venv", directory], timeout=120)
    shell.run(
        [directory / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", *wanted],
        timeout=900,
    )
    write_atomically(listed, "\n".join(wanted) + "\n")
    progress.end()
