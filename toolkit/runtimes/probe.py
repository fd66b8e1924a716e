"""Print what a Python is and what it can import, as one line of JSON; import none of it.

Importing would take long, and may need a GPU. This is a program for other Pythons, from 3.6 on:
they are given its text, and it knows nothing of our package. Its arguments are the frameworks whose
versions are asked for.
"""

import json
import os
import shutil
import subprocess
import sys

MARK = "toolkit-modules: "


def of_name(place: str, entry: str) -> str:
    """Return the module that a file or directory of a search path brings; empty: it brings none."""
    stem, dot, suffix = entry.partition(".")
    if dot:
        return stem if suffix.rpartition(".")[2] in ("py", "pyc", "so") else ""
    is_module = stem != "__pycache__" and not os.path.isfile(os.path.join(place, entry))
    return stem if is_module else ""


def listing(place: str) -> "list[str]":
    """Return the names in a directory or at the top of an archive.

    There are none if it cannot be read, or by a Python without zlib.
    """
    try:
        if not os.path.isfile(place):
            return os.listdir(place)
        import zipfile

        with zipfile.ZipFile(place) as archive:
            return [name.partition("/")[0] for name in archive.namelist()]
    except Exception:  # of a broken archive it is an error of the module that may be missing
        return []


def declared(place: str, entries: "list[str]") -> "set[str]":
    """Return what the packages installed in a directory say that they bring.

    Editable packages lie elsewhere and may be found by a finder of their own.
    """
    modules = set()
    for entry in entries:
        if entry.endswith((".dist-info", ".egg-info")):
            try:
                with open(os.path.join(place, entry, "top_level.txt"), encoding="utf-8") as stream:
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
    modules = set(sys.builtin_module_names) | mapped()
    for place in sys.path:
        if place:
            entries = listing(place)
            modules |= {of_name(place, entry) for entry in entries} | declared(place, entries)
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
