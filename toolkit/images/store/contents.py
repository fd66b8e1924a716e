"""The contents of an image: a script that the image runs, and the meaning of its output.

The script needs a shell; Debian's packages are listed by dpkg if the image has it, Python's by the
interpreter on the image's PATH.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

from toolkit.config import package_directory
from toolkit.errors import BuildError
from toolkit.images.store.settings import run_in_image
from toolkit.model.base import Model
from toolkit.model.image import Packages, Python
from toolkit.quoting import shell

_TIMEOUT = 300.0  # seconds
MARK = "toolkit-contents:"  # begins each line of ours: an image's shell may print a greeting
_MODULES = "toolkit-modules: "  # begins a line of ``runtimes/probe.py``
_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")
_CUDA_PACKAGE = re.compile("nvidia[-_]cuda[-_]runtime")

_PYTHON = """\
import importlib.util, json, os, sys
try:
    from importlib.metadata import distributions
except ImportError:  # before Python 3.8
    distributions = tuple
def say(kind, value):
    print("MARK " + kind + " " + value)
def text(package, file):
    try:
        spec = importlib.util.find_spec(package)
        with open(os.path.join(os.path.dirname(spec.origin), file)) as stream:
            return stream.read()
    except Exception:
        return ""
say("python", sys.version.split()[0])
for package in distributions():
    meta = package.metadata or {}
    if not (meta.get("Name") and meta.get("Version")):
        continue
    lines = meta.get_all("Classifier") or []
    classified = [line.split(" :: ")[-1] for line in lines if line.startswith("License :: ")]
    stated = meta.get("License-Expression") or (meta.get("License") or "").strip()
    is_short = stated and "\\n" not in stated and len(stated) < 100
    license = stated if is_short else ", ".join(classified)
    facts = {"name": meta["Name"], "version": package.version, "license": license}
    say("pip", json.dumps(facts))
say("horovod", " ".join(text("horovod", "metadata.json").split()))
for line in text("torch", "version.py").splitlines():
    if line.startswith("cuda"):
        say("cuda", line)
""".replace("MARK", MARK)

_FIELDS = (
    "db:Status-Status",
    "Package",
    "Version",
    "Architecture",
    "source:Package",
    "source:Version",
)
_DPKG = f"{MARK} apt " + "\\t".join(f"${{{field}}}" for field in _FIELDS) + "\\n"

# Places of a Python besides PATH.
_PYTHONS = (
    "python3 python /usr/bin/python3 /usr/local/bin/python3 /opt/conda/bin/python"
    " /opt/venv/bin/python3"
)
_IMPORTABLE = (package_directory("runtimes") / "probe.py").read_text(encoding="utf-8")
# The file in which NVIDIA's CUDA toolkit says its version, newer and older releases.
_CUDA_FILES = "/usr/local/cuda/version.json /usr/local/cuda/version.txt"
_FRAMEWORKS = (
    *("torch", "torchvision", "tensorflow", "jax", "mxnet", "horovod"),
    *("ray", "numpy", "sklearn", "mpi4py"),
)

# Lists what a program has in its environment, with a zero after each.
VARIABLES = f"""\
printf '{MARK} variables '
cat /proc/self/environ
echo
echo "{MARK} end"
"""
SCRIPT = f"""\
if command -v dpkg-query >/dev/null 2>&1; then dpkg-query -W -f {shell(_DPKG)}; fi
if [ -r /etc/os-release ]; then (. /etc/os-release; echo "{MARK} system $PRETTY_NAME"); fi
if [ -d /usr/local/cuda/compat ]; then echo "{MARK} has compat"; fi
IFS=:
for place in $PATH; do
    for file in "$place"/*; do
        if [ -f "$file" ] && [ -x "$file" ]; then echo "{MARK} program ${{file##*/}}"; fi
    done
done
unset IFS
echo "{MARK} cuda $CUDA_VERSION"
for file in {_CUDA_FILES}; do
    if [ -r $file ]; then while read -r line; do echo "{MARK} cuda $line"; done <$file; fi
done
if command -v python3 >/dev/null 2>&1; then python3 -s -B -c {shell(_PYTHON)}; fi
for python in {_PYTHONS}; do
    path=$(command -v "$python") || continue
    file="${{path%/*}}:$(readlink -f "$path")"
    case " $asked " in *" $file "*) continue ;; esac
    asked="$asked $file"
    "$path" -s -B -c {shell(_IMPORTABLE)}
done
{VARIABLES}"""


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
    """

    name: str
    version: str
    license: str = ""


class _Modules(Python, frozen=True, kw_only=True):
    prefix: str


class Contents(Model, frozen=True, kw_only=True):
    """The contents of an image.

    Attributes:
        system: The operating system's own name.
        python: The version of its Python 3; empty if it has none that runs.
        debian: Its Debian packages, by name.
        pip: Its Python packages, by name.
        horovod: The notes of Horovod's build.
        pythons: Every Python with its modules, the one on PATH first.
        variables: The variables that a program has in it.
        programs: The names of all programs on PATH, sorted.
        cuda: The version of CUDA's toolkit, else of Python's packages; empty if there is none.
        compat: Whether it has CUDA's compat package, by which data-center GPUs run newer CUDA on
            older drivers.
    """

    system: str = ""
    python: str = ""
    pythons: tuple[Python, ...] = ()
    debian: tuple[DebianPackage, ...] = ()
    pip: tuple[PythonPackage, ...] = ()
    horovod: dict[str, Any] = {}
    variables: dict[str, str] = {}
    programs: tuple[str, ...] = ()
    cuda: str = ""
    compat: bool = False

    @property
    def modules(self) -> tuple[str, ...]:
        """The frameworks and related modules that its Python 3 finds."""
        importable = self.pythons[0].modules if self.python and self.pythons else ()
        return tuple(name for name in _FRAMEWORKS if name in importable)

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


def read_contents(path: str, script: str = SCRIPT) -> Contents:
    """Return the contents of the image at ``path``, or what else a script lists of them.

    Raises:
        BuildError: The image does not run, or its output is malformed.
        NeedsInstallError: Apptainer is not installed.
    """
    result = run_in_image(path, ["/bin/sh", "-c", script], timeout=_TIMEOUT)
    return require_contents(path, result.stdout.splitlines(), result.tail())


def require_contents(path: str, lines: Iterable[str], tail: Iterable[str] = ()) -> Contents:
    """Return the contents that an image listed in its output, which ends with ``tail``.

    Raises:
        BuildError: The list is not complete, or malformed.
    """
    try:
        contents = parse(lines)
    except ValueError as error:
        reason = f"the image's list of its contents cannot be read: {error}"
    else:
        if contents is not None:
            return contents
        reason = "the image could not list its contents"
    raise BuildError(reason, place=path, details=tuple(tail))


def is_listed(line: str) -> bool:
    """Return whether a line is of the list of contents."""
    return line.startswith((MARK, _MODULES)) or "\0" in line


def parse(output: Iterable[str]) -> Contents | None:
    """Parse the lines that the script prints; return None if it did not complete.

    Raises:
        ValueError: Another program printed lines that only the script prints.
    """
    listed: dict[str, list[str]] = defaultdict(list)
    for line in output:
        mark, _, text = line.partition(" ")
        if f"{mark} " == _MODULES:
            listed["modules"].append(text)
        elif mark == MARK:
            kind, _, value = text.partition(" ")
            listed[kind].append(value)
        elif "\0" in line:  # a value of a variable has several lines
            listed["variables"].append(line)
    if "end" not in listed:
        return None
    try:
        modules = [msgspec.json.decode(text, type=_Modules) for text in listed["modules"]]
        pip = [msgspec.json.decode(text, type=PythonPackage) for text in listed["pip"]]
        horovod = msgspec.json.decode("".join(listed["horovod"][:1]) or "{}", type=dict[str, Any])
    except RecursionError as error:
        raise ValueError(str(error)) from None
    pythons: dict[tuple[str, str], _Modules] = {}
    for each in modules:
        pythons.setdefault((each.prefix, each.version), each)
    debian = [
        DebianPackage(
            name=name,
            version=version,
            architecture=architecture,
            source=source,
            source_version=source_version,
        )
        for status, name, version, architecture, source, source_version in (
            text.split("\t") for text in listed["apt"]
        )
        if status == "installed"
    ]
    runtimes = [each.version for each in pip if _CUDA_PACKAGE.match(each.name)]
    cuda = [_VERSION.search(text) for text in (*listed["cuda"], *runtimes)]
    pairs = (text.partition("=") for text in "\n".join(listed["variables"]).split("\0"))
    return Contents(
        system="".join(listed["system"][:1]),
        python="".join(listed["python"][:1]),
        debian=tuple(sorted(debian, key=lambda package: (package.name, package.architecture))),
        pip=tuple(sorted(pip, key=lambda package: package.name.lower())),
        horovod=horovod,
        pythons=tuple(
            Python(path=each.path, version=each.version, modules=each.modules)
            for each in pythons.values()
        ),
        variables={name: value for name, _, value in pairs if name},
        programs=tuple(sorted({*listed["program"]})),
        cuda=next((match.group() for match in cuda if match), ""),
        compat="compat" in listed["has"],
    )
