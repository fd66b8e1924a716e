"""Turn facts about a machine into actions. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.errors import NeedsInstallError
from toolkit.hostsetup import parts
from toolkit.hostsetup.model import Action, Facts, OperatingSystem, SetupOptions
from toolkit.quoting import shell_words


def decide(facts: Facts) -> tuple[Action, ...]:
    """Return the actions to take, in order; none on a ready machine."""
    actions: list[Action] = []
    if facts.interrupted:
        actions.append(
            Action(
                kind="heal",
                summary="the end of an installation that was interrupted, or is running now",
            )
        )
    if facts.missing:
        wanted = tuple(sorted({name for missing in facts.missing for name in missing.packages}))
        summary = "; ".join(
            f"{' '.join(missing.packages)} ({missing.purpose})" for missing in facts.missing
        )
        actions.append(
            Action(
                kind="packages",
                summary=summary,
                packages=wanted,
                by_hand=(install_line(facts.os, wanted),),
            )
        )
    if facts.runtime is None or (facts.update and facts.newer):
        actions.append(_apptainer(facts))
    return (*actions, *adjustments(facts))


def adjustments(facts: Facts) -> tuple[Action, ...]:
    """Return the changes besides packages that Apptainer needs."""
    actions: list[Action] = []
    if facts.fuse != "ready":
        what = "is for root only" if facts.fuse == "closed" else "is missing"
        by_hand = (
            ("chmod 666 /dev/fuse",)
            if facts.fuse == "closed"
            else ("modprobe fuse", "chmod 666 /dev/fuse")
        )
        actions.append(
            Action(
                kind="fuse",
                summary=f"/dev/fuse {what}: images cannot be mounted by users",
                by_hand=by_hand,
            )
        )
    if not facts.ids:
        line = shell_words(["apptainer", "config", "fakeroot", "--add", facts.user])
        actions.append(
            Action(
                kind="ids",
                summary=f"{facts.user} has no range of subordinate user ids (to build images)",
                by_hand=(line,),
            )
        )
    if facts.root_exec == "fails":
        summary = (
            f"root lacks {', '.join(facts.lacking)} here, and Apptainer gives root in a container "
            "every capability: it cannot start one"
        )
        actions.append(Action(kind="capabilities", summary=summary))
    if facts.unresolved:
        line = f"echo {shell_words(['127.0.1.1', facts.unresolved])} >> /etc/hosts"
        actions.append(
            Action(
                kind="name",
                summary=f"this machine's name {facts.unresolved} has no address (Gloo crashes)",
                by_hand=(line,),
            )
        )
    if not facts.namespaces:
        lines = (
            "sysctl -w kernel.unprivileged_userns_clone=1",
            "sysctl -w user.max_user_namespaces=15000",
        )
        actions.append(
            Action(
                kind="namespaces", summary="users may not make user namespaces here", by_hand=lines
            )
        )
    return tuple(actions)


def _apptainer(facts: Facts) -> Action:
    ready_made = facts.runtime is None and (facts.os.family != "debian" or facts.runtime_offered)
    by_hand = (install_line(facts.os, ("apptainer",)),) if ready_made else ()
    version = f" {facts.newer}" if facts.runtime else ""
    return Action(
        kind="apptainer",
        summary=f"apptainer{version} ({parts.RUNTIME_PURPOSE})",
        packages=parts.RUNTIME_PACKAGES,
        by_hand=by_hand,
    )


def install_line(system: OperatingSystem, packages: Sequence[str]) -> str:
    """Return the command that installs packages (by Debian's names) on this system, for root."""
    if system.family == "rhel":
        names = _renamed(packages, parts.RHEL_NAMES)
        return (
            shell_words(["dnf", "install", "-y", "epel-release"])
            + " && "
            + shell_words(["dnf", "install", "-y", *names])
        )
    if system.family == "suse":
        return shell_words(["zypper", "install", *_renamed(packages, parts.SUSE_NAMES)])
    line = shell_words(["apt-get", "install", "-y", "--no-install-recommends", *packages])
    return line if system.family == "debian" else f"the equivalent of: {line}"


def _renamed(packages: Sequence[str], names: dict[str, tuple[str, ...]]) -> list[str]:
    return sorted({name for package in packages for name in names.get(package, (package,))})


def obstacle(
    facts: Facts, actions: Sequence[Action], options: SetupOptions
) -> NeedsInstallError | None:
    """Return the reason why this process cannot do ``actions`` by itself, or None if it can."""
    if not actions:
        return None
    if not facts.root:
        return needs(
            facts,
            actions,
            options,
            next_step="ask the administrator to run the lines above as root, then go on",
        )
    packages = any(action.packages for action in actions)
    if packages and not (facts.apt and facts.os.family == "debian"):
        return needs(
            facts,
            actions,
            options,
            next_step="install these packages with the lines above, then: toolkit setup",
        )
    if any(action.kind == "apptainer" for action in actions) and not can_install_apptainer(facts):
        return needs(
            facts,
            actions,
            options,
            next_step="install Apptainer "
            "(https://apptainer.org/docs/admin/latest/installation.html), then: toolkit setup",
        )
    return None


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
    chosen += ["--update"] if facts.update and facts.newer else []
    own = tuple(
        line
        for action in actions
        if action.kind in ("ids", "namespaces")
        for line in action.by_hand
    )
    return (" ".join([facts.toolkit, "setup", *chosen]), *(line for line in own if not facts.root))
