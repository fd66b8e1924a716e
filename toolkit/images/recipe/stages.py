"""The steps of an image in the order in which they run: what every definition is written from, and every builder works by. Pure.

Compilers do not reach an image. What has to be compiled is compiled in a stage of its own, the
build stage, on top of the same steps as the image itself, and leaves wheels and the like in
``WHEELS``; the image takes them from there. Nothing else of that stage is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, takewhile

from toolkit.images.recipe.bases import Base
from toolkit.images.recipe.block import CHECKS, WHEELS, CheckCall, Piece
from toolkit.images.recipe.resolve import Resolved
from toolkit.images.recipe.words import plain, word
from toolkit.model.base import Model

_DPKG = "/etc/dpkg/dpkg.cfg.d/build"
_INSTALL = "apt-get -qq -y install --no-install-recommends"
_CLEAN_APT = ("apt-get clean", "rm -rf /var/lib/apt/lists/*")


class Step(Model, frozen=True, kw_only=True):
    """Some commands that belong together.

    Attributes:
        name: one word.
        detail: what it does, for people.
        lines: for ``sh -e`` as root of the image, in ``/``, every value quoted; each step has a shell of its own.
        products: it takes something from ``WHEELS``.
    """

    name: str
    detail: str
    lines: tuple[str, ...]
    products: bool = False


class Stages(Model, frozen=True, kw_only=True):
    """A recipe as steps.

    Attributes:
        prelude: what the shell of every step begins with.
        common: the first steps of the image, and of the build stage.
        build: what the build stage does then; empty: there is none.
        final: the further steps of the image; the last one cleans up.
        files: path -> text of what is written into the image last: what proves it.
        path: directories put before the image's PATH.
        environment: variables of the image.
        expanding: those whose values are made of the base's, set before the others.
        checks: what proves it.
        dropped: steps of the recipe that the base makes needless.
        keeps_temporary: a step may need what an earlier one left in /tmp or /var/tmp.
    """

    base: Base
    prelude: tuple[str, ...]
    common: tuple[Step, ...]
    build: tuple[Step, ...]
    final: tuple[Step, ...]
    files: dict[str, str]
    path: tuple[str, ...]
    environment: dict[str, str]
    expanding: dict[str, str] = {}
    checks: tuple[CheckCall, ...]
    dropped: tuple[str, ...] = ()
    keeps_temporary: bool = False

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the image itself."""
        return (*self.common, *self.final)


_RUNNER = f"""\
#!/bin/sh
# Proves this image: runs every check and says of each, in one line, how it came out. Ends with 1 if one failed.
cd {CHECKS} || exit 1
export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
newline='
'
status=0
check() {{
    name=$1
    shift
    if output=$("$@" </dev/null 2>&1); then outcome=passed; else outcome=failed; status=1; fi
    printf '%s\\n' "$output"
    printf 'toolkit-check: %s %s: %s\\n' "$name" "$outcome" "${{output##*"$newline"}}"
}}
"""


def stages(resolved: Resolved, scripts: Mapping[str, str]) -> Stages:
    """The steps of a recipe.

    Args:
        scripts: the text of every file of ``images/checks``, by name.
    """
    pieces, base = resolved.pieces, resolved.base
    in_place = "compilers" in base.holds
    compiled = [number for number, piece in enumerate(pieces) if piece.build_lines and not in_place]
    first = compiled[0] if compiled else len(pieces)
    path = tuple(dict.fromkeys(directory for piece in pieces for directory in piece.path))
    # Packages of the first steps come together, since starting apt is slow; a later step brings its
    # own, and disturbs none before it.
    together = len(tuple(takewhile(lambda piece: piece.packages, pieces[:first])))
    common = (
        *_apt(pieces[:together]),
        *(
            step
            for number in range(first)
            for step in _steps(pieces[number], number >= together, in_place)
        ),
    )
    later = tuple(step for piece in pieces[first:] for step in _steps(piece, True, in_place))
    uses_apt = any(piece.packages or piece.build_packages for piece in pieces)
    calls = _checks(pieces)
    keeps_temporary = any(piece.keeps_temporary for piece in pieces)
    environment, expanding = _environment(pieces)
    return Stages(
        base=base,
        prelude=(
            *_prelude(base, path),
            *(("# /tmp is part of the image",) if keeps_temporary else ()),
        ),
        common=common,
        build=_build([pieces[number] for number in compiled]),
        final=(
            *later,
            Step(
                name="clean",
                detail="what only the build needed",
                lines=tuple(_clean(resolved, uses_apt=uses_apt)),
            ),
        ),
        files=_files(calls, scripts),
        path=path,
        environment=environment,
        expanding=expanding,
        checks=calls,
        dropped=resolved.dropped,
        keeps_temporary=keeps_temporary,
    )


def _environment(pieces: Iterable[Piece]) -> tuple[dict[str, str], dict[str, str]]:
    """The image's variables; of two steps that set one, the later counts."""
    literals: dict[str, str] = {}
    expanding: dict[str, str] = {}
    for piece in pieces:
        for name in (*piece.environment, *piece.expanding):
            literals.pop(name, None)
            expanding.pop(name, None)
        literals |= piece.environment
        expanding |= piece.expanding
    return dict(sorted(literals.items())), expanding


def _prelude(base: Base, path: tuple[str, ...]) -> tuple[str, ...]:
    return (
        "umask 022",
        "export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive",
        "export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1",
        "if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi",
        "if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi",
        "if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi",
        *base.prelude(),
        *((f"export PATH={':'.join(path)}:$PATH",) if path else ()),
    )


def _apt(pieces: Iterable[Piece]) -> Iterator[Step]:
    """What the first steps need from Debian."""
    packages = sorted({package for piece in pieces for package in piece.packages})
    if packages:
        yield Step(
            name="apt",
            detail=plain(", ".join(packages)),
            lines=(*_first_apt(), *_apt_lines(packages)),
        )


def _first_apt() -> tuple[str, ...]:
    directory = _DPKG.rsplit("/", 1)[0]
    return (
        "# Nobody needs half an image after a power cut.",
        f"if [ -d {directory} ]; then echo force-unsafe-io > {_DPKG}; fi",
    )


def _apt_lines(packages: Iterable[str]) -> tuple[str, ...]:
    return ("apt-get -qq update", f"{_INSTALL} {' '.join(packages)}", *_CLEAN_APT)


def _steps(piece: Piece, own_apt: bool, in_place: bool) -> Iterator[Step]:
    """The step of a piece in the image itself."""
    before = _apt_lines(sorted(piece.packages)) if own_apt and piece.packages else ()
    lines = piece.lines
    if piece.build_packages and not piece.build_lines:
        # They come for this step only. What comes with them is marked as automatic, and goes with
        # them.
        packages = " ".join(sorted(piece.build_packages))
        only = "-o APT::AutoRemove::RecommendsImportant=false -o APT::AutoRemove::SuggestsImportant=false"
        lines = (
            *_apt_lines(sorted(piece.build_packages)),
            *lines,
            f"apt-get -qq -y autoremove --purge {only} {packages}",
        )
    if piece.build_lines and in_place:  # the base has compilers: there is no build stage
        lines = (*piece.build_lines, *lines, f"rm -rf {WHEELS}")
    if before or lines:
        # What comes later from Debian alone has no name of its own, and "apt" is the first step's.
        name = piece.name if lines else f"{piece.name}-more"
        yield Step(
            name=name,
            detail=plain(piece.detail or ", ".join(piece.packages)),
            lines=(*before, *lines),
            products=bool(piece.build_lines) and own_apt,
        )


def _build(pieces: Iterable[Piece]) -> tuple[Step, ...]:
    """What the build stage does beyond the common steps."""
    known = tuple(pieces)
    packages = sorted({package for piece in known for package in piece.build_packages})
    apt = (
        (Step(name="compilers", detail=plain(", ".join(packages)), lines=_apt_lines(packages)),)
        if packages
        else ()
    )
    return (
        *apt,
        *(
            Step(
                name=f"{piece.name}-build",
                detail=plain(piece.detail),
                lines=(f"mkdir -p {WHEELS}", *piece.build_lines),
            )
            for piece in known
        ),
    )


def _clean(resolved: Resolved, *, uses_apt: bool) -> Iterator[str]:
    for piece in resolved.pieces:
        yield from piece.finish
    if uses_apt:
        yield f"rm -f {_DPKG}"
        yield "rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/* /var/cache/debconf/*-old /var/lib/dpkg/*-old"
        yield "find /var/log -type f -delete"
    yield from resolved.base.finish()


def _checks(pieces: Iterable[Piece]) -> tuple[CheckCall, ...]:
    """What proves the image: one check for all imports, then those of the steps."""
    known = tuple(pieces)
    modules = tuple(dict.fromkeys(chain.from_iterable(piece.imports for piece in known)))
    packages = tuple(dict.fromkeys(chain.from_iterable(piece.installed for piece in known)))
    arguments = (*modules, *(("--of", *packages) if packages else ()))
    imports = CheckCall(
        name="imports",
        command=f"python3 imports.py {' '.join(map(word, arguments))}",
        scripts=("imports.py",),
    )
    return (
        *((imports,) if arguments else ()),
        *chain.from_iterable(piece.checks for piece in known),
    )


def _files(calls: Iterable[CheckCall], scripts: Mapping[str, str]) -> dict[str, str]:
    known = tuple(calls)
    names = sorted({script for call in known for script in call.scripts})
    lines = "".join(f"check {call.name} {call.command}\n" for call in known)
    return {
        **{f"{CHECKS}/{name}": scripts[name] for name in names},
        f"{CHECKS}/run": f"{_RUNNER}{lines}exit $status\n",
    }
