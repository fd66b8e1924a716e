"""The code of a run: the script's hash, the commit and its changes, and perhaps a copy of the tree.

With ``--snapshot`` what git tracks, and what it neither tracks nor ignores, is copied to ``code/``
in the run's directory, but for files that usually hold secrets. The copies cannot be written to, so
that a run that is repeated runs the same code; its directories can, so that what ranks write to the
working directory stays with the run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from toolkit import git
from toolkit.errors import ConfigError, NoSpaceError, UsageError
from toolkit.files import hash_file, open_regular, write_atomically
from toolkit.model.base import to_json
from toolkit.model.run import Code, ScriptFile, Snapshot, Tree
from toolkit.runs.run import Run
from toolkit.text import HIDDEN, redacted
from toolkit.units import human_size

_MOST_DIFF = 1 << 20  # characters of a diff that are kept
_MOST_UNTRACKED = 1000  # names that are kept
# Names of files that usually hold secrets: their content is never copied.
SECRET_FILES = (
    *(".env", ".env.*", "*.env", ".envrc", ".netrc", ".pypirc", ".npmrc", ".pgpass", ".htpasswd"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.kdbx", "*.gpg", "*.ppk"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"),
    *("credentials", "*token.txt", "kaggle.json"),
    *(
        f"{name}.{ending}"
        for name in ("credentials", "secret", "secrets")
        for ending in ("json", "toml", "yaml", "yml", "ini", "txt")
    ),
)
IGNORE = ".toolkitignore"
MOST_BYTES = 256 << 20
MOST_FILES = 20_000
_EXAMPLES = ("*.example", "*.sample", "*.template", "*.dist")  # .env.example is meant to be shared


def record(run: Run, script: ScriptFile | None, folder: Path, secrets: Iterable[str]) -> None:
    """Record the code of a run. No run fails for it.

    Args:
        run: that the code is of.
        script: that is run.
        folder: the directory that it lies in.
        secrets: values that must not be in the diff.
    """
    tree, code, diff = git.top(folder), Code(), ""
    if tree is not None:
        code = git.state(tree) or Code(tree=str(tree))
        if code.is_changed and code.commit:
            diff = git.diff(tree, SECRET_FILES, _MOST_DIFF) or ""
    runs = run.directory.parent.resolve()
    untracked = [name for name in code.untracked if Path(code.tree, name) != runs]
    code = replace(
        code,
        script=script,
        is_cut=len(diff) >= _MOST_DIFF,
        untracked=tuple(untracked[:_MOST_UNTRACKED]),
    )
    for value in secrets:
        if len(value) >= 4:  # a shorter one would be found in every line
            diff = diff.replace(value, HIDDEN)
    with suppress(OSError, ValueError):
        if diff:
            write_atomically(run.directory / "code.diff", redacted(diff), mode=0o600)
        write_atomically(run.directory / "code.json", to_json(code))


def change_since(run: Run, script: ScriptFile | None) -> str:
    """Return a warning if a script is not the one that an earlier run had; else nothing."""
    before = None
    with suppress(ConfigError):
        before = run.plan.script_file
    if script is None or before is None or before.sha256 == script.sha256:
        return ""
    name = Path(script.path).name
    return f"{name} has changed since {run.name}; it runs as it is now (--snapshot keeps a copy)"


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


def snapshot_of(run: Run) -> Snapshot | None:
    """Return the snapshot of a run; None if it has none."""
    return run.read("snapshot.json", Snapshot)


def copy(run: Run, tree: Tree, directory: str, folder: str) -> None:
    """Copy a work tree into a run's directory; with a snapshot also the record of its code.

    Args:
        run: that gets the copy.
        tree: the work tree, or the snapshot of an earlier run.
        directory: working directory of the ranks.
        folder: directory of the script.

    Raises:
        UsageError: git does not tell its files.
        NoSpaceError: there are too many, or they are too large.
        ConfigError: the snapshot that is to be repeated has changed.
    """
    root, target = Path(tree.root), run.directory / "code"
    before = snapshot_of(Run(root.parent)) if tree.is_copy else None
    sizes, left_out = choose(root, before.files if before else names_of(root, run.directory.parent))
    _check_size(root, sizes)
    files = {name: _copy_file(root, name, target) for name in sizes}
    taken = Snapshot(
        root=before.root if before else tree.root,
        directory=_within(root, directory),
        folder=_within(root, folder),
        files=files,
        left_out=before.left_out if before else left_out,
        size=sum(sizes.values()),
    )
    if before and before.files != files:
        changed = sorted(dict(before.files.items() - files.items()))
        raise ConfigError(
            f"{len(changed)} of {len(before.files)} files of the snapshot are not as they were",
            place="--snapshot",
            details=changed[:5],
            next_step="run the job from its work tree: --no-snapshot",
        )
    for place in (taken.directory, taken.folder):
        if not place.startswith("/"):
            (target / place).mkdir(parents=True, exist_ok=True)
    write_atomically(run.directory / "snapshot.json", to_json(taken))
    for name in ("code.json", "code.diff") if before else ():
        with suppress(OSError):
            shutil.copy(root.parent / name, run.directory / name)


def _within(root: Path, path: str) -> str:
    place = PurePosixPath(path)
    return str(place.relative_to(root)) if place.is_relative_to(root) else path


def names_of(root: Path, runs: Path, place: str = "--snapshot") -> list[str]:
    """Return the names of what git does not ignore, but never runs: they would hold each other.

    What ``.toolkitignore`` names is left out, also if git tracks it.
    What Python compiles is left out, too: without a .gitignore for it, the first run would write it
    again in the copy, which could not be repeated then.
    """
    names, patterns = git.files(root), root / IGNORE
    listing = ("ls-files", "-z", "--cached", "--others", "--ignored", f"--exclude-from={patterns}")
    left_out = git.ask(root, listing) if patterns.is_file() else ""
    if names is None or left_out is None:
        raise UsageError(
            f"git does not tell the files of {root}",
            place=place,
            next_step=f"git -C {root} status says why",
        )
    own = os.path.relpath(runs.resolve(), root.resolve())
    paths = {name: PurePosixPath(name) for name in {*names} - {*left_out.split("\0")}}
    return [
        name
        for name, path in sorted(paths.items())
        if "__pycache__" not in path.parts and not path.is_relative_to(own)
    ]


def choose(root: Path, names: Iterable[str]) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the sizes of the files and links that are copied, and what else is there.

    What lies behind a link that leads out of the tree is not chosen, and no file of secrets.
    """
    sizes, others = dict[str, int](), list[str]()
    top = os.path.realpath(root)
    for name in names:
        path = root / name
        with suppress(OSError):  # it was deleted
            status = path.lstat()
            is_file = stat.S_IFMT(status.st_mode) in (stat.S_IFREG, stat.S_IFLNK)
            is_inside = Path(os.path.realpath(path.parent)).is_relative_to(top)
            name_alone = path.name.lower()
            is_example = any(fnmatchcase(name_alone, pattern) for pattern in _EXAMPLES)
            is_secret = any(fnmatchcase(name_alone, pattern) for pattern in SECRET_FILES)
            if is_file and is_inside and (is_example or not is_secret):
                sizes[name] = status.st_size
            else:
                others.append(name)
    return sizes, tuple(others)


def _check_size(root: Path, files: dict[str, int]) -> None:
    total = sum(files.values())
    if total <= MOST_BYTES and len(files) <= MOST_FILES:
        return
    sizes = Counter[str]()
    for name, size in files.items():
        sizes[name.partition("/")[0]] += size
    limit = f"{human_size(MOST_BYTES)} and {MOST_FILES} files"
    raise NoSpaceError(
        f"a snapshot would have {human_size(total)} in {len(files)} files; {limit} are the most",
        place=str(root),
        details=[f"{human_size(size):>7}  {name}" for name, size in sizes.most_common(5)],
        next_step="add data and results to .gitignore: what git ignores is not copied",
    )


def _copy_file(root: Path, name: str, target: Path) -> str:
    """Copy a file or a symbolic link, and return the hash of its content."""
    source, copy = root / name, target / name
    copy.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        text = str(source.readlink())
        meant = os.path.normpath(source.parent / text)
        if not PurePosixPath(meant).is_relative_to(root):
            text = meant  # outside, the same file
        elif text.startswith("/"):
            text = os.path.relpath(meant, source.parent)  # in the tree, the copied file
        copy.symlink_to(text)
        return hashlib.sha256(os.fsencode(text)).hexdigest()
    handle = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # until it has its mode
    # The source may be exchanged for a pipe or a link meanwhile.
    with os.fdopen(handle, "wb") as writing, open_regular(source, below=source.parent) as reading:
        shutil.copyfileobj(reading, writing)
        mode = stat.S_IMODE(os.fstat(reading.fileno()).st_mode)
        os.fchmod(writing.fileno(), (mode & 0o555) | stat.S_IRUSR)
    return hash_file(copy)
