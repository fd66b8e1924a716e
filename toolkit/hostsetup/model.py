"""The facts about a machine, the options of a setup, and its actions."""

from __future__ import annotations

from typing import Literal

from toolkit.model.base import Model

ActionKind = Literal[
    "heal", "packages", "apptainer", "fuse", "ids", "capabilities", "namespaces", "name"
]


class OperatingSystem(Model, frozen=True, kw_only=True):
    """The operating system, from ``/etc/os-release``."""

    name: str
    id: str
    like: tuple[str, ...] = ()
    codename: str = ""
    architecture: str = "x86_64"

    @property
    def family(self) -> str:
        """``debian``, ``rhel``, ``suse`` or ``other``: which packages are spoken of."""
        kin = {self.id, *self.like}
        if kin & {"debian", "ubuntu"}:
            return "debian"
        if kin & {"rhel", "fedora", "centos"}:
            return "rhel"
        return "suse" if kin & {"suse", "opensuse", "sles"} else "other"


class Missing(Model, frozen=True, kw_only=True):
    """Packages (by Debian's names) that one part of the toolkit lacks here."""

    part: str
    purpose: str
    packages: tuple[str, ...]


class SetupOptions(Model, frozen=True, kw_only=True):
    """The options of a setup, beyond images and runs; ``update``: take a newer Apptainer."""

    accounting: bool = False
    tests: bool = False
    update: bool = False


class Facts(Model, frozen=True, kw_only=True):
    """The facts about a machine.

    Attributes:
        runtime: the path of ``apptainer`` or ``singularity``; None without either.
        runtime_offered: whether a package archive has Apptainer; None if unknown (no lists yet).
        slurm: the path of ``sbatch``, if this machine belongs to a cluster or has its own Slurm.
        interrupted: an installation of ours was interrupted, or is running now.
        fuse: whether every user can open ``/dev/fuse`` (images are mounted through it).
        ids: whether this user has a range of subordinate user ids, which building needs.
        namespaces: whether an ordinary user may make user namespaces.
        unresolved: this machine's own name if it has no address; else "".
        updates: a newer Apptainer is wanted in place of the one that was fitted.
        root_exec: whether root can run a program in a container; tried only in case of doubt.
    """

    os: OperatingSystem
    root: bool
    user: str
    apt: bool
    toolkit: str
    runtime: str | None
    runtime_offered: bool | None = None
    missing: tuple[Missing, ...] = ()
    slurm: str | None = None
    interrupted: bool = False
    fuse: Literal["ready", "closed", "absent"] = "ready"
    ids: bool = True
    namespaces: bool = True
    unresolved: str = ""
    updates: bool = False
    root_exec: Literal["not tried", "works", "fails"] = "not tried"


class Action(Model, frozen=True, kw_only=True):
    """An action of root.

    Attributes:
        kind: which function of ``install`` does it.
        summary: the action on one line.
        packages: Debian packages, for the kinds ``packages`` and ``apptainer``.
        by_hand: commands for an administrator instead; empty if only the toolkit can do it.
    """

    kind: ActionKind
    summary: str
    packages: tuple[str, ...] = ()
    by_hand: tuple[str, ...] = ()
