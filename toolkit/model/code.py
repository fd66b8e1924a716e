"""Which code a run is of."""

from __future__ import annotations

from toolkit.model.base import Model


class ScriptFile(Model, frozen=True, kw_only=True):
    """A script as it was when its job was submitted.

    Attributes:
        path: absolute.
        sha256: of its content.
    """

    path: str
    sha256: str


class Tree(Model, frozen=True, kw_only=True):
    """The tree that a snapshot is taken of.

    Attributes:
        root: its top directory, absolute.
        cwd: where `toolkit run` was called; containers see it, too, since data may lie there.
        is_copy: it is the snapshot of an earlier run.
    """

    root: str
    cwd: str
    is_copy: bool = False


class Snapshot(Model, frozen=True, kw_only=True):
    """``snapshot.json`` of a run directory.

    Attributes:
        root: the work tree that it was taken of.
        directory: where the ranks run, relative to the tree; absolute if it is not in it.
        folder: the directory of the script, relative to the tree.
        files: name -> SHA-256 of the content; of a symbolic link, of what it leads to.
        left_out: names of what git does not ignore, and what was not copied: secrets, other trees.
        size: of all files, in bytes.
    """

    root: str
    directory: str
    folder: str
    files: dict[str, str]
    left_out: tuple[str, ...] = ()
    size: int = 0


class Code(Model, frozen=True, kw_only=True):
    """``code.json`` of a run directory.

    Attributes:
        script: that was run; None: a program of the image.
        tree: git's work tree; empty if the script is in none.
        commit: that was checked out.
        branch: its name.
        is_changed: tracked files differed from the commit; ``code.diff`` tells how.
        is_cut: ``code.diff`` is not whole.
        untracked: names of files and directories that git neither tracked nor ignored.
        note: what is not known, and why.
    """

    script: ScriptFile | None = None
    tree: str = ""
    commit: str = ""
    branch: str = ""
    is_changed: bool = False
    is_cut: bool = False
    untracked: tuple[str, ...] = ()
    note: str = ""
