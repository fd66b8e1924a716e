"""Take over byte code from the layer that the same step made in an earlier build.

The last step compiles all Python files of an image, of which a new step below it has changed few.
An earlier layer of the step is used if it was made by the same script, on some of the first layers
that this build has: what the layers since have not touched compiles to the same bytes. The step's
`compileall` passes over these sources, and their byte code is copied when the step has run. If the
step did anything else to one of them, it runs again without this.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from toolkit.images.builder.apptainer.inroot import is_below, walk_leaves
from toolkit.images.builder.apptainer.protocol import Task
from toolkit.images.recipe.digests import hash_texts

if TYPE_CHECKING:
    from toolkit.images.recipe.chain import Link
    from toolkit.images.store.cache import CacheEntry

_BELOW, _SCRIPT = "below", "script"  # facts of a layer in the cache
# Where the layers since may have changed something: what pip installs, and no interpreter.
_HARMLESS = ("opt/venv/lib/", "opt/venv/bin/", "opt/toolkit/")
_INTERPRETERS = "opt/venv/bin/python"
Seeds: TypeAlias = Mapping[str, tuple[str, ...]]  # sources and their byte code
# The step finds this before the module of that name of its own Python.
COMPILEALL = """\
import importlib.machinery, importlib.util, os, sys, types
here = os.path.dirname(os.path.abspath(__file__))
path = [entry for entry in sys.path if os.path.abspath(entry) != here]
spec = importlib.machinery.PathFinder.find_spec("compileall", path)
real = importlib.util.module_from_spec(spec)
sys.modules["compileall"] = real
spec.loader.exec_module(real)
with open(os.path.join(here, "skipped"), "rb") as stream:
    skipped = set(map(os.fsdecode, stream.read().split(b"\\0")))
def listdir(directory):
    with os.scandir(directory) as entries:  # asks for the kind of no file, unlike the module
        return [
            entry.name
            for entry in entries
            if entry.is_dir() or entry.name.endswith(".py") and entry.path not in skipped
        ]
real.os = types.SimpleNamespace(**{**vars(os), "listdir": listdir})
if __name__ == "__main__":
    sys.exit(int(not real.main()))
"""


def facts_of(link: Link, below: Iterable[CacheEntry]) -> dict[str, str]:
    """Return the facts by which a later build knows whether a layer fits it."""
    digests = " ".join(entry.note.digest for entry in below)
    return {_BELOW: digests, _SCRIPT: hash_texts(link.script)}


def choose(
    entries: Iterable[CacheEntry], link: Link, used: Sequence[CacheEntry]
) -> tuple[CacheEntry, int] | None:
    """Return the layer that most of this build's layers are below, and their number.

    Args:
        entries: All entries of the cache.
        link: The step that has to run.
        used: The base and the layers that are below it and come from the cache.
    """
    digests = [entry.note.digest for entry in used]
    fitting: list[tuple[int, CacheEntry]] = []
    for entry in entries:
        below = entry.note.facts.get(_BELOW, "").split()
        same = entry.note.facts.get(_SCRIPT) == hash_texts(link.script)
        if below and same and digests[: len(below)] == below:
            fitting.append((len(below), entry))
    if not fitting:
        return None
    count, entry = max(fitting, key=lambda pair: pair[0])
    return entry, count


def find(task: Task, below: str) -> Seeds:
    """Return the sources that a task need not compile, and their byte code; paths in the image.

    Args:
        task: The task.
        below: Where the layers are mounted that its seed was made on.
    """
    changed: set[str] = set()
    for layer in task.lowers[: len(task.lowers) - task.seed_below]:
        for inner in _inner_paths(layer):
            if not inner.startswith(_HARMLESS) or inner.startswith(_INTERPRETERS):
                return {}
            changed.add(inner)
    made = set(_inner_paths(task.seed, only_files=True))
    codes: dict[str, list[str]] = {}
    for path in made:
        if source := _source_of(path):
            codes.setdefault(source, []).append(path)
    files = lru_cache(maxsize=None)(lambda directory: _names_of_files(below, directory, changed))
    return {
        source: tuple(paths)
        for source, paths in codes.items()
        if changed.isdisjoint((source, *paths))
        and source not in made  # else the step changes it
        and os.path.basename(source) in files(os.path.dirname(source))  # noqa: PTH119, PTH120
    }


def _inner_paths(root: str, *, only_files: bool = False) -> Iterator[str]:
    """Yield the relative paths of all that is below a directory but directories."""
    for entry in walk_leaves(root):
        if not only_files or entry.is_file(follow_symlinks=False):
            yield entry.path[len(root) + 1 :]


def _source_of(path: str) -> str | None:
    directory, _, name = path.rpartition("/")
    package, _, folder = directory.rpartition("/")
    stem, _, rest = name.partition(".")
    is_plain = folder == "__pycache__" and rest.endswith(".pyc") and rest.count(".") == 1
    return f"{package}/{stem}.py" if is_plain else None


def _names_of_files(root: str, directory: str, changed: set[str]) -> frozenset[str]:
    """Return the names of a directory's regular files; none if something replaces it."""
    if not changed.isdisjoint(_ancestors(directory)) or not is_below(root, directory):
        return frozenset()
    with suppress(OSError), os.scandir(f"{root}/{directory}") as entries:
        return frozenset(entry.name for entry in entries if entry.is_file(follow_symlinks=False))
    return frozenset()


def _ancestors(path: str) -> list[str]:
    """Return a path and all paths above it."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def is_untouched(upper: str, sources: Collection[str]) -> bool:
    """Return whether a completed step has neither changed nor hidden any of the sources.

    Args:
        upper: What the step changed, in which whiteouts mark all that it removed.
        sources: Their paths.
    """
    directories = {source.rpartition("/")[0] for source in sources}
    paths = {path for directory in directories for path in _ancestors(directory)}
    paths.update(sources)
    return paths.isdisjoint(_inner_paths(upper))


def make_directories(root: str, seeds: Seeds) -> None:
    """Make the directories of byte code in a mounted image, as the step would.

    Raises:
        OSError: One cannot be made.
    """
    for directory in sorted({os.path.dirname(path) for paths in seeds.values() for path in paths}):  # noqa: PTH120
        if is_below(root, os.path.dirname(directory)):  # noqa: PTH120
            try:
                os.mkdir(f"{root}/{directory}")  # noqa: PTH102
            except FileExistsError:
                os.utime(f"{root}/{directory}")  # overlayfs copies it to the upper directory


def copy(upper: str, seeds: Seeds, seed: str) -> list[str]:
    """Copy byte code to what the step changed; return whole directories that are not copied.

    What the step has made itself is not replaced.
    """
    directories: dict[str, set[str]] = {}
    for path in (path for paths in seeds.values() for path in paths):
        directory, _, name = path.rpartition("/")
        directories.setdefault(directory, set()).add(name)
    whole: list[str] = []
    for directory, names in directories.items():
        if not is_below(upper, directory):
            continue
        if names == set(os.listdir(f"{seed}/{directory}")) and not os.listdir(  # noqa: PTH208
            f"{upper}/{directory}"
        ):
            whole.append(directory)
        else:
            for name in names:
                with suppress(FileExistsError):
                    _copy_file(f"{seed}/{directory}/{name}", f"{upper}/{directory}/{name}")
    return whole


def _copy_file(source: str, target: str) -> None:
    """Copy a file to one that does not exist."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(target, flags, 0o600), "wb", buffering=0) as stream:
        stream.write(Path(source).read_bytes())
        os.fchmod(stream.fileno(), stat.S_IMODE(os.lstat(source).st_mode))
