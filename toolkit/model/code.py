"""The code that a run executes: script, git commit and snapshot."""

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
    """The work tree that a snapshot is taken of.

    Attributes:
        root: its top directory, absolute.
        cwd: the directory `toolkit run` was called in; containers mount it, too, since data may be
            there.
        is_copy: the tree is the snapshot of an earlier run.
    """

    root: str
    cwd: str
    is_copy: bool = False


class Snapshot(Model, frozen=True, kw_only=True):
    """``snapshot.json`` of a run directory.

    Attributes:
        root: the work tree that was copied.
        directory: the directory in which the ranks run, relative to the tree; absolute if it is
            outside of it.
        folder: the directory of the script, relative to the tree.
        files: name -> SHA-256 of the content; for a symbolic link, of its target's content.
        left_out: names of files that git does not ignore and that were not copied: secrets, other
            trees.
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
        script: the training script; None: the run executes a program of the image.
        tree: git's work tree; empty if the script is in none.
        commit: the commit that was checked out.
        branch: the branch that was checked out.
        is_changed: tracked files differed from the commit; ``code.diff`` has the differences.
        is_cut: ``code.diff`` is incomplete.
        untracked: names of files and directories that git neither tracked nor ignored.
        note: which of these facts are unknown, and why.
    """

    script: ScriptFile | None = None
    tree: str = ""
    commit: str = ""
    branch: str = ""
    is_changed: bool = False
    is_cut: bool = False
    untracked: tuple[str, ...] = ()
    note: str = ""
