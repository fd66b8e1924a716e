"""What an image says of its contents: one script that it runs, and what its output means. Pure: the running is done by ``builders``.

The script needs a shell; Debian's packages are asked of dpkg where there is one, Python's of the
interpreter that the image's PATH has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from toolkit.model.base import Model
from toolkit.model.image import Packages, Python
from toolkit.quoting import shell
from toolkit.resources import package_directory

_MARK = "toolkit-contents:"  # begins each line of ours: an image's shell may greet

_PYTHON = """\
import importlib.metadata, importlib.util, json, os, sys
found = []
for one in importlib.metadata.distributions():
    meta = one.metadata
    if not meta["Name"]:
        continue
    classified = [line.split(" :: ")[-1] for line in meta.get_all("Classifier") or [] if line.startswith("License :: ")]
    stated = meta.get("License-Expression") or (meta.get("License") or "").strip()
    licence = stated if stated and "\\n" not in stated and len(stated) < 100 else ", ".join(classified)
    tags = [line[5:] for line in (one.read_text("WHEEL") or "").splitlines() if line.startswith("Tag: ")]
    found.append({"name": meta["Name"], "version": one.version, "licence": licence, "tags": tags})
horovod = {}
try:
    spec = importlib.util.find_spec("horovod")
    with open(os.path.join(os.path.dirname(spec.origin), "metadata.json")) as stream:
        horovod = json.load(stream)
except Exception:
    pass
print("MARK python " + json.dumps({"version": sys.version.split()[0], "packages": found, "horovod": horovod}))
""".replace("MARK", _MARK)

_FIELDS = (
    "db:Status-Status",
    "Package",
    "Version",
    "Architecture",
    "source:Package",
    "source:Version",
)
_DPKG = f"{_MARK} apt " + "\\t".join(f"${{{field}}}" for field in _FIELDS) + "\\n"

# Where an image may have a Python besides that on PATH.
_PYTHONS = "python3 python /usr/bin/python3 /usr/local/bin/python3 /opt/conda/bin/python /opt/venv/bin/python3"
_IMPORTABLE = (package_directory("runtimes/discover") / "importable.py").read_text(encoding="utf-8")
_MODULES = "toolkit-modules: "  # as that program has it

SCRIPT = f"""\
if command -v dpkg-query >/dev/null 2>&1; then dpkg-query -W -f {shell(_DPKG)}; fi
if [ -r /etc/os-release ]; then . /etc/os-release; echo "{_MARK} system $PRETTY_NAME"; fi
if command -v python3 >/dev/null 2>&1; then python3 -s -B -c {shell(_PYTHON)}; fi
for python in {_PYTHONS}; do
    if command -v "$python" >/dev/null 2>&1; then "$python" -s -B -c {shell(_IMPORTABLE)}; fi
done
echo "{_MARK} end"
"""


class DebianPackage(Model, frozen=True, kw_only=True):
    """A package of Debian. ``source`` and ``source_version``: of the source package that it was built from."""

    name: str
    version: str
    architecture: str
    source: str
    source_version: str


class PythonPackage(Model, frozen=True, kw_only=True):
    """A package of Python.

    Attributes:
        licence: as it states it; empty where it does not, in a line.
        tags: of its wheel: ``cp311-cp311-linux_x86_64``.
    """

    name: str
    version: str
    licence: str = ""
    tags: tuple[str, ...] = ()


class _Python(Model, frozen=True, kw_only=True):
    version: str
    packages: tuple[PythonPackage, ...]
    horovod: dict[str, Any]


class _Modules(Model, frozen=True, kw_only=True):
    path: str
    prefix: str
    version: str
    modules: tuple[str, ...]


class Contents(Model, frozen=True, kw_only=True):
    """What is in an image.

    Attributes:
        system: its operating system, as it calls itself.
        python: the version of its Python; empty where there is none.
        debian, pip: its packages, by name.
        horovod: what Horovod's build noted of itself.
        pythons: every Python with its modules, that on PATH first.
    """

    system: str = ""
    python: str = ""
    pythons: tuple[Python, ...] = ()
    debian: tuple[DebianPackage, ...] = ()
    pip: tuple[PythonPackage, ...] = ()
    horovod: dict[str, Any] = {}

    @property
    def packages(self) -> Packages:
        """Names and versions only. Of two packages of Python with one name, the first on Python's path: that is the one it imports."""
        return Packages(
            apt={_apt_name(one, self.debian): one.version for one in self.debian},
            pip={one.name: one.version for one in reversed(self.pip)},
        )


def _apt_name(package: DebianPackage, known: Iterable[DebianPackage]) -> str:
    """A package that is there for two architectures is two packages."""
    architectures = {one.architecture for one in known if one.name == package.name}
    return f"{package.name}:{package.architecture}" if len(architectures) > 1 else package.name


def parse(said: str) -> Contents | None:
    """What the script said; None where it did not come to its end.

    Raises:
        ValueError: something else said what only the script says.
    """
    lines = [
        line[len(_MARK) + 1 :].partition(" ")[::2]
        for line in said.splitlines()
        if line.startswith(_MARK)
    ]
    if ("end", "") not in lines:
        return None
    try:
        python = next(
            (msgspec.json.decode(text, type=_Python) for kind, text in lines if kind == "python"),
            None,
        )
    except RecursionError as error:
        raise ValueError(str(error)) from None
    return Contents(
        system=next((text for kind, text in lines if kind == "system"), ""),
        python=python.version if python else "",
        debian=tuple(
            sorted(
                _debian([text for kind, text in lines if kind == "apt"]),
                key=lambda one: (one.name, one.architecture),
            )
        ),
        pip=tuple(sorted(python.packages, key=lambda one: one.name.lower())) if python else (),
        horovod=python.horovod if python else {},
        pythons=_pythons(said),
    )


def _pythons(said: str) -> tuple[Python, ...]:
    """Return every Python that told its modules; one that goes by several names is listed once."""
    lines = (line.removeprefix(_MODULES) for line in said.splitlines() if line.startswith(_MODULES))
    found = [msgspec.json.decode(line, type=_Modules) for line in lines]
    distinct = {(one.prefix, one.version): one for one in reversed(found)}
    kept = [one for one in found if distinct.get((one.prefix, one.version)) is one]
    return tuple(Python(path=one.path, version=one.version, modules=one.modules) for one in kept)


def _debian(lines: Iterable[str]) -> Iterable[DebianPackage]:
    for line in lines:
        status, name, version, architecture, source, source_version = line.split("\t")
        if status == "installed":
            yield DebianPackage(
                name=name,
                version=version,
                architecture=architecture,
                source=source,
                source_version=source_version,
            )
