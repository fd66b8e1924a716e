"""Copy the work tree of a run to ``code/`` in its directory.

What git tracks, and what it neither tracks nor ignores, is copied; files that usually hold secrets
are not. The copies cannot be written to, so that a run that is repeated runs the same code; its
directories can, so that what ranks write to the working directory stays with the run.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from toolkit import git
from toolkit.errors import ConfigError, NoSpaceError, UsageError
from toolkit.files import write_atomically
from toolkit.model.base import to_json
from toolkit.model.code import Snapshot, Tree
from toolkit.runs.code import SECRET_FILES
from toolkit.runs.store import Paths
from toolkit.units import human_size

MOST_BYTES = 256 << 20
MOST_FILES = 20_000
_EXAMPLES = ("*.example", "*.sample", "*.template", "*.dist")  # .env.example is meant to be shared
_CHUNK = 1 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


class _Entry(NamedTuple):
    name: str
    size: int
    mode: int


def tree_of(folder: Path, cwd: Path) -> Tree:
    """Return the work tree that a snapshot of a script's directory is taken of.

    Raises:
        UsageError: git does not know the directory.
    """
    root = git.top(folder)
    if root is None:
        raise UsageError(
            f"{folder} is not in a git work tree; a snapshot copies what git does not ignore",
            place="--snapshot",
            next_step="git init, and a .gitignore for data and results; or --no-snapshot",
        )
    return Tree(root=str(root), cwd=str(cwd))


def of_run(run: Path) -> Snapshot | None:
    """Return the snapshot of a run; None if it has none."""
    paths = Paths(run)
    return paths.read(paths.snapshot, Snapshot)


def take(paths: Paths, tree: Tree, directory: str, folder: str) -> Snapshot:
    """Copy a work tree into a run's directory.

    Args:
        paths: of the run.
        tree: the work tree, or the snapshot of an earlier run.
        directory: working directory of the ranks.
        folder: directory of the script.

    Raises:
        UsageError: git does not tell its files.
        NoSpaceError: there are too many, or they are too large.
        ConfigError: the snapshot that is to be repeated has changed.
    """
    root, before = Path(tree.root), of_run(Path(tree.root).parent) if tree.is_copy else None
    names = before.files if before else _names(root, paths.directory.parent)
    entries, left_out = _sorted_out(root, names, keep_secrets=before is not None)
    _check(root, entries)
    digests = {entry.name: _copy(root, entry, paths.code_tree) for entry in entries}
    if before is not None:
        _require_same(before, digests)
        left_out = before.left_out
    taken = Snapshot(
        root=before.root if before else tree.root,
        directory=_within(root, directory),
        folder=_within(root, folder),
        files=digests,
        left_out=left_out,
        size=sum(entry.size for entry in entries),
    )
    for place in (taken.directory, taken.folder):
        if not place.startswith("/"):
            (paths.code_tree / place).mkdir(parents=True, exist_ok=True)
    write_atomically(paths.snapshot, to_json(taken))
    return taken


def _within(root: Path, path: str) -> str:
    place = PurePosixPath(path)
    return str(place.relative_to(root)) if place.is_relative_to(root) else path


def _names(root: Path, runs: Path) -> Sequence[str]:
    """Return the names of what git does not ignore, but never runs: they would hold each other.

    What Python compiles is left out, too: without a .gitignore for it, the first run would write it
    again in the copy, which could not be repeated then.
    """
    names = git.files(root)
    if names is None:
        raise UsageError(
            f"git does not tell the files of {root}",
            place="--snapshot",
            next_step=f"git -C {root} status says why",
        )
    own = os.path.relpath(runs.resolve(), root.resolve())
    return [
        name
        for name in names
        if not _is_compiled(name) and not PurePosixPath(name).is_relative_to(own)
    ]


def _is_compiled(name: str) -> bool:
    """Return whether Python writes a file by itself, beside the sources that it imports."""
    return "__pycache__" in PurePosixPath(name).parts


def is_secret_file(name: str) -> bool:
    """Return whether a file usually holds secrets, by its name."""
    last = PurePosixPath(name).name.lower()
    return any(fnmatchcase(last, pattern) for pattern in SECRET_FILES) and not any(
        fnmatchcase(last, pattern) for pattern in _EXAMPLES
    )


def _sorted_out(
    root: Path, names: Iterable[str], *, keep_secrets: bool
) -> tuple[list[_Entry], tuple[str, ...]]:
    """Return what is copied, and the names of what is not; what was deleted is neither."""
    entries, left_out = [], []
    for name in names:
        try:
            status = (root / name).lstat()
        except OSError:
            continue
        is_file = stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
        is_secret = is_secret_file(name) and not keep_secrets
        if not is_file or is_secret or not _is_inside(root, root / name):
            left_out.append(name)
        else:
            entries.append(_Entry(name, status.st_size, status.st_mode))
    return entries, tuple(left_out)


def _is_inside(root: Path, path: Path) -> bool:
    """Return whether a file lies in the tree itself, and not behind a link that leads out of it."""
    return Path(os.path.realpath(path.parent)).is_relative_to(os.path.realpath(root))


def _check(root: Path, entries: Sequence[_Entry]) -> None:
    total = sum(entry.size for entry in entries)
    if total <= MOST_BYTES and len(entries) <= MOST_FILES:
        return
    sizes: Counter[str] = Counter()
    for entry in entries:
        sizes[entry.name.partition("/")[0]] += entry.size
    limit = f"{human_size(MOST_BYTES)} and {MOST_FILES} files"
    raise NoSpaceError(
        f"a snapshot would have {human_size(total)} in {len(entries)} files; {limit} are the most",
        place=str(root),
        details=[f"{human_size(size):>7}  {name}" for name, size in sizes.most_common(5)],
        next_step="add data and results to .gitignore: what git ignores is not copied",
    )


def _copy(root: Path, entry: _Entry, target: Path) -> str:
    """Copy a file or a symbolic link, and return the hash of its content."""
    source, copy = root / entry.name, target / entry.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISLNK(entry.mode):
        text = _link(root, source)
        copy.symlink_to(text)
        return hashlib.sha256(os.fsencode(text)).hexdigest()
    digest = hashlib.sha256()
    with _opened(source, os.O_RDONLY | os.O_NONBLOCK) as reading, _opened(copy, _NEW) as writing:
        while data := os.read(reading, _CHUNK):
            digest.update(data)
            _write_all(writing, data)
        os.fchmod(writing, (stat.S_IMODE(entry.mode) & 0o555) | stat.S_IRUSR)
    return digest.hexdigest()


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


def _link(root: Path, source: Path) -> str:
    """Return the target of a link's copy: in the tree the copied file, outside the same file."""
    text = str(source.readlink())
    meant = os.path.normpath(source.parent / text)
    if not PurePosixPath(meant).is_relative_to(root):
        return meant
    return os.path.relpath(meant, source.parent) if text.startswith("/") else text


def _require_same(before: Snapshot, digests: dict[str, str]) -> None:
    files = {name: digest for name, digest in before.files.items() if not _is_compiled(name)}
    changed = [name for name, digest in files.items() if digests.get(name) != digest]
    if changed:
        raise ConfigError(
            f"{len(changed)} of {len(before.files)} files of the snapshot are not as they were",
            place="--snapshot",
            details=sorted(changed)[:5],
            next_step="run the job from its work tree: --no-snapshot",
        )
