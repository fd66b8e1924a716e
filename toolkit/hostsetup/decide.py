"""Turn facts about a machine into actions. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import PurePath

from toolkit.errors import NeedsInstallError
from toolkit.hostsetup import parts
from toolkit.model.base import Model
from toolkit.quoting import shell_words


class Facts(Model, frozen=True, kw_only=True):
    """The facts about a machine.

    Attributes:
        codename: of Debian's release; empty if unknown.
        installs: it is a Debian on which the toolkit installs packages by itself.
        runtime: the path of ``apptainer`` or ``singularity``; None without either.
        missing: Debian packages that are missing, by what they are for.
        interrupted: an installation of ours was interrupted, or is running now.
        fuse: whether every user can open ``/dev/fuse`` (images are mounted through it).
        ids: whether this user has a range of subordinate user ids, which building needs.
        namespaces: whether an ordinary user may make user namespaces.
        unresolved: this machine's own name if it has no address; else "".
        root_exec: whether root can run a program in a container.
    """

    codename: str
    installs: bool
    root: bool
    user: str
    toolkit: str
    runtime: str | None
    missing: dict[str, tuple[str, ...]] = {}
    interrupted: bool = False
    fuse: bool = True
    ids: bool = True
    namespaces: bool = True
    unresolved: str = ""
    root_exec: bool = True


class Action(Model, frozen=True, kw_only=True):
    """An action of root.

    Attributes:
        kind: what it is about.
        summary: the action on one line.
        packages: Debian packages, for the kinds ``packages`` and ``apptainer``.
        by_hand: the commands of all other kinds.
    """

    kind: str
    summary: str
    packages: tuple[str, ...] = ()
    by_hand: tuple[str, ...] = ()


def decide(facts: Facts) -> tuple[Action, ...]:
    """Return the actions to take, in order; none on a ready machine."""
    actions: list[Action] = []
    if facts.interrupted:
        summary = "the end of an installation that was interrupted, or is running now"
        actions.append(Action(kind="heal", summary=summary))
    for purpose, names in facts.missing.items():
        summary = f"{' '.join(names)} ({purpose})"
        actions.append(Action(kind="packages", summary=summary, packages=names))
    if facts.runtime is None:
        summary = "apptainer (run and build containers)"
        packages = parts.RUNTIME_PACKAGES
        actions.append(Action(kind="apptainer", summary=summary, packages=packages))
    return (*actions, *adjustments(facts))


def adjustments(facts: Facts) -> tuple[Action, ...]:
    """Return the changes besides packages that Apptainer needs; their commands are all there is."""
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
    rows: tuple[tuple[bool, str, str, tuple[str, ...]], ...] = (
        (
            not facts.fuse,
            "fuse",
            "/dev/fuse is missing, or for root only: images cannot be mounted by users",
            (
                "modprobe fuse; test -e /dev/fuse || mknod /dev/fuse c 10 229",
                "chmod 666 /dev/fuse",
            ),
        ),
        (
            not facts.ids,
            "ids",
            f"{facts.user} has no range of subordinate user ids (to build images)",
            (shell_words([program, "config", "fakeroot", "--add", facts.user]),),
        ),
        (
            not facts.root_exec,
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


def is_able(facts: Facts, actions: Sequence[Action]) -> bool:
    """Return whether this process can carry ``actions`` out by itself."""
    return facts.root and (facts.installs or not any(action.packages for action in actions))


def needs(facts: Facts, actions: Sequence[Action], extras: Collection[str]) -> NeedsInstallError:
    """Return the error that lists what is missing, and the commands that fix it."""
    lines = [
        *(f"missing: {action.summary}" for action in actions),
        *(f"as root: {line}" for line in _commands(facts, actions, extras)),
    ]
    step = "ask the administrator to run the lines above as root, then go on"
    if facts.root:
        able = is_able(facts, actions)
        step = "toolkit setup" if able else "install these packages, then: toolkit setup"
    return NeedsInstallError("this machine is not ready", details=lines, next_step=step)


def _commands(facts: Facts, actions: Sequence[Action], extras: Collection[str]) -> tuple[str, ...]:
    """Return the commands for an administrator."""
    names = {name for each in facts.missing.values() for name in each}
    names |= {"apptainer"} if facts.runtime is None else set()
    install = shell_words(["apt-get", "install", "--no-install-recommends", *sorted(names)])
    lines = (f"the equivalent of: {install}",) if names else ()
    if facts.installs:
        words = (word for name in extras for word in ("--with", name))
        lines = (" ".join([facts.toolkit, "setup", *words]),)
    return (*lines, *(line for action in actions for line in action.by_hand))
