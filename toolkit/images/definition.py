"""A recipe as the text of an Apptainer definition: the same recipe gives the same bytes.

The text is put together by plain functions, not by a template: importing a template engine alone takes longer than the whole command
may that prints a definition, and there is one definition with a fixed order of sections, whose lines the blocks have written already.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from itertools import chain
from typing import Any

from toolkit.images.bases import Debootstrap
from toolkit.images.piece import CHECKS, CheckCall, Piece
from toolkit.images.recipes import Resolved
from toolkit.images.words import plain, word

STEP = "==> "  # begins the line by which a step of %post says its name: "==> pip: torch 2.13.0+cpu"
_END = "END-OF-FILE"
_MANUAL = "/opt/installed-by-name"  # not below /var/tmp: the host shows a build its own
_DPKG = "/etc/dpkg/dpkg.cfg.d/build"

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


def render(resolved: Resolved, scripts: Mapping[str, str], version: str) -> str:
    """The definition of a recipe.

    Args:
        resolved: the recipe.
        scripts: the text of every file of ``images/checks``, by name.
        version: of the tool, for a label.
    """
    return _render(resolved, scripts, {"toolkit.version": version, "toolkit.recipe-hash": recipe_hash(resolved, scripts)})


def recipe_hash(resolved: Resolved, scripts: Mapping[str, str]) -> str:
    """What changes when the image would: of the definition with everything it holds, but for the tool's version."""
    return _sha256(_render(resolved, scripts, {}).encode())


def _sha256(data: bytes) -> str:
    """Python's own implementation where it is there: `hashlib` loads OpenSSL first, a twentieth of the command that prints a definition."""
    try:
        module: Any = import_module("_sha2" if sys.version_info >= (3, 12) else "_sha256")
    except ImportError:
        module = import_module("hashlib")
    digest: str = module.sha256(data).hexdigest()
    return digest


def steps(resolved: Resolved) -> tuple[tuple[str, str], ...]:
    """The steps of ``%post`` in their order, each with what it does; a build says them as it comes to them."""
    found = [("apt", _apt_detail(resolved))] if _packages(resolved) else []
    found += [(piece.name, plain(piece.detail)) for piece in resolved.pieces if piece.lines]
    return (*found, ("clean", "what only the build needed"))


def checks(resolved: Resolved) -> tuple[CheckCall, ...]:
    """What proves the image: one check for all imports, then those of the steps."""
    modules = tuple(dict.fromkeys(chain.from_iterable(piece.imports for piece in resolved.pieces)))
    found = (
        (CheckCall(name="imports", command=f"python3 imports.py {' '.join(map(word, modules))}", scripts=("imports.py",)),)
        if modules
        else ()
    )
    return (*found, *chain.from_iterable(piece.checks for piece in resolved.pieces))


def _render(resolved: Resolved, scripts: Mapping[str, str], labels: Mapping[str, str]) -> str:
    sections = [
        "\n".join(_comment(resolved)),
        "\n".join(resolved.base.header()),
        *((_section("setup", resolved.base.setup()),) if resolved.base.setup() else ()),
        "%post\n" + "\n".join(_post(resolved)) + "\n\n" + "\n".join(_check_files(resolved, scripts)),
        _section("environment", _environment(resolved.pieces)),
        _section("labels", (f"{name} {value}" for name, value in sorted({"toolkit.recipe": resolved.name, **labels}.items()))),
        _section("runscript", ('exec "$@"',)),
        _section("test", (f"exec sh {CHECKS}/run",)),
    ]
    return "\n\n".join(sections) + "\n"


def _section(name: str, lines: Iterable[str]) -> str:
    return f"%{name}\n" + "\n".join(f"    {line}" for line in lines)


def _comment(resolved: Resolved) -> Iterator[str]:
    name = resolved.name
    argument = "--build-arg mirror=URL-OF-A-DEBIAN-MIRROR " if isinstance(resolved.base, Debootstrap) else ""
    yield f"# {name}: {plain(resolved.summary)}"
    yield "#"
    yield f"# Written by toolkit from recipes/{name}.toml. Change that file, then: toolkit image render {name} --write"
    yield "# It can be built without toolkit, by root, or by a user with --fakeroot:"
    yield "#"
    yield f"#     apptainer build {argument}{name}.sif {name}.def"
    yield "#"
    yield "# A build may read what the building machine knows from files bound to /mnt: pip.conf, apt.conf, ca-certificates.crt."
    yield "# Nothing has to be there, and nothing of it stays in the image."


def _post(resolved: Resolved) -> Iterator[str]:
    """The body of %post: apt first and once, since starting it is slow, then every step, then the cleaning."""
    names = dict(steps(resolved))
    yield from _indented("umask 022", "export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive")
    yield from _indented("export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1")
    yield from _indented("if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi")
    yield from _indented("if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi")
    yield from _indented("if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi")
    if "apt" in names:
        yield from _step("apt", names["apt"], _install(resolved))
    for piece in resolved.pieces:
        if piece.lines:
            yield from _step(piece.name, names[piece.name], piece.lines)
    finish = chain.from_iterable(piece.finish for piece in resolved.pieces)
    yield from _step("clean", names["clean"], (*finish, *(_remove() if "apt" in names else ()), *resolved.base.finish()))


def _step(name: str, detail: str, lines: Iterable[str]) -> Iterator[str]:
    yield ""
    yield from _indented(f"echo {word(f'{STEP}{name}: {detail}')}", *lines)


def _indented(*lines: str) -> Iterator[str]:
    return (f"    {line}" for line in lines)


def _packages(resolved: Resolved) -> tuple[str, ...]:
    return tuple(sorted({package for piece in resolved.pieces for package in (*piece.packages, *piece.build_packages)}))


def _kept(resolved: Resolved) -> tuple[str, ...]:
    return tuple(sorted({package for piece in resolved.pieces for package in piece.packages}))


def _apt_detail(resolved: Resolved) -> str:
    kept = _kept(resolved)
    return f"{', '.join(kept)}; {len(_packages(resolved)) - len(kept)} for the build" if kept else "for the build"


def _install(resolved: Resolved) -> Iterator[str]:
    """Everything from Debian; what was asked for by name before the build tools came is remembered, the rest goes at the end."""
    install = "apt-get -qq -y install --no-install-recommends"
    kept = _kept(resolved)
    only_for_build = [package for package in _packages(resolved) if package not in kept]
    yield f"echo force-unsafe-io > {_DPKG}  # nobody needs half an image after a power cut"
    yield "apt-get -qq update"
    if kept:
        yield f"{install} {' '.join(kept)}"
    yield f"apt-mark showmanual > {_MANUAL}"
    if only_for_build:
        yield f"{install} {' '.join(only_for_build)}"


def _remove() -> Iterator[str]:
    yield "apt-mark auto $(apt-mark showmanual) > /dev/null"
    yield f"apt-mark manual $(cat {_MANUAL}) > /dev/null"
    only = "-o APT::AutoRemove::RecommendsImportant=false -o APT::AutoRemove::SuggestsImportant=false"
    yield f"apt-get -qq -y autoremove --purge {only}"
    yield f"rm {_MANUAL} {_DPKG}"
    yield "rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/* /var/cache/debconf/*-old /var/lib/dpkg/*-old"
    yield "find /var/log -type f -delete"


def _check_files(resolved: Resolved, scripts: Mapping[str, str]) -> Iterator[str]:
    """The commands that write the checks into the image, from here-documents: the definition needs no other file."""
    calls = checks(resolved)
    yield from _indented("# What proves the image stays in it: run it again at any time.", f"mkdir -p {CHECKS}")
    for name in sorted({script for call in calls for script in call.scripts}):
        yield from _file(name, scripts[name])
    lines = "".join(f"check {call.name} {call.command}\n" for call in calls)
    yield from _file("run", f"{_RUNNER}{lines}exit $status\n")


def _file(name: str, text: str) -> Iterator[str]:
    yield f"    cat > {CHECKS}/{name} <<'{_END}'"
    yield text.rstrip("\n")
    yield _END


def _environment(pieces: Iterable[Piece]) -> Iterator[str]:
    path = [directory for piece in pieces for directory in piece.path]
    if path:
        yield f"export PATH={':'.join(path)}:$PATH"
    for name, value in sorted({name: value for piece in pieces for name, value in piece.environment.items()}.items()):
        yield f"export {name}={word(value)}"
