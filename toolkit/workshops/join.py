"""Join a workshop: copy its exercises, and write the settings by which they run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from toolkit.errors import (
    CommandFailedError,
    ConfigError,
    MalformedInputError,
    NoSpaceError,
    ScriptMissingError,
    UsageError,
)
from toolkit.exercises import copy_folder
from toolkit.files import hash_file, read_json, read_text, write_atomically
from toolkit.model.base import to_json, toml_value
from toolkit.model.job import PROJECT_FILE
from toolkit.progress import Progress
from toolkit.units import human_size
from toolkit.workshops import archive
from toolkit.workshops.model import CONTENTS, JOINED, SIGNATURE, WORKSHOP, Contents, Joined
from toolkit.workshops.pack import PACKED

_HEAD = (
    "# Written by toolkit workshop join, and again when you join again; yours is kept as .old-1.\n"
)
_UNPACKED = ".workshop"
_MOST = 1 << 40


class Membership(NamedTuple):
    """A joined workshop: its directory and contents, and which folders stayed unchanged."""

    directory: Path
    joined: Joined
    contents: Contents
    unchanged: tuple[str, ...] = ()


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
        with tempfile.TemporaryDirectory(
            prefix=".toolkit-workshop-", dir=_place(directory)
        ) as name:
            progress.begin("fetch", source)
            packed = _fetch(source, Path(name))
            return _join_file(packed, directory, share=share, verify=verify, progress=progress)
    path = Path(source)
    if path.is_dir():
        contents = contents_of(path, verify)
        mine = directory or Path(contents.name)
        _require_ours(mine)
        return _settle(path.resolve(), contents, mine, share=share)
    if not path.is_file():
        raise ScriptMissingError(
            f"there is no workshop {source}", place="SOURCE", next_step="toolkit workshop --help"
        )
    return _join_file(path, directory, share=share, verify=verify, progress=progress)


def _place(directory: Path | None) -> Path:
    place = (directory or Path("x")).absolute().parent
    place.mkdir(parents=True, exist_ok=True)
    return place


def _join_file(
    packed: Path,
    directory: Path | None,
    *,
    share: bool | None,
    verify: archive.Verify | None,
    progress: Progress,
) -> Membership:
    contents = archive.read_contents(packed, verify)
    _require_exercises(contents, packed)
    mine = directory or Path(contents.name)
    _require_ours(mine)
    unpacked = mine / _UNPACKED
    if not unpacked.exists() or contents_of(unpacked) != contents:
        if unpacked.exists():
            raise UsageError(
                f"{mine} has joined another edition of this workshop",
                place=str(unpacked),
                next_step="join in another directory: toolkit workshop join FILE DIRECTORY",
            )
        progress.begin("unpack", packed.name)
        mine.mkdir(parents=True, exist_ok=True)
        archive.unpack(packed, unpacked, verify)
        progress.end()
    return _settle(unpacked.resolve(), contents, mine, share=share)


def _fetch(url: str, directory: Path) -> Path:
    """Fetch a packed workshop; of an address that names no file, the one of its pages."""
    import shutil

    from toolkit.images.registry import web

    if urlsplit(url).path.endswith(("/", ".html")) or not Path(urlsplit(url).path).suffix:
        url = url.rpartition("/")[0] + f"/{PACKED}" if url.endswith(".html") else url
        url = url if url.endswith(PACKED) else f"{url.rstrip('/')}/{PACKED}"
    target = directory / PACKED
    try:
        with web.make_opener().open(url, timeout=30) as answer, target.open("wb") as output:
            size = int(answer.headers.get("Content-Length") or 0)
            if shutil.disk_usage(directory).free < 2 * size:
                raise NoSpaceError(
                    f"the workshop has {human_size(size)}, and takes twice this to unpack",
                    place=str(directory),
                    next_step="join on a file system with more room",
                )
            web.copy_stream(answer, output.write, _MOST)
    except MalformedInputError:
        raise
    except web.FAILURES as error:
        raise CommandFailedError(
            f"the workshop could not be fetched: {error}",
            place=url,
            next_step="check the address, or fetch the file with a browser and join it",
        ) from None
    return target


def contents_of(source: Path, verify: archive.Verify | None = None) -> Contents:
    """Return the contents of an unpacked workshop, of which all listed files are there.

    Raises:
        ConfigError: it is a workshop's own folder, or no workshop.
        MalformedInputError: a file is missing, has another size, or an exercise was changed.
    """
    path = source / CONTENTS
    if not path.is_file():
        is_folder = (source / WORKSHOP).is_file()
        step = f"toolkit workshop pack {source}" if is_folder else "toolkit workshop unpack FILE"
        raise ConfigError(
            f"{source} is {'not packed' if is_folder else 'no unpacked workshop'}",
            place=str(source),
            next_step=step,
        )
    data = read_text(path).encode()
    if verify is not None:
        signature = source / SIGNATURE
        verify(data, signature.read_bytes() if signature.is_file() else b"")
    contents = archive.parse_contents(data, path)
    _require_exercises(contents, source)
    for name, expected in contents.files.items():
        file = source / name
        if not file.is_file():
            raise _damaged(source, f"{name} is missing")
        is_large = name.startswith(("images/", "data/"))  # which unpacking has hashed
        if file.stat().st_size != expected.size or (
            not is_large and hash_file(file) != expected.sha256
        ):
            raise _damaged(source, f"{name} was changed")
    return contents


def _require_exercises(contents: Contents, place: Path) -> None:
    for exercise in contents.workshop.exercises:
        prefix = f"exercises/{exercise.name}/"
        if not any(name.startswith(prefix) for name in contents.files):
            raise _damaged(place, f"it has no files of the exercise {exercise.name}")


def _damaged(source: Path, reason: str) -> MalformedInputError:
    return MalformedInputError(
        f"the workshop is not complete: {reason}",
        place=str(source),
        next_step="get the file again, or unpack it: toolkit workshop unpack FILE DIRECTORY",
    )


def _require_ours(mine: Path) -> None:
    if (mine / PROJECT_FILE).exists() and not (mine / JOINED).is_file():
        raise UsageError(
            f"{mine} has a {PROJECT_FILE} of its own, which joining would replace",
            place=str(mine),
            next_step="join in another directory: toolkit workshop join SOURCE DIRECTORY",
        )


def _settle(source: Path, contents: Contents, mine: Path, *, share: bool | None) -> Membership:
    """Copy what is not there yet, and write the settings."""
    mine.mkdir(parents=True, exist_ok=True)
    unchanged = []
    names = tuple(exercise.name for exercise in contents.workshop.exercises)
    for name in names:
        if os.path.lexists(mine / name):
            unchanged.append(name)
        else:
            copy_folder(source / "exercises" / name, mine / name)
    if share is None:
        share = _shared_before(mine)
    joined = Joined(
        source=str(source),
        name=contents.name,
        exercises=names,
        results=contents.workshop.results if share else "",
    )
    text = _HEAD + to_toml(settings(source, contents))
    if (mine / PROJECT_FILE).is_file() and read_text(mine / PROJECT_FILE) != text:
        _set_aside(mine / PROJECT_FILE)  # with the options that the participant changed
    write_atomically(mine / PROJECT_FILE, text)
    write_atomically(mine / JOINED, to_json(joined))
    return Membership(mine.resolve(), joined, contents, tuple(unchanged))


def _shared_before(mine: Path) -> bool:
    try:
        return bool(read_json(mine / JOINED, Joined).results)
    except ConfigError:  # not joined yet, or the file is broken
        return False


def _set_aside(path: Path) -> Path:
    """Rename a participant's file or folder to the next free name; return that."""
    names = (path.with_name(f"{path.name}.old-{number}") for number in range(1, 10_000))
    return path.rename(next(name for name in names if not os.path.lexists(name)))


def settings(source: Path, contents: Contents) -> dict[str, object]:
    """Return the settings of a participant's ``toolkit.toml``."""
    options = contents.workshop.job_options()
    binds = options.pop("bind", ())
    data = [f"{source}/data/{name}.sqfs:/data/{name}:squashfs" for name in contents.workshop.data]
    assert isinstance(binds, tuple)
    return {
        **options,
        **({"bind": [*binds, *data]} if binds or data else {}),
        "images": [str(source / "images")],
    }


def to_toml(table: Mapping[str, object]) -> str:
    """Return a table whose keys are those of a model as TOML, a key on each line."""
    return "".join(f"{name} = {toml_value(value)}\n" for name, value in table.items())


def reset(directory: Path, joined: Joined, name: str) -> Path | None:
    """Put an exercise back as it was; return where the participant's work is kept.

    Raises:
        ScriptMissingError: the workshop has no such exercise.
    """
    if name not in joined.exercises:
        raise ScriptMissingError(
            f"the workshop {joined.name} has no exercise {name}",
            place="NAME",
            choices=joined.exercises,
            value=name,
        )
    source, own, aside = Path(joined.source) / "exercises" / name, directory / name, None
    if not source.is_dir():
        raise ScriptMissingError(
            f"the workshop {joined.name} is no longer at {joined.source}",
            place=str(source),
            next_step="toolkit workshop join SOURCE OTHER-DIRECTORY; nothing was changed here",
        )
    if os.path.lexists(own):
        aside = _set_aside(own)
    copy_folder(source, own)
    return aside
