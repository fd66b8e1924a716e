"""Run the checks of an image that was built in layers: side by side, and none without need."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from msgspec.structs import replace

from toolkit.config import package_directory
from toolkit.errors import ToolkitError
from toolkit.images.builder.apptainer import carry, compose
from toolkit.images.builder.apptainer.entries import Entries
from toolkit.images.builder.apptainer.identity import sections
from toolkit.images.builder.apptainer.programs import clean_environment
from toolkit.images.builder.apptainer.protocol import CARRIED, Added, CheckTask, CheckTasks
from toolkit.images.builder.follow import Follower
from toolkit.images.host.workspace import Workspace
from toolkit.images.recipe.block import CheckCall
from toolkit.images.recipe.chain import Chain
from toolkit.images.recipe.stages import runner
from toolkit.images.sif.squashfs.inodes import DIRECTORY, is_whiteout, list_directory, read_inode
from toolkit.images.sif.squashfs.tables import Tables
from toolkit.images.store import store
from toolkit.images.store.cache import CacheEntry
from toolkit.images.store.settings import VARIABLES
from toolkit.model.base import to_json
from toolkit.model.image import Check, Manifest
from toolkit.quoting import shell_words

_MODULE = "toolkit.images.builder.apptainer.side_by_side"
_SCRIPTS = "/mnt/toolkit"  # where the image sees the script that asks it
_IMPORTS = "python3 imports.py "
_MOST_AT_ONCE = 4
_SITES = ("opt/venv/lib", "usr/lib/python3")
_PROGRAMS = (
    "opt/venv/bin",
    *(f"{top}{name}" for top in ("", "usr/", "usr/local/") for name in ("bin", "sbin")),
)


def run(
    command: Sequence[str],
    place: Workspace,
    follower: Follower,
    chain: Chain,
    definition: str,
    entries: Entries,
    builder: str,
) -> int:
    """Run the checks of ``place.sif``; add those of an earlier image that hold for it as well.

    Args:
        command: Runs a program in an image without help of this machine, but for the image.
        place: The directories of this build.
        follower: Its results get a key and a time.
        chain: The image's steps and checks.
        definition: The image's definition.
        entries: The image's layers.
        builder: The program of the command, and its version.

    Returns:
        The exit code of a check that failed, or 0.
    """
    if not chain.checks:
        return 0
    circumstances = (
        sections(definition).get("environment", ""),
        chain.links[-1].script if chain.links else "",
        builder,
    )
    keys = {call.name: carry.key_of(call, chain.files, *circumstances) for call in chain.checks}
    earlier, source, added = _earlier(keys, chain, entries)
    scripts = package_directory("images/verify/scripts")
    image = str(place.sif)
    asked = _asked(chain, earlier, added) if added else ()
    tasks = CheckTasks(
        command=(*command, image),
        reach=(*command, "--bind", f"{scripts}:{_SCRIPTS}:ro", image),
        asked=asked,
        checks=tuple(_task(call, asked) for call in chain.checks),
        candidates=tuple(earlier),
        added=added,
        workers=min(_MOST_AT_ONCE, len(os.sched_getaffinity(0))),
        token=secrets.token_hex(),
    )
    file = place.output / "checks.json"
    file.write_text(to_json(tasks), encoding="utf-8")
    carried: list[Check] = []

    def take(message: str) -> None:
        check = earlier[message.removeprefix(CARRIED)]
        carried.append(replace(check, carried=check.carried or source))
        follower.say("check", f"{check.name} carried over from {source}, {check.when}")

    settings = dict.fromkeys(VARIABLES, str(place.output / "config"))
    code = follower.follow(
        [sys.executable, "-m", _MODULE, str(file)],
        clean_environment() | settings,
        place,
        token=tasks.token,
        on_message=take,
    )
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    results = follower.reader.results
    made = [replace(check, key=keys.get(check.name, ""), when=now) for check in results.checks]
    order = {name: number for number, name in enumerate(keys)}
    results.checks[:] = sorted(
        (*made, *carried),
        key=lambda check: order.get(check.name, len(order)),  # a program may print any name
    )
    return code


def _asked(chain: Chain, earlier: Collection[str], added: Added) -> tuple[str, ...]:
    """Return the command that asks the image what the checks that may be carried over look for."""
    needs = [call.needs for call in chain.checks if call.needs and call.name in earlier]
    imported = next((call.command for call in chain.checks if _may_ask(call)), "").split()
    modules = {name for need in needs for name in need.modules}
    asked = {
        "modules": [name for name in imported if name in modules],  # in the order of that check
        "further": sorted(modules.difference(imported)),
        "searched": sorted({name for need in needs for name in need.searched}),
        "names": added.modules,
        "distributions": added.distributions,
    }
    return ("python3", f"{_SCRIPTS}/reach.py", json.dumps(asked))


def _may_ask(call: CheckCall) -> bool:
    """Return whether a check is the one that imports all modules."""
    return call.scripts == ("imports.py",) and call.command.startswith(_IMPORTS)


def _task(call: CheckCall, asked: Sequence[str]) -> CheckTask:
    asks = bool(asked) and _may_ask(call)
    if asks:  # what has to be imported to ask is not imported twice
        command = f"{shell_words(asked)} {call.command.removeprefix('python3 ')}"
        call = replace(call, command=command)
    return CheckTask(
        name=call.name,
        script=runner((call,)),
        needs=call.needs,
        is_alone=call.is_alone,
        asks=asks,
    )


def _earlier(
    keys: dict[str, str], chain: Chain, entries: Entries
) -> tuple[dict[str, Check], str, Added | None]:
    """Return the checks that may be carried over, whose they are, and what was added since."""
    if entries.fresh or entries.lock:
        return {}, "", None
    wanted = {call.name: keys[call.name] for call in chain.checks if call.needs is not None}
    layers = [entry.note.digest for entry in entries.used]
    manifests = list(_manifests(entries.cache.directory.parent))
    checks, count, source = carry.candidates(manifests, layers, wanted)
    if not checks:
        return {}, "", None
    with suppress(ToolkitError):
        below, since = entries.used[:count], entries.used[count:-1]
        paths = (path for entry in since for path in _paths(_tables(entry)))
        names = {name for entry in below for name in _names(_tables(entry))}
        added = carry.added_by(paths, names)
        return (checks if added else {}), source, added
    return {}, "", None


def _manifests(directory: Path) -> Iterator[Manifest]:
    for name in store.image_names(directory):
        path = directory / f"{name}.sif"
        with suppress(ToolkitError, OSError):
            manifest = store.manifest_of(path, store.whole_header(path))
            if manifest is not None and not manifest.origin:
                yield manifest


def _tables(entry: CacheEntry) -> Tables:
    return compose.read_image_tables(entry.path)


def _paths(
    tables: Tables, reference: int | None = None, above: str = ""
) -> Iterator[tuple[str, bool]]:
    """Yield every path of a layer but directories, and whether it marks a removal."""
    directory = read_inode(tables, tables.head.root if reference is None else reference)
    for entry in list_directory(tables, directory):
        path = above + os.fsdecode(entry.name)
        if entry.kind == DIRECTORY:
            yield from _paths(tables, entry.inode, f"{path}/")
        else:
            yield path, is_whiteout(read_inode(tables, entry.inode))


def _names(tables: Tables) -> Iterator[str]:
    """Yield the names of the modules, distributions and programs of a layer, and a few more."""
    for path in _PROGRAMS:
        yield from _listed(tables, path)
    for site in _SITES:
        for version in ("", *_listed(tables, site)):
            for folder in ("site-packages", "dist-packages"):
                for name in _listed(tables, "/".join(filter(None, (site, version, folder)))):
                    yield carry.name_of(name)


def _listed(tables: Tables, path: str) -> list[str]:
    """Return the names in a directory of a layer; none if it has no such directory."""
    directory = read_inode(tables, tables.head.root)
    for part in path.split("/"):
        entries = list_directory(tables, directory)
        entry = next((each for each in entries if os.fsdecode(each.name) == part), None)
        if entry is None or entry.kind != DIRECTORY:
            return []
        directory = read_inode(tables, entry.inode)
    return [os.fsdecode(entry.name) for entry in list_directory(tables, directory)]
