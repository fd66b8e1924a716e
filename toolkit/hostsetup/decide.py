"""Turn facts about a machine into actions. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Literal

from toolkit.errors import NeedsInstallError
from toolkit.hostsetup import parts
from toolkit.model.base import Model
from toolkit.quoting import shell_words

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
    """Packages (by Debian's names) that one use of the toolkit lacks here."""

    purpose: str
    packages: tuple[str, ...]


class SetupOptions(Model, frozen=True, kw_only=True):
    """The options of a setup, beyond images and runs."""

    accounting: bool = False
    tests: bool = False


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
    root_exec: Literal["not tried", "works", "fails"] = "not tried"


class Action(Model, frozen=True, kw_only=True):
    """An action of root.

    Attributes:
        kind: what it is about.
        summary: the action on one line.
        packages: Debian packages, for the kinds ``packages`` and ``apptainer``.
        by_hand: commands for an administrator instead; empty if only the toolkit can do it.
    """

    kind: ActionKind
    summary: str
    packages: tuple[str, ...] = ()
    by_hand: tuple[str, ...] = ()


def decide(facts: Facts) -> tuple[Action, ...]:
    """Return the actions to take, in order; none on a ready machine."""
    actions: list[Action] = []
    if facts.interrupted:
        summary = "the end of an installation that was interrupted, or is running now"
        actions.append(Action(kind="heal", summary=summary))
    if facts.missing:
        wanted = tuple(sorted({name for missing in facts.missing for name in missing.packages}))
        summary = "; ".join(
            f"{' '.join(missing.packages)} ({missing.purpose})" for missing in facts.missing
        )
        lines = (install_line(facts.os, wanted),)
        actions.append(Action(kind="packages", summary=summary, packages=wanted, by_hand=lines))
    if facts.runtime is None:
        is_ready_made = facts.os.family != "debian" or facts.runtime_offered
        lines = (install_line(facts.os, ("apptainer",)),)
        actions.append(
            Action(
                kind="apptainer",
                summary=f"apptainer ({parts.RUNTIME_PURPOSE})",
                packages=parts.RUNTIME_PACKAGES,
                by_hand=lines if is_ready_made else (),
            )
        )
    return (*actions, *adjustments(facts))


def adjustments(facts: Facts) -> tuple[Action, ...]:
    """Return the changes besides packages that Apptainer needs; their commands are all there is."""
    why, opens = "images cannot be mounted by users", "chmod 666 /dev/fuse"
    program = PurePath(facts.runtime or "apptainer").name
    settings = f'"$({program} buildcfg {program.upper()}_CONF_FILE)"'
    own_capabilities = (
        # Apptainer writes the whole file, without comments.
        f"cp -n {settings} {settings}.before-toolkit",
        f"{program} capability add --user root "
        "\"$(setpriv --dump | sed -n 's/^Capability bounding set: //p')\"",
        f"{program} config global --set 'root default capabilities' file",
    )
    switches = ("kernel.unprivileged_userns_clone=1", "user.max_user_namespaces=15000")
    # Whether it is needed, its kind, what is wrong, and the commands of root.
    rows: tuple[tuple[bool, ActionKind, str, tuple[str, ...]], ...] = (
        (facts.fuse == "closed", "fuse", f"/dev/fuse is for root only: {why}", (opens,)),
        (
            facts.fuse == "absent",
            "fuse",
            f"/dev/fuse is missing (a container gets it with --device /dev/fuse): {why}",
            ("modprobe fuse; test -e /dev/fuse || mknod /dev/fuse c 10 229", opens),
        ),
        (
            not facts.ids,
            "ids",
            f"{facts.user} has no range of subordinate user ids (to build images)",
            (shell_words([program, "config", "fakeroot", "--add", facts.user]),),
        ),
        (
            facts.root_exec == "fails",
            "capabilities",
            "root lacks capabilities here, and Apptainer gives root in a container every one: "
            "it cannot start one",
            own_capabilities,
        ),
        (
            bool(facts.unresolved),
            "name",
            f"this machine's name {facts.unresolved} has no address (Gloo crashes)",
            (shell_words(["printf", r"\n127.0.1.1 %s\n", facts.unresolved]) + " >> /etc/hosts",),
        ),
        (
            not facts.namespaces,
            "namespaces",
            "users may not make user namespaces here",
            tuple(f"sysctl -w {switch}" for switch in switches),
        ),
    )
    return tuple(
        Action(kind=kind, summary=summary, by_hand=lines)
        for is_needed, kind, summary, lines in rows
        if is_needed
    )


def install_line(system: OperatingSystem, packages: Sequence[str]) -> str:
    """Return the command that installs packages (by Debian's names) on this system, for root."""
    if system.family in ("rhel", "suse"):
        own = parts.RHEL_NAMES if system.family == "rhel" else parts.SUSE_NAMES
        names = sorted({name for package in packages for name in own.get(package, (package,))})
        if system.family == "suse":
            return shell_words(["zypper", "install", *names])
        return f"dnf install -y epel-release && {shell_words(['dnf', 'install', '-y', *names])}"
    line = shell_words(["apt-get", "install", "-y", "--no-install-recommends", *packages])
    return line if system.family == "debian" else f"the equivalent of: {line}"


def obstacle(
    facts: Facts, actions: Sequence[Action], options: SetupOptions
) -> NeedsInstallError | None:
    """Return the reason why this process cannot do ``actions`` by itself, or None if it can."""
    packages = any(action.packages for action in actions)
    apptainer = any(action.kind == "apptainer" for action in actions)
    site = "https://apptainer.org/docs/admin/latest/installation.html"
    rows = (
        (not facts.root, "ask the administrator to run the lines above as root, then go on"),
        (
            packages and not (facts.apt and facts.os.family == "debian"),
            "install these packages with the lines above, then: toolkit setup",
        ),
        (
            apptainer and not can_install_apptainer(facts),
            f"install Apptainer ({site}), then: toolkit setup",
        ),
    )
    step = next((step for is_so, step in rows if is_so), None)
    return needs(facts, actions, options, next_step=step) if actions and step else None


def can_install_apptainer(facts: Facts) -> bool:
    """Return whether we can install Apptainer: from a configured archive, or from Debian's sid."""
    return facts.runtime_offered is True or (
        facts.os.id == "debian" and facts.os.architecture == "x86_64"
    )


def needs(
    facts: Facts, actions: Sequence[Action], options: SetupOptions, *, next_step: str
) -> NeedsInstallError:
    """Return the error that lists what is missing, and the commands that fix it."""
    lines = [
        *(f"missing: {action.summary}" for action in actions),
        *(f"as root: {line}" for line in commands(facts, actions, options)),
    ]
    return NeedsInstallError(
        f"this machine is not ready ({facts.os.name})", details=lines, next_step=next_step
    )


def commands(facts: Facts, actions: Sequence[Action], options: SetupOptions) -> tuple[str, ...]:
    """Return commands for an administrator.

    If one action has no command, the toolkit does all actions but those for the user.
    """
    only_toolkit = any(not action.by_hand for action in actions)
    if not only_toolkit or (facts.runtime is None and not can_install_apptainer(facts)):
        return tuple(line for action in actions for line in action.by_hand)
    chosen = [
        word
        for name, on in (("accounting", options.accounting), ("tests", options.tests))
        if on
        for word in ("--with", name)
    ]
    own = tuple(
        line
        for action in actions
        if action.kind in ("ids", "namespaces")
        for line in action.by_hand
    )
    return (" ".join([facts.toolkit, "setup", *chosen]), *(line for line in own if not facts.root))
