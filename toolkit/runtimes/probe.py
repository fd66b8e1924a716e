"""Print what a Python is and what it could import, as one line of JSON.

Nothing is imported: that would take long, and may need a GPU. This is a program for other Pythons,
from 3.6 on: they are given its text, and it uses nothing of our package.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec


def version(name: str) -> str:
    """Return the version of the package that brings a module.

    It is empty if the package has another name, or Python is too old to know.
    """
    try:
        from importlib import metadata
    except ImportError:
        return ""
    for package in (name, name + "-cpu", name + "-gpu"):
        try:
            return str(metadata.version(package))
        except metadata.PackageNotFoundError:
            pass
    return ""


def is_importable(name: str) -> bool:
    """Return whether a module would be found."""
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def on_path(program: str) -> str:
    """Return the path of a program; empty if it is not on PATH."""
    places = [place + "/" + program for place in os.environ.get("PATH", "").split(os.pathsep)]
    return next((place for place in places if os.access(place, os.X_OK)), "")


def first_line(program: str) -> str:
    """Return the first line of a program's ``--version``; empty if there is none."""
    if not program:
        return ""
    try:
        output = subprocess.check_output(
            [program, "--version"], stderr=subprocess.DEVNULL, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return next(
        (line.strip() for line in output.decode("utf-8", "replace").splitlines() if line.strip()),
        "",
    )


def main(names: "list[str]") -> None:
    """Print the answer; ``names`` are the modules to search for."""
    answer = {
        "version": "{}.{}.{}".format(*sys.version_info[:3]),
        "python": sys.executable,
        "prefix": sys.prefix,
        "venv": sys.prefix != getattr(sys, "base_prefix", sys.prefix),
        "frameworks": {name: version(name) for name in names if is_importable(name)},
        "torchrun": bool(on_path("torchrun")),
        "mpirun": first_line(on_path("mpirun")),
    }
    print("found: " + json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1:])
