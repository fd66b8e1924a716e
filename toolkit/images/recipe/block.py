"""What a block gives to a definition, and what every block is."""

from __future__ import annotations

import re

from toolkit.model.base import Model

CHECKS = "/opt/toolkit/checks"  # where an image keeps what proves it
VENV = (
    "/opt/venv"  # where an image keeps what pip installs, unless its base has a Python of its own
)
WHEELS = "/opt/wheels"  # where a build puts what it compiled, and takes it from
HOST_WHEELS = "/mnt/wheels"  # where an earlier build's products are, if somebody lends them


class CheckCall(Model, frozen=True, kw_only=True):
    """A check of the image: it passes when ``command`` ends with 0; the last line it prints is its detail.

    Attributes:
        name: one word.
        command: for the image's own shell, every value in it quoted already.
        scripts: the files of ``images/checks`` that it runs; they are put at ``CHECKS`` in the image.
    """

    name: str
    command: str
    scripts: tuple[str, ...] = ()


class BlockOutput(Model, frozen=True, kw_only=True):
    """A block, resolved: what the definition gets from it.

    Attributes:
        name: of the step, one word: ``pip``.
        detail: what it does, for people: ``torch 2.13.0+cpu``.
        packages: Debian packages that stay in the image.
        build_packages: Debian packages that ``build_lines`` need, or ``lines`` where nothing is compiled; they do not stay.
        build_lines: commands that compile something and leave it in ``WHEELS``; they run where compilers are, which the image never sees.
        lines: the commands, for ``sh -e``, every value in them quoted already; what was compiled is in ``WHEELS``.
        finish: commands for the end, when every step has run and before what only the build needs is removed.
        environment: what the image's environment has from it.
        expanding: the same, for values that are made of the base's (``expansion``).
        path: directories put before the image's PATH.
        keeps_temporary: what it leaves in /tmp and /var/tmp is there for later steps, as in a Dockerfile.
        imports: modules that a script can import.
        installed: distributions whose modules, whatever they are called, a script can import.
        brings: distributions that later steps must not replace.
        requirements: what the lines have pip install; empty: they are no step of pip.
        replaces: distributions that the step replaces on purpose.
        index: a further package index that it asks.
        checks: what proves that it worked.
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
    index: str = ""
    checks: tuple[CheckCall, ...] = ()


class Block(Model, frozen=True, kw_only=True):
    """The options of one step of a recipe; a kind of block adds its own keys and says what becomes of them."""

    def is_held(self, kind: str, holds: frozenset[str]) -> bool:
        """Whether a base that holds this makes the step needless; ``kind`` is the block's name in recipes."""
        return kind in holds

    def output(self, holds: frozenset[str] = frozenset()) -> BlockOutput:
        """What the definition gets from this step.

        Args:
            holds: what the base has already: ``python``, ``openmpi``, ``compilers``, ...
        """
        raise NotImplementedError


_DEBIAN_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(:[a-z0-9]+)?(=[A-Za-z0-9.+~:-]+)?\Z")
_STEP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*\Z")


def require_debian_packages(packages: tuple[str, ...]) -> None:
    """Refuse what apt would not take for the name of a package, such as an option.

    Raises:
        ValueError: with the first that is none.
    """
    for package in packages:
        if not _DEBIAN_PACKAGE.match(package):
            raise ValueError(f"{package!r} is no name of a Debian package")


def require_requirements(packages: tuple[str, ...]) -> None:
    """Refuse what pip would take for an option.

    Raises:
        ValueError: with the first that is one.
    """
    for package in packages:
        if package.startswith("-") or not package.strip():
            raise ValueError(f"{package!r} is no requirement of pip")


def require_step_name(name: str) -> None:
    """A step's name is one word, since the progress of a build is read by it.

    Raises:
        ValueError: it is something else.
    """
    if not _STEP_NAME.match(name):
        raise ValueError(f"{name!r} is no name of a step: one word of letters, digits, _ . + -")


def require_directory(path: str) -> None:
    """Refuse a path that depends on where somebody stands.

    Raises:
        ValueError: it is not absolute.
    """
    if not path.startswith("/"):
        raise ValueError(f"{path!r} is no absolute path")


def format_requirement(requirement: str) -> str:
    """A requirement as people say it: ``torch==2.13.0+cpu`` becomes ``torch 2.13.0+cpu``."""
    return requirement.replace("==", " ")
