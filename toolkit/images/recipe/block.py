"""The base class of blocks, and the step that a block gives to a plan."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from toolkit.images.recipe.quoting import quote_word
from toolkit.model.base import Model

CHECKS = "/opt/toolkit/checks"  # where an image keeps its own checks
VENV = (
    "/opt/venv"  # where an image keeps what pip installs, unless its base has a Python of its own
)
INSTALL = "apt-get -qq -y install --no-install-recommends"
WHEELS = "/opt/wheels"  # where a build puts what it compiled, and takes it from
# Apptainer keeps the variables of a base (PATH above all) in files that its %post does not read:
# those of a Docker image, and those of a SIF.
DOCKER_VARIABLES = (
    'for file in /.singularity.d/env/10-docker*.sh; do if [ -f "$file" ]; then . "$file"; fi; done'
)
SIF_VARIABLES = (
    "set +e; for file in /.singularity.d/env/10-docker*.sh /.singularity.d/env/90-environment.sh; "
    'do if [ -f "$file" ]; then . "$file"; fi; done; set -e'
)
# where an image keeps what only its build had: lines of dpkg and pip
BUILD_PACKAGES = "/opt/build-packages"
IN_BUILD = "build."  # begins the names of steps of the build stage that the image repeats
HOST_WHEELS = "/mnt/wheels"  # where wheels of an earlier build are mounted, if there are any
SOURCES = "/mnt/sources"  # where the files of steps are mounted, by the name of the step


class CheckCall(Model, frozen=True, kw_only=True):
    """A check of the image, which passes when ``command`` exits with 0.

    The last line that the command prints is the detail of the check.

    Attributes:
        name: one word.
        command: for the image's own shell, every value in it quoted already.
        is_python: the command is a script of Python and its arguments; it runs in a fork of a
            process that has imported the image's modules.
        scripts: the files of ``images/checks`` that it runs; they are at ``CHECKS`` in the image.
    """

    name: str
    command: str
    scripts: tuple[str, ...] = ()
    is_python: bool = False


class Setting(NamedTuple):
    """A variable of the image, set after those before it.

    Attributes:
        name: of the variable.
        value: an expanding one (``quoting``).
        is_argument: later settings and steps see it, and the image does not.
    """

    name: str
    value: str
    is_argument: bool = False


class Source(Model, frozen=True, kw_only=True):
    """A file or directory of the building machine that a step copies into the image.

    Attributes:
        path: absolute.
        shown: relative to the recipe.
        digest: of its names, contents, permissions and links.
        names: of the entries of a directory; empty for a file.
        mode: the permissions of a file, octal; empty for a directory.
    """

    path: str
    shown: str
    digest: str
    names: tuple[str, ...] = ()
    mode: str = ""


class Ground(NamedTuple):
    """The base and the files on which a step can rely.

    Attributes:
        holds: what the base has already: ``python``, ``openmpi``, ``compilers``, ..., and ``cuda``
            if a step brings CUDA's compiler.
        sources: the files of the building machine that steps copy, by the path in the step.
    """

    holds: frozenset[str] = frozenset()
    sources: Mapping[str, Source] = {}


class Step(Model, frozen=True, kw_only=True):
    """A step of an image: first what a block asks for, then what runs.

    A plan makes of the first what runs: ``apt`` of several steps is one, and what compiles is
    apart. In these steps ``lines`` are whole, and only the first five and the last two fields
    count.

    Attributes:
        name: one word: ``pip``.
        detail: what it does, for people: ``torch 2.13.0+cpu``.
        lines: the commands, for ``sh -e`` as root of the image, in ``/``, every value in them
            quoted already; compiled products are in ``WHEELS``. Each step has a shell of its own.
        products: it takes something from ``WHEELS``.
        source: what it copies from the building machine, at ``SOURCES/name``.
        packages: Debian packages that stay in the image.
        build_packages: Debian packages that ``build_lines`` need; they do not stay.
        build_lines: commands that compile something and leave it in ``WHEELS``; they run in a stage
            that has compilers, which the image never sees.
        gpu_code: the architectures that it has later steps compile for: ``sm_80``.
        cuda: the version of CUDA's compiler that it brings.
        environment: what the image's environment has from it.
        settings: the same, for values that are made of others.
        path: directories put before the image's PATH.
        is_apart: the lines run in a shell of their own, which has what a Dockerfile's commands
            have, ``leads`` of earlier steps included. Files that it leaves in /tmp and /var/tmp are
            there for later steps.
        leads: lines that the shells of later steps which are apart begin with.
        imports: modules that a script can import.
        installed: distributions whose modules, whatever they are called, a script can import.
        brings: distributions that later steps must not replace.
        requirements: what the lines have pip install; empty: they are no step of pip.
        replaces: distributions that the step replaces on purpose.
        checks: the checks that it worked.
        script: the whole text for its shell.
        key: of the image's state after it: changes with the step and with all before it.
    """

    name: str
    detail: str = ""
    lines: tuple[str, ...] = ()
    products: bool = False
    source: Source | None = None
    packages: tuple[str, ...] = ()
    build_packages: tuple[str, ...] = ()
    build_lines: tuple[str, ...] = ()
    gpu_code: tuple[str, ...] = ()
    cuda: str = ""
    environment: dict[str, str] = {}
    settings: tuple[Setting, ...] = ()
    path: tuple[str, ...] = ()
    is_apart: bool = False
    leads: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    installed: tuple[str, ...] = ()
    brings: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    checks: tuple[CheckCall, ...] = ()
    script: str = ""
    key: str = ""


class Block(Model, frozen=True, kw_only=True):
    """The options of a step of a recipe; a kind of block adds its own keys."""

    def is_held(self, kind: str, holds: frozenset[str]) -> bool:
        """Return whether a base that holds this makes the step needless.

        Args:
            kind: the block's name in recipes.
            holds: what the base has.
        """
        return kind in holds

    def output(self) -> Step:
        """Return what the definition gets from this step, on any ground."""
        raise NotImplementedError

    def output_on(self, ground: Ground) -> Step:
        """Return what the definition gets from this step where this can be relied on."""
        del ground
        return self.output()


DEBIAN_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(:[a-z0-9]+)?(=[A-Za-z0-9.+~:-]+)?\Z")
REQUIREMENT = re.compile(r"\s*[^\s-]")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
ABSOLUTE = re.compile(r"/")
_STEP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*\Z")


def shell_checks(commands: Mapping[str, str]) -> tuple[CheckCall, ...]:
    """Return the checks of a recipe's own commands, which must exit with 0, by name."""
    return tuple(
        CheckCall(name=name, command=f"sh -c {quote_word(command)}")
        for name, command in sorted(commands.items())
    )


def require_all(texts: Iterable[str], pattern: re.Pattern[str], what: str) -> None:
    """Raise for the first text that the pattern does not fit, such as an option among packages.

    Raises:
        ValueError: One does not fit; it is no ``what``.
    """
    wrong = next((text for text in texts if not pattern.match(text)), None)
    if wrong is not None:
        raise ValueError(f"{wrong!r} is no {what}")


def require_step_names(*names: str) -> None:
    """Raise unless the name of a step is one word, since the progress of a build is read by it.

    Raises:
        ValueError: A name is not one word; gives the first.
    """
    require_all(names, _STEP_NAME, "name of a step: one word of letters, digits, _ . + -")
