"""The base class of blocks, and the output that a block gives to a definition."""

from __future__ import annotations

import re
from collections.abc import Mapping

from toolkit.images.recipe.quoting import quote_word
from toolkit.model.base import Model

CHECKS = "/opt/toolkit/checks"  # where an image keeps its own checks
VENV = (
    "/opt/venv"  # where an image keeps what pip installs, unless its base has a Python of its own
)
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
IN_BUILD = "build."  # begins the names of steps of the build stage that the image repeats
HOST_WHEELS = "/mnt/wheels"  # where wheels of an earlier build are mounted, if there are any


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


class BlockOutput(Model, frozen=True, kw_only=True):
    """The output of a resolved block: what the definition gets from it.

    Attributes:
        name: of the step, one word: ``pip``.
        detail: what it does, for people: ``torch 2.13.0+cpu``.
        packages: Debian packages that stay in the image.
        build_packages: Debian packages that ``build_lines`` need, or ``lines`` where nothing is
            compiled; they do not stay.
        build_lines: commands that compile something and leave it in ``WHEELS``; they run in a stage
            that has compilers, which the image never sees.
        lines: the commands, for ``sh -e``, every value in them quoted already; compiled products
            are in ``WHEELS``.
        finish: commands for the end, when every step has run and before what only the build needs
            is removed.
        environment: what the image's environment has from it.
        expanding: the same, for values that are made of the base's (``expansion``).
        path: directories put before the image's PATH.
        keeps_temporary: files that it leaves in /tmp and /var/tmp are there for later steps, as in
            a Dockerfile.
        imports: modules that a script can import.
        installed: distributions whose modules, whatever they are called, a script can import.
        brings: distributions that later steps must not replace.
        requirements: what the lines have pip install; empty: they are no step of pip.
        replaces: distributions that the step replaces on purpose.
        checks: the checks that it worked.
    """

    name: str
    detail: str = ""
    packages: tuple[str, ...] = ()
    build_packages: tuple[str, ...] = ()
    build_lines: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    finish: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    expanding: dict[str, str] = {}
    path: tuple[str, ...] = ()
    keeps_temporary: bool = False
    imports: tuple[str, ...] = ()
    installed: tuple[str, ...] = ()
    brings: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    checks: tuple[CheckCall, ...] = ()


class Block(Model, frozen=True, kw_only=True):
    """The options of a step of a recipe.

    A kind of block adds its own keys, and returns in ``output`` what becomes of them.
    """

    def is_held(self, kind: str, holds: frozenset[str]) -> bool:
        """Return whether a base that holds this makes the step needless.

        Args:
            kind: the block's name in recipes.
            holds: what the base has.
        """
        return kind in holds

    def output(self) -> BlockOutput:
        """Return what the definition gets from this step, on any base."""
        raise NotImplementedError

    def output_on(self, holds: frozenset[str]) -> BlockOutput:
        """Return what the definition gets from this step on one base.

        Args:
            holds: what the base has already: ``python``, ``openmpi``, ``compilers``, ...
        """
        del holds
        return self.output()


def more_suffix(number: int) -> str:
    """Return the end of the name of a step that adds nothing but Debian packages, from 1 on."""
    return "-more" if number == 1 else f"-more-{number}"


_DEBIAN_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(:[a-z0-9]+)?(=[A-Za-z0-9.+~:-]+)?\Z")
_STEP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*\Z")


def shell_checks(commands: Mapping[str, str]) -> tuple[CheckCall, ...]:
    """Return the checks of a recipe's own commands, which must exit with 0, by name."""
    return tuple(
        CheckCall(name=name, command=f"sh -c {quote_word(command)}")
        for name, command in sorted(commands.items())
    )


def require_debian_packages(packages: tuple[str, ...]) -> None:
    """Raise for a text that apt would not take for the name of a package, such as an option.

    Raises:
        ValueError: A name is invalid; gives the first.
    """
    for package in packages:
        if not _DEBIAN_PACKAGE.match(package):
            raise ValueError(f"{package!r} is no name of a Debian package")


def require_requirements(packages: tuple[str, ...]) -> None:
    """Raise for a requirement that pip would take for an option.

    Raises:
        ValueError: A requirement is invalid; gives the first.
    """
    for package in packages:
        if package.startswith("-") or not package.strip():
            raise ValueError(f"{package!r} is no requirement of pip")


def require_step_names(*names: str) -> None:
    """Raise unless the name of a step is one word, since the progress of a build is read by it.

    Raises:
        ValueError: A name is not one word; gives the first.
    """
    wrong = next((name for name in names if not _STEP_NAME.match(name)), None)
    if wrong is not None:
        raise ValueError(f"{wrong!r} is no name of a step: one word of letters, digits, _ . + -")


def require_directory(path: str) -> None:
    """Raise for a path that depends on the current working directory.

    Raises:
        ValueError: It is not absolute.
    """
    if not path.startswith("/"):
        raise ValueError(f"{path!r} is no absolute path")


def format_requirement(requirement: str) -> str:
    """Return a requirement for people: ``torch==2.13.0+cpu`` becomes ``torch 2.13.0+cpu``."""
    return requirement.replace("==", " ")
