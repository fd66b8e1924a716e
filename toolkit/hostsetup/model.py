"""What is known of a machine, and what is to be done about it."""

from __future__ import annotations

from typing import Literal

from toolkit.model.base import Model


class OperatingSystem(Model, frozen=True, kw_only=True):
    """``/etc/os-release``, as far as it matters."""

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


class Wishes(Model, frozen=True, kw_only=True):
    """What the machine is to be ready for, beyond images and runs; ``update``: with a newer Apptainer, where there is one."""

    accounting: bool = False
    tests: bool = False
    update: bool = False


class Facts(Model, frozen=True, kw_only=True):
    """A machine as it is.

    Attributes:
        runtime: the path of ``apptainer`` or ``singularity``; None where neither is.
        runtime_offered: whether the package archives configured here have Apptainer; None where that is not known (no lists yet).
        slurm: the path of ``sbatch``, where this machine belongs to a cluster or has a Slurm of its own: none is put beside it.
        interrupted: an installation of ours was cut off, or is at work right now.
        fuse: whether every user can open ``/dev/fuse`` (images are mounted through it).
        ids: whether this user has a range of subordinate user ids, which building needs.
        namespaces: whether an ordinary user may make user namespaces.
        unresolved: this machine's own name, where it leads to no address; "" where it does.
        lacking: the capabilities that root does not have here.
        newer: the version of a newer Apptainer than the one that was fitted to this release; empty where none is known.
        update: that one is wanted.
        root_exec: whether root can run something in a container. Tried only where there is reason for doubt.
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
    lacking: tuple[str, ...] = ()
    newer: str = ""
    update: bool = False
    root_exec: Literal["not tried", "works", "fails"] = "not tried"


class Action(Model, frozen=True, kw_only=True):
    """One thing to do as root.

    Attributes:
        kind: which function of ``install`` does it.
        summary: what it is, in a line.
        packages: Debian packages, for the kinds ``packages`` and ``apptainer``.
        by_hand: commands that an administrator can paste instead; empty where only the toolkit knows how.
    """

    kind: Literal[
        "heal", "packages", "apptainer", "fuse", "ids", "capabilities", "namespaces", "name"
    ]
    summary: str
    packages: tuple[str, ...] = ()
    by_hand: tuple[str, ...] = ()
