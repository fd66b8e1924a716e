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
