"""Says what a Python is and what it could import, as one line of JSON. It imports none of that: it would take long, and may need a GPU.

A program for other Pythons, from 3.6 on: it is given to them as text, and knows nothing of our
package.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec


def version(name: str) -> str:
    """Of the package that brings a module, empty where its name is not that of the module, or Python is too old to tell."""
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


def there(name: str) -> bool:
    """Whether a module would be found."""
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def on_path(program: str) -> str:
    """Where a program is; empty: nowhere."""
    places = [place + "/" + program for place in os.environ.get("PATH", "").split(os.pathsep)]
    return next((place for place in places if os.access(place, os.X_OK)), "")


def introduced(program: str) -> str:
    """How a program introduces itself; empty where it does not."""
    if not program:
        return ""
    try:
        said = subprocess.check_output(
            [program, "--version"], stderr=subprocess.DEVNULL, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return next(
        (line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()), ""
    )


def main(names: "list[str]") -> None:
    """Print it all; ``names`` are the modules that are looked for."""
    found = {
        "version": "{}.{}.{}".format(*sys.version_info[:3]),
        "python": sys.executable,
        "prefix": sys.prefix,
        "venv": sys.prefix != getattr(sys, "base_prefix", sys.prefix),
        "frameworks": {name: version(name) for name in names if there(name)},
        "torchrun": bool(on_path("torchrun")),
        "mpirun": introduced(on_path("mpirun")),
    }
    print("found: " + json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
