"""The contents of an image: a script that the image runs, and the meaning of its output.

The script needs a shell; Debian's packages are listed by dpkg if the image has it, Python's by the
interpreter on the image's PATH.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from toolkit.config import package_directory
from toolkit.errors import BuildError
from toolkit.images.store.settings import run_in_image
from toolkit.model.base import Model
from toolkit.model.image import Packages, Python
from toolkit.quoting import shell

_TIMEOUT = 300.0  # seconds
_MARK = "toolkit-contents:"  # begins each line of ours: an image's shell may print a greeting

_PYTHON = """\
import importlib.metadata, importlib.util, json, os, sys
packages = []
for package in importlib.metadata.distributions():
    meta = package.metadata
    if not meta["Name"]:
        continue
    lines = meta.get_all("Classifier") or []
    classified = [line.split(" :: ")[-1] for line in lines if line.startswith("License :: ")]
    stated = meta.get("License-Expression") or (meta.get("License") or "").strip()
    is_short = stated and "\\n" not in stated and len(stated) < 100
    license = stated if is_short else ", ".join(classified)
    wheel = (package.read_text("WHEEL") or "").splitlines()
    tags = [line[5:] for line in wheel if line.startswith("Tag: ")]
    facts = {"name": meta["Name"], "version": package.version, "license": license, "tags": tags}
    packages.append(facts)
horovod = {}
try:
    spec = importlib.util.find_spec("horovod")
    with open(os.path.join(os.path.dirname(spec.origin), "metadata.json")) as stream:
        horovod = json.load(stream)
except Exception:
    pass
facts = {"version": sys.version.split()[0], "packages": packages, "horovod": horovod}
print("MARK python " + json.dumps(facts))
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

# Places of a Python besides PATH.
_PYTHONS = (
    "python3 python /usr/bin/python3 /usr/local/bin/python3 /opt/conda/bin/python"
    " /opt/venv/bin/python3"
)
_IMPORTABLE = (package_directory("runtimes") / "probe.py").read_text(encoding="utf-8")
_MODULES = "toolkit-modules: "  # as that program prints it

SCRIPT = f"""\
if command -v dpkg-query >/dev/null 2>&1; then dpkg-query -W -f {shell(_DPKG)}; fi
if [ -r /etc/os-release ]; then . /etc/os-release; echo "{_MARK} system $PRETTY_NAME"; fi
if command -v python3 >/dev/null 2>&1; then python3 -s -B -c {shell(_PYTHON)}; fi
for python in {_PYTHONS}; do
    path=$(command -v "$python") || continue
    file="${{path%/*}}:$(readlink -f "$path")"
    case " $asked " in *" $file "*) continue ;; esac
    asked="$asked $file"
    "$path" -s -B -c {shell(_IMPORTABLE)}
done
echo "{_MARK} end"
"""


class DebianPackage(Model, frozen=True, kw_only=True):
    """A package of Debian, with the source package that it was built from."""

    name: str
    version: str
    architecture: str
    source: str
    source_version: str


class PythonPackage(Model, frozen=True, kw_only=True):
    """A package of Python.

    Attributes:
        license: The license as the package states it, in one line; empty if it states none.
        tags: The tags of its wheel: ``cp311-cp311-linux_x86_64``.
    """

    name: str
    version: str
    license: str = ""
    tags: tuple[str, ...] = ()


class _Python(Model, frozen=True, kw_only=True):
    version: str = ""
    packages: tuple[PythonPackage, ...] = ()
    horovod: dict[str, Any] = {}


class _Modules(Python, frozen=True, kw_only=True):
    prefix: str


class Contents(Model, frozen=True, kw_only=True):
    """The contents of an image.

    Attributes:
        system: The operating system's own name.
        python: The version of its Python; empty if it has none.
        debian: Its Debian packages, by name.
        pip: Its Python packages, by name.
        horovod: The notes of Horovod's build.
        pythons: Every Python with its modules, the one on PATH first.
    """

    system: str = ""
    python: str = ""
    pythons: tuple[Python, ...] = ()
    debian: tuple[DebianPackage, ...] = ()
    pip: tuple[PythonPackage, ...] = ()
    horovod: dict[str, Any] = {}

    @property
    def packages(self) -> Packages:
        """Names and versions only.

        Of two Python packages with one name, the first on Python's path counts: Python imports it.
        """
        several = Counter(package.name for package in self.debian)
        return Packages(
            apt={
                # A name that tells apart the packages of two architectures.
                package.name + (f":{package.architecture}" if several[package.name] > 1 else ""): (
                    package.version
                )
                for package in self.debian
            },
            pip={package.name: package.version for package in reversed(self.pip)},
        )


def read_contents(path: str) -> Contents:
    """Return the contents of the image at ``path``.

    Raises:
        BuildError: The image does not run, or its output is malformed.
        NeedsInstallError: Apptainer is not installed.
    """
    result = run_in_image(path, ["/bin/sh", "-c", SCRIPT], timeout=_TIMEOUT)
    reason = "the image could not list its contents"
    try:
        contents = parse(result.stdout)
    except ValueError as error:
        contents, reason = None, f"the image's list of its contents cannot be read: {error}"
    if contents is None:
        raise BuildError(reason, place=path, details=result.tail())
    return contents


def parse(output: str) -> Contents | None:
    """Parse the script's output; return None if the script did not complete.

    Raises:
        ValueError: Another program printed lines that only the script prints.
    """
    lines = [
        line[len(_MARK) + 1 :].partition(" ")[::2]
        for line in output.splitlines()
        if line.startswith(_MARK)
    ]
    if ("end", "") not in lines:
        return None
    texts = dict(reversed(lines))  # the first of each kind
    modules = (
        line.removeprefix(_MODULES) for line in output.splitlines() if line.startswith(_MODULES)
    )
    try:
        python = msgspec.json.decode(texts.get("python", "{}"), type=_Python)
        listed = [msgspec.json.decode(line, type=_Modules) for line in modules]
    except RecursionError as error:
        raise ValueError(str(error)) from None
    pythons: dict[tuple[str, str], _Modules] = {}
    for each in listed:
        pythons.setdefault((each.prefix, each.version), each)
    packages = [text.split("\t") for kind, text in lines if kind == "apt"]
    debian = [
        DebianPackage(
            name=name,
            version=version,
            architecture=architecture,
            source=source,
            source_version=source_version,
        )
        for status, name, version, architecture, source, source_version in packages
        if status == "installed"
    ]
    return Contents(
        system=texts.get("system", ""),
        python=python.version,
        debian=tuple(sorted(debian, key=lambda package: (package.name, package.architecture))),
        pip=tuple(sorted(python.packages, key=lambda package: package.name.lower())),
        horovod=python.horovod,
        pythons=tuple(
            Python(path=each.path, version=each.version, modules=each.modules)
            for each in pythons.values()
        ),
    )
