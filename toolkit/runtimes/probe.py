"""Print what a Python is and what it can import, as one line of JSON; import none of it.

Importing would take long, and may need a GPU. This is a program for other Pythons, from 3.6 on:
they are given its text, and it knows nothing of our package. Its arguments are the frameworks whose
versions are asked for.
"""

import glob
import json
import os
import pkgutil
import shutil
import subprocess
import sys

MARK = "toolkit-modules: "


def declared(place: str) -> "set[str]":
    """Return what the packages installed in a directory say that they bring.

    Editable packages lie elsewhere and may be found by a finder of their own.
    """
    modules = set()
    for kind in ("dist-info", "egg-info"):
        for path in glob.glob(os.path.join(glob.escape(place), "*." + kind, "top_level.txt")):
            try:
                with open(path, encoding="utf-8") as stream:
                    modules |= {line.strip() for line in stream}
            except (OSError, ValueError):
                continue
    return modules


def mapped() -> "set[str]":
    """Return what the finders of editable packages know; Python has started them already."""
    finders = [module for name, module in sys.modules.items() if name.startswith("__editable__")]
    tables = [
        getattr(module, table, {}) for module in finders for table in ("MAPPING", "NAMESPACES")
    ]
    return {str(name).partition(".")[0] for table in tables for name in table}


def importable() -> "list[str]":
    """Return the names of all modules, sorted."""
    places = [place for place in sys.path if place]
    modules = set(sys.builtin_module_names) | mapped()
    modules |= {module[1] for module in pkgutil.iter_modules(places)}
    for place in places:
        # A directory without __init__.py is a package, too.
        directories = glob.glob(os.path.join(glob.escape(place), "*", ""))
        modules |= {os.path.basename(path[:-1]) for path in directories} | declared(place)
    modules.discard("__pycache__")
    if "setuptools" in modules:
        modules.add("distutils")  # setuptools brings it back where Python has lost it
    return sorted(name for name in modules if name.isidentifier())


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


def mpirun() -> str:
    """Return the first line of ``mpirun --version``; empty if there is none."""
    try:
        output = subprocess.check_output(
            ["mpirun", "--version"], stderr=subprocess.DEVNULL, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = output.decode("utf-8", "replace").splitlines()
    return next((line.strip() for line in lines if line.strip()), "")


def main(frameworks: "list[str]") -> None:
    """Print the answer, which is longer if frameworks are asked for."""
    modules = importable()
    answer: dict[str, object] = {
        "path": sys.executable,
        "prefix": sys.prefix,
        "version": "{}.{}.{}".format(*sys.version_info[:3]),
        "modules": modules,
    }
    if frameworks:
        answer["venv"] = sys.prefix != getattr(sys, "base_prefix", sys.prefix)
        answer["frameworks"] = {name: version(name) for name in frameworks if name in modules}
        answer["torchrun"], answer["mpirun"] = shutil.which("torchrun") is not None, mpirun()
    print(MARK + json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1:])
