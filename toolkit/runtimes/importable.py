"""Lists every top-level module that a Python can import, as one line of JSON; imports none.

A program for other Pythons, from 3.6 on: it is given to them as text and knows nothing of our
package.
"""

import json
import os
import sys
import zipfile

MARK = "toolkit-modules: "


def of_name(place: str, entry: str) -> str:
    """Return the module that a file or directory of a search path brings; empty: it brings none."""
    stem, dot, suffix = entry.partition(".")
    if dot:
        return stem if suffix.rpartition(".")[2] in ("py", "pyc", "so") else ""
    is_module = stem != "__pycache__" and not os.path.isfile(os.path.join(place, entry))
    return stem if is_module else ""


def listing(place: str) -> "list[str]":
    """Return the names in a directory or at the top of an archive; none if it cannot be read."""
    try:
        if os.path.isfile(place):
            with zipfile.ZipFile(place) as archive:
                return [name.partition("/")[0] for name in archive.namelist()]
        return os.listdir(place)
    except (OSError, ValueError, zipfile.BadZipFile):
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


if __name__ == "__main__":
    answer = {
        "path": sys.executable,
        "prefix": sys.prefix,
        "version": "{}.{}.{}".format(*sys.version_info[:3]),
        "modules": importable(),
    }
    print(MARK + json.dumps(answer))
