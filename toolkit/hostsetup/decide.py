"""Turn facts about a machine into what has to be done. Pure."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import PurePath

from toolkit.errors import NeedsInstallError
from toolkit.hostsetup import parts
from toolkit.model.base import Model
from toolkit.quoting import shell_words


class Facts(Model, frozen=True, kw_only=True):
    """The facts about a machine.

    Attributes:
        installs: it is a Debian on which the toolkit installs packages by itself.
        toolkit: the command that calls this installation of the toolkit.
        runtime: the path of ``apptainer`` or ``singularity``; None without either.
        updates: the newest Apptainer is wanted in place of the present one.
        missing: Debian packages that are missing, by what they are for.
        interrupted: an installation of ours was interrupted, or is running now.
        fuse: whether every user can open ``/dev/fuse`` (images are mounted through it).
        ids: whether this user has a range of subordinate user ids, which building needs.
        namespaces: whether an ordinary user may make user namespaces.
        unresolved: this machine's own name if it has no address; else "".
        root_exec: whether root can run a program in a container.
    """

    installs: bool
    root: bool
    user: str
    toolkit: str
    runtime: str | None
    updates: bool = False
    missing: dict[str, tuple[str, ...]] = {}
    interrupted: bool = False
    fuse: bool = True
    ids: bool = True
    namespaces: bool = True
    unresolved: str = ""
    root_exec: bool = True

    @property
    def needs_apptainer(self) -> bool:
        """Apptainer is to be installed."""
        return self.runtime is None or self.updates


def missing(facts: Facts) -> tuple[str, ...]:
    """Return what is missing, each on a line; nothing on a ready machine."""
    heal = "the end of an installation that was interrupted, or is running now"
    packages = (f"{' '.join(names)} ({purpose})" for purpose, names in facts.missing.items())
    apptainer = f"{'newest ' if facts.updates else ''}apptainer (run and build containers)"
    return (
        *([heal] if facts.interrupted else []),
        *packages,
        *([apptainer] if facts.needs_apptainer else []),
        *adjustments(facts),
    )


def packages(facts: Facts) -> list[str]:
    """Return the Debian packages to install, but for Apptainer itself."""
    names = {name for each in facts.missing.values() for name in each}
    return sorted(names.union(parts.RUNTIME_PACKAGES if facts.needs_apptainer else ()))


def adjustments(facts: Facts) -> dict[str, tuple[str, ...]]:
    """Return the changes besides packages that Apptainer needs, and the commands of root."""
    program = PurePath(facts.runtime or "apptainer").name
    settings = f'"$({program} buildcfg {program.upper()}_CONF_FILE)"'
    own_capabilities = (
        # Apptainer writes the whole file, without comments.
        f"cp -n {settings} {settings}.before-toolkit",
        f"{program} capability add --user root "
        "\"$(setpriv --dump | sed -n 's/^Capability bounding set: //p')\"",
        f"{program} config global --set 'root default capabilities' file",
    )
    rows: tuple[tuple[bool, str, tuple[str, ...]], ...] = (
        (
            not facts.fuse,
            "/dev/fuse is missing, or for root only: images cannot be mounted by users",
            (
                "modprobe fuse; test -e /dev/fuse || mknod /dev/fuse c 10 229",
                "chmod 666 /dev/fuse",
            ),
        ),
        (
            not facts.ids,
            f"{facts.user} has no range of subordinate user ids (to build images)",
            (shell_words([program, "config", "fakeroot", "--add", facts.user]),),
        ),
        (
            not facts.root_exec,
            "root lacks capabilities here, and Apptainer gives root in a container every one: "
            "it cannot start one",
            own_capabilities,
        ),
        (
            bool(facts.unresolved),
            f"this machine's name {facts.unresolved} has no address (Gloo crashes)",
            (shell_words(["printf", r"\n127.0.1.1 %s\n", facts.unresolved]) + " >> /etc/hosts",),
        ),
        (
            not facts.namespaces,
            "users may not make user namespaces here",
            (
                "sysctl -w kernel.unprivileged_userns_clone=1",
                "sysctl -w user.max_user_namespaces=15000",
            ),
        ),
    )
    return {summary: lines for is_needed, summary, lines in rows if is_needed}


def is_able(facts: Facts) -> bool:
    """Return whether this process can do by itself what has to be done."""
    return facts.root and (facts.installs or not packages(facts))


def needs(facts: Facts, extras: Collection[str]) -> NeedsInstallError:
    """Return the error that lists what is missing, and the commands that fix it."""
    names = {name for each in facts.missing.values() for name in each}
    names |= {"apptainer"} if facts.needs_apptainer else set()
    install = shell_words(["apt-get", "install", "--no-install-recommends", *sorted(names)])
    commands = [f"the equivalent of: {install}"] if names else []
    again = shell_words(
        ["setup", *(f"--with={name}" for name in extras), *["--update"] * facts.updates]
    )
    if facts.installs:
        commands = [f"{facts.toolkit} {again}"]
    commands += [line for lines in adjustments(facts).values() for line in lines]
    step = "ask the administrator to run the lines above as root, then go on"
    if facts.root:
        step = (
            f"toolkit {again}" if is_able(facts) else "install these packages, then: toolkit setup"
        )
    return NeedsInstallError(
        "this machine is not ready",
        details=[
            *(f"missing: {text}" for text in missing(facts)),
            *(f"as root: {line}" for line in commands),
        ],
        next_step=step,
    )
