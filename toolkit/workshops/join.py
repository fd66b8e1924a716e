"""Join a workshop: fetch it, copy its exercises, and write the settings by which they run."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from toolkit.config import PROJECT_FILE
from toolkit.errors import (
    EXHAUSTED,
    CommandFailedError,
    ConfigError,
    MalformedInputError,
    NoSpaceError,
    ScriptMissingError,
    UsageError,
)
from toolkit.files import hash_file, read_json, read_text, temporary_beside, write_atomically
from toolkit.model.base import to_json, toml_value
from toolkit.shell import Progress
from toolkit.units import human_size
from toolkit.workshops import archive
from toolkit.workshops.model import CONTENTS, JOINED, PACKED, SIGNATURE, Contents, Joined

_HEAD = (
    "# Written by toolkit workshop join, and again when you join again; yours is kept as .old-1.\n"
)
_UNPACKED = ".workshop"


class Membership(NamedTuple):
    """A joined workshop: its directory and contents, and which folders stayed unchanged."""

    directory: Path
    joined: Joined
    contents: Contents
    unchanged: tuple[str, ...] = ()

    @property
    def source(self) -> Path:
        """The directory of the unpacked workshop."""
        return Path(self.joined.source)


def join(
    source: str,
    directory: Path | None,
    *,
    share: bool | None,
    verify: archive.Verify | None,
    progress: Progress,
) -> Membership:
    """Join a workshop; folders of exercises that exist already are not touched.

    Args:
        source: the packed file, its URL, that of its pages, or the directory it was unpacked to.
        directory: the participant's; by default one of the workshop's name.
        share: leave the results of runs in the workshop's shared directory; None: as chosen when
            joining before, else not.
        verify: of the signature, if a key was given.
        progress: shows the steps.

    Raises:
        ScriptMissingError: there is no such file or directory.
        MalformedInputError: it is no packed workshop, or was changed.
        NoSpaceError: the disk has too little room; nothing half-written is left.
        UsageError: the directory has settings that no workshop wrote.
    """
    if "://" in source:
        place = (directory or Path("x")).absolute().parent
        with temporary_beside(place / "toolkit-workshop") as scratch:
            progress.begin("fetch", source)
            packed = str(fetch(source, scratch))
            return join(packed, directory, share=share, verify=verify, progress=progress)
    path = Path(source)
    if path.is_dir():
        contents = contents_of(path, verify)
    elif path.is_file():
        contents = archive.read_contents(path, verify)
    else:
        raise ScriptMissingError(
            f"there is no workshop {source}", place="SOURCE", next_step="toolkit workshop --help"
        )
    mine = directory or Path(contents.name)
    if (mine / PROJECT_FILE).exists() and not (mine / JOINED).is_file():
        raise UsageError(
            f"{mine} has a {PROJECT_FILE} of its own, which joining would replace",
            place=str(mine),
            next_step="join in another directory: toolkit workshop join SOURCE DIRECTORY",
        )
    if path.is_file():
        contents = _unpack(path, mine / _UNPACKED, contents, verify, progress)
        path = mine / _UNPACKED
    return _settle(path.resolve(), contents, mine, share=share)


def fetch(url: str, directory: Path) -> Path:
    """Fetch a packed workshop into a directory, by its own address or that of its pages.

    Raises:
        CommandFailedError: the address is not one of HTTP, or the server does not answer or has no
            such file.
        NoSpaceError: the disk has too little room.
    """
    from toolkit.images.registry import web  # with the modules of HTTP

    address, mark, query = url.partition("#")[0].partition("?")  # it may have the file's key
    if not address.endswith(".tar"):
        page = address.rpartition("/")[0] if address.endswith(".html") else address
        address = f"{page.rstrip('/')}/{PACKED}"
    target, most = directory / PACKED, shutil.disk_usage(directory).free // 2
    try:
        with target.open("wb") as output:
            web.download(f"{address}{mark}{query}", output.write, most)
    except MalformedInputError:  # a server can send without an end
        raise NoSpaceError(
            f"the workshop has more than {human_size(most)}, and takes twice its size to unpack",
            place=str(directory),
            next_step="join on a file system with more room",
        ) from None
    except web.FAILURES as error:
        if getattr(error, "errno", None) in EXHAUSTED:  # the disk, or a quota
            raise
        raise CommandFailedError(
            f"the workshop could not be fetched: {web.explain(error)}",
            place=url,
            next_step="check the address, or fetch the file with a browser and join it",
        ) from None
    return target


def _unpack(
    packed: Path,
    unpacked: Path,
    contents: Contents,
    verify: archive.Verify | None,
    progress: Progress,
) -> Contents:
    """Unpack a workshop unless it was unpacked there before; return its contents.

    What is incomplete is removed: a site may purge files that are not read for some weeks.
    """
    if unpacked.exists():
        try:
            before = contents_of(unpacked)
        except (ConfigError, MalformedInputError):
            shutil.rmtree(unpacked)
        else:
            if before == contents:
                return contents
            raise UsageError(
                f"{unpacked.parent} has joined another edition of this workshop",
                place=str(unpacked),
                next_step="join in another directory: toolkit workshop join FILE DIRECTORY",
            )
    progress.begin("unpack", packed.name)
    unpacked.parent.mkdir(parents=True, exist_ok=True)
    contents = archive.unpack(packed, unpacked, verify)
    progress.end()
    return contents


def contents_list(source: Path, verify: archive.Verify | None = None) -> Contents:
    """Return the contents that an unpacked workshop lists.

    Raises:
        ConfigError: it is a workshop's own folder, or no workshop.
        MalformedInputError: its list is not valid.
    """
    if not (source / CONTENTS).is_file():
        raise ConfigError(
            f"{source} is no unpacked workshop",
            place=str(source),
            next_step="toolkit workshop pack WORKSHOP, and join the file",
        )
    data = read_text(source / CONTENTS).encode()
    if verify is not None:
        signature = source / SIGNATURE
        verify(data, archive.read_signature(signature) if signature.is_file() else b"")
    return archive.parse_contents(data, source / CONTENTS)


def contents_of(source: Path, verify: archive.Verify | None = None) -> Contents:
    """Return the contents of an unpacked workshop, of which all listed files are there.

    Images and data are hashed only if the signature is verified, too: unpacking has hashed them,
    but another user's directory may not come from unpacking at all.

    Raises:
        ConfigError: it is a workshop's own folder, or no workshop.
        MalformedInputError: a file is missing, has another size, or an exercise was changed.
    """
    contents = contents_list(source, verify)
    for name, expected in contents.files.items():
        file = source / name
        if not file.is_file():
            raise archive.malformed(f"{name} is missing", source)
        is_hashed = verify is not None or not name.startswith(("images/", "data/"))
        if file.stat().st_size != expected.size or (
            is_hashed and hash_file(file) != expected.sha256
        ):
            raise archive.malformed(f"{name} was changed", source)
    return contents


def _settle(source: Path, contents: Contents, mine: Path, *, share: bool | None) -> Membership:
    """Copy what is not there yet, and write the settings."""
    mine.mkdir(parents=True, exist_ok=True)
    names = tuple(exercise.name for exercise in contents.workshop.exercises)
    unchanged = tuple(name for name in names if os.path.lexists(mine / name))
    for name in sorted({*names} - {*unchanged}):
        with archive.copy_of_exercise(contents, source, name, mine / name) as copy:
            copy.rename(mine / name)
    if share is None:
        # Not joined yet, or the file is broken: there is no consent.
        with contextlib.suppress(ConfigError):
            share = bool(read_json(mine / JOINED, Joined, searched=True).results)
    joined = Joined(
        source=str(source),
        name=contents.name,
        exercises=names,
        results=contents.workshop.results if share else "",
    )
    write_atomically(mine / JOINED, to_json(joined))  # first: with it, joining can be repeated
    text = _HEAD + to_toml(settings(source, contents))
    if (mine / PROJECT_FILE).is_file() and read_text(mine / PROJECT_FILE) != text:
        _set_aside(mine / PROJECT_FILE)  # with the options that the participant changed
    write_atomically(mine / PROJECT_FILE, text)
    return Membership(mine.resolve(), joined, contents, unchanged)


def _set_aside(path: Path) -> Path:
    """Rename a participant's file or folder to the next free name; return that."""
    names = (path.with_name(f"{path.name}.old-{number}") for number in range(1, 10_000))
    return path.rename(next(name for name in names if not os.path.lexists(name)))


def settings(source: Path, contents: Contents) -> dict[str, object]:
    """Return the settings of a participant's ``toolkit.toml``."""
    workshop = contents.workshop
    data = [f"{source}/data/{name}.sqfs:/data/{name}:squashfs" for name in workshop.data]
    binds = {"bind": [*(workshop.bind or ()), *data]} if workshop.bind or data else {}
    return {**workshop.job_options(), **binds, "images": [str(source / "images")]}


def to_toml(table: Mapping[str, object]) -> str:
    """Return a table whose keys are those of a model as TOML, a key on each line."""
    return "".join(f"{name} = {toml_value(value)}\n" for name, value in table.items())


def reset(directory: Path, joined: Joined, name: str) -> Path | None:
    """Put an exercise back as it was; return where the participant's work is kept.

    Raises:
        ScriptMissingError: the workshop has no such exercise, or is no longer there.
    """
    source, own = Path(joined.source), directory / name
    is_there = (source / CONTENTS).is_file() and (source / "exercises" / name).is_dir()
    if name not in joined.exercises or not is_there:
        raise ScriptMissingError(
            f"no exercise {name} of the workshop {joined.name} is at {joined.source}",
            place="NAME",
            choices=joined.exercises,
            value=name,
        )
    contents = contents_list(source)
    with archive.copy_of_exercise(contents, source, name, own) as copy:
        aside = _set_aside(own) if os.path.lexists(own) else None
        copy.rename(own)
    return aside
