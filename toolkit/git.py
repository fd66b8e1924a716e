"""Query git about a work tree.

Programs that its configuration names are not run, and no query takes long.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit import shell
from toolkit.errors import NeedsInstallError

if TYPE_CHECKING:
    from toolkit.model.run import Code

_PATIENCE = 5.0  # seconds; a work tree on a slow file server must not hold a submission up
_MOST_NAMES = 16 << 20  # characters of a list of files
# A file system monitor, hooks, external diffs and text converters are programs that .git/config
# names.
_QUIET = ("core.fsmonitor=false", "core.hooksPath=/dev/null", "core.quotePath=false")
_DIFF = ("--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty", "HEAD")


def top(directory: Path) -> Path | None:
    """Return the work tree that a directory is in, by a search for ``.git`` that does not run git.

    A home directory that is a work tree, of settings files, is not one of everything below it: git
    would search the whole home directory at each submission.
    """
    physical = directory.resolve()
    places = (path for path in (physical, *physical.parents) if (path / ".git").exists())
    tree = next(places, None)
    with suppress(RuntimeError):  # a user may have no home
        return None if tree == Path.home().resolve() else tree
    return tree


def state(tree: Path) -> Code | None:
    """Return the state of a work tree; None if git fails."""
    from toolkit.model.run import Code  # a dry run only looks for the tree

    text = ask(tree, ("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=normal"))
    if text is None:
        return None
    words = text.split("\0")
    heads = {
        key: value
        for key, _, value in (word[2:].partition(" ") for word in words if word.startswith("# "))
    }
    commit, branch = heads.get("branch.oid", ""), heads.get("branch.head", "")
    return Code(
        tree=str(tree),
        commit="" if commit.startswith("(") else commit,
        branch="" if branch.startswith("(") else branch,
        is_changed=any(word[:2] in ("1 ", "2 ", "u ") for word in words),
        untracked=tuple(word[2:] for word in words if word.startswith("? ")),
    )


def diff(tree: Path, leave_out: tuple[str, ...], most: int) -> str | None:
    """Return how tracked files differ from the commit, at most ``most`` characters of it.

    Args:
        tree: the work tree.
        leave_out: patterns of names of files that are not shown.
        most: where the text is cut.
    """
    excluded = (f":(top,exclude,icase,glob)**/{pattern}" for pattern in leave_out)
    return ask(tree, ("diff", *_DIFF, "--", ":/", *excluded), most)


def files(tree: Path) -> tuple[str, ...] | None:
    """Return the files of a work tree that git tracks or does not ignore; None if git fails."""
    tracked = ask(tree, ("ls-files", "-z", "--cached", "--recurse-submodules"))
    others = ask(tree, ("ls-files", "-z", "--others", "--exclude-standard"))
    if tracked is None or others is None:
        return None
    return tuple(sorted({name for name in (tracked + others).split("\0") if name}))


def ask(tree: Path, words: tuple[str, ...], most: int = _MOST_NAMES) -> str | None:
    """Return git's output, cut after ``most`` characters; None if it fails or takes too long."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8"}
    quiet = (word for setting in _QUIET for word in ("-c", setting))
    argv = ("timeout", f"{_PATIENCE}", "git", "-C", str(tree), *quiet, *words)
    try:
        process = shell.start(argv, env=environment, stderr=subprocess.DEVNULL)
    except (NeedsInstallError, OSError):
        return None
    with process:
        assert process.stdout
        text = process.stdout.read(most)
        is_cut = bool(process.stdout.read(1))
        if is_cut:  # git ends at its next write
            process.kill()
    return text if process.returncode == 0 or is_cut else None
