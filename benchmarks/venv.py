"""Make a virtual environment with the packages of an image, to measure without a container."""

from __future__ import annotations

import shutil
from pathlib import Path

from toolkit import shell
from toolkit.errors import NeedsInstallError
from toolkit.files import write_atomically
from toolkit.images.store.store import StoredImage
from toolkit.shell import Progress

_PACKAGES = ("torch", "numpy")
_INDEX = "https://download.pytorch.org/whl/cpu"


def made(cache: Path, image: StoredImage, progress: Progress) -> Path:
    """Return the directory of the environment; make it if needed.

    Raises:
        NeedsInstallError: the image's Python is not on this machine, or the contents of the image
            are unknown.
        CommandFailedError: pip could not install it; its last lines are in the details.
    """
    if image.manifest is None or "torch" not in image.manifest.packages.pip:
        raise NeedsInstallError(
            "the packages of this image are unknown, so they cannot be installed on the host",
            place=image.path,
        )
    held = image.manifest.packages
    minor = ".".join(held.apt.get("python3", "").split(".")[:2])
    wanted = [f"{name}=={held.pip[name]}" for name in _PACKAGES if name in held.pip]
    directory = cache / f"{image.manifest.name}-{held.pip['torch']}"
    listed = directory / "installed.txt"  # written last
    if listed.is_file() and listed.read_text(encoding="utf-8").split() == [minor, *wanted]:
        return directory
    progress.begin("venv", f"{', '.join(wanted)} for Python {minor}", expected=90)
    shutil.rmtree(directory, ignore_errors=True)
    cache.mkdir(parents=True, exist_ok=True)
    _empty(directory, minor)
    constraints = directory / "constraints.txt"
    constraints.write_text(
        "".join(f"{name}=={version}\n" for name, version in held.pip.items()), encoding="utf-8"
    )
    pip: list[str | Path] = [
        directory / "bin/pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--constraint",
        constraints,
    ]
    if not shell.run([*pip, *wanted], timeout=900, check=False).ok:
        shell.run([*pip, "--extra-index-url", _INDEX, *wanted], timeout=900)
    write_atomically(listed, "\n".join([minor, *wanted]) + "\n")
    progress.end()
    return directory


def _empty(directory: Path, minor: str) -> None:
    """Create an environment of Python ``minor``, preferably of the distribution's own."""
    candidates = [
        path
        for path in (
            f"/usr/bin/python{minor}",
            shutil.which(f"python{minor}"),
            shutil.which("python3"),
        )
        if path
    ]
    for python in dict.fromkeys(candidates):
        version = (
            shell.run(
                [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], check=False
            )
            if Path(python).exists()
            else None
        )
        if version is None or version.stdout.strip() != minor:
            continue
        if shell.run([python, "-m", "venv", directory], timeout=120, check=False).ok:
            return
        shutil.rmtree(directory, ignore_errors=True)
    raise NeedsInstallError(
        f"no Python {minor} with its module venv is here, which the image has",
        place="python3",
        next_step=f"apt-get install python{minor}-venv",
    )
