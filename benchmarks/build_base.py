"""Make the base of the measured builds: the contents of an image, with copies of its libraries."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from toolkit import shell
from toolkit.errors import ImageMissingError
from toolkit.images.builder.apptainer.compose import open_squashfs
from toolkit.images.store import store

BASE = "pytorch_cpu"  # whose contents are the first part of the base
SIZE = 2_100_000_000  # bytes of the base, at least
WHEELS = "pandas==2.2.3"


def large_directory(cache: Path) -> Path:
    """Return the first directory with room for five times the base.

    It holds the contents twice, and the packed images of them.
    """
    for directory in (cache, Path("/var/tmp")):
        if shutil.disk_usage(directory).free > 5 * SIZE:
            return directory
    return cache


def made(directory: Path) -> Path:
    """Make a directory and return it."""
    directory.mkdir()
    return directory


def unpack(place: Path) -> Path:
    """Unpack the image, and add to it."""
    image = store.find(BASE)
    offset, _ = open_squashfs(image.path)
    root = place / "base"
    shell.run(
        ["unsquashfs", "-quiet", "-no-progress", "-dest", root, "-offset", str(offset), image.path]
    )
    wheels = made(root / "opt/bench-wheels")
    shell.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--dest",
            wheels,
            "--python-version",
            _python(root),
            "--only-binary",
            ":all:",
            WHEELS,
        ]
    )
    libraries = sorted(
        (path for path in root.rglob("*.so*") if path.is_file() and not path.is_symlink()),
        key=lambda path: -path.stat().st_size,
    )
    missing = SIZE - sum(
        path.lstat().st_size for path in root.rglob("*") if not path.is_symlink() and path.is_file()
    )
    if not libraries:
        raise ImageMissingError(f"the image {BASE} has no libraries", place=image.path)
    copies = made(root / "opt/bench-copies")
    shift = 0
    while missing > 0:
        shift += 1
        table = bytes((byte + shift) % 256 for byte in range(256))
        for path in libraries[:20]:
            if missing > 0:
                (copies / f"{shift}-{path.name}").write_bytes(path.read_bytes().translate(table))
                missing -= path.stat().st_size
    return root


def _python(root: Path) -> str:
    """``3.11``, of the base's Python."""
    return next((root / "opt/venv/lib").glob("python3.*")).name.removeprefix("python")
