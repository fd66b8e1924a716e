"""The steps of an image as scripts with keys: what a build in layers runs, and what it keeps. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from toolkit.images import definition
from toolkit.images.bases import Base
from toolkit.images.recipes import Resolved
from toolkit.model.base import Model

_FORMAT = "1"  # of what is kept under the keys: another number makes all that there is useless


class Link(Model, frozen=True, kw_only=True):
    """A step.

    Attributes:
        script: for ``sh -e`` as root of the image, in ``/``.
        key: of what the image is after it: changes with the step and with all before it.
    """

    name: str
    detail: str
    script: str
    key: str


class Chain(Model, frozen=True, kw_only=True):
    """A base and the steps on it."""

    base: Base
    base_key: str
    links: tuple[Link, ...]


def base_key(base: Base, state: str = "") -> str:
    """What changes when the base would.

    Args:
        state: which one it is now, where its description does not say: the digest of an image, the time of a file.
    """
    return _sha256((_FORMAT, *base.header(), *base.setup(), state))


def chain(resolved: Resolved, state: str = "") -> Chain:
    """The steps of a recipe, each with its key.

    Args:
        state: of the base, as for ``base_key``.
    """
    first = key = base_key(resolved.base, state)
    links: list[Link] = []
    for name, detail, prelude, lines in _step_lines(resolved):
        script = "\n".join((*prelude, "set -x", *lines)) + "\n"
        key = _sha256((key, script))
        links.append(Link(name=name, detail=detail, script=script, key=key))
    return Chain(base=resolved.base, base_key=first, links=tuple(links))


_PRELUDE = (
    "umask 022",
    "export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive",
    "export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1",
    "if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi",
    "if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi",
    "if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi",
)


def _step_lines(resolved: Resolved) -> Iterable[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    from itertools import chain as chained

    from toolkit.images import library

    names = dict(definition.steps(resolved))
    path = [directory for piece in resolved.pieces for directory in piece.path]
    prelude = (*_PRELUDE, *((f"export PATH={':'.join(path)}:$PATH",) if path else ()))
    if "apt" in names:
        yield "apt", names["apt"], prelude, tuple(definition._install(resolved))
    for piece in resolved.pieces:
        if piece.lines:
            yield piece.name, names[piece.name], prelude, piece.lines
    finish = chained.from_iterable(piece.finish for piece in resolved.pieces)
    lines = (*finish, *(definition._remove() if "apt" in names else ()), *resolved.base.finish())
    yield "clean", names["clean"], prelude, (*lines, *definition._check_files(resolved, library.scripts()))


def _sha256(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
