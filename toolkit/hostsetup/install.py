"""Carry actions out as root; size and origin of packages are announced before they come."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from toolkit import shell
from toolkit.errors import CommandFailedError
from toolkit.hostsetup import (
    apptainer_debian,
    apt,
    capabilities,
    daemons,
    fuse,
    newer,
    parts,
    smoke,
)
from toolkit.hostsetup.decide import adjustments, decide
from toolkit.hostsetup.facts import read_facts
from toolkit.hostsetup.model import Action, Facts, SetupOptions
from toolkit.shell import Progress, interrupted_by_signals
from toolkit.units import counted, human_size

_LOCK = Path("/run/toolkit-setup.lock")
_FETCH_SPEED = 12e6  # bytes per second, for the expected time that is shown; a guess
_PER_PACKAGE = 0.25  # seconds


def install(options: SetupOptions, progress: Progress) -> Facts:
    """Make this machine ready.

    Returns:
        The facts of the machine afterwards.

    Raises:
        CommandFailedError: a step failed; the next call goes on from there.
        NeedsInstallError: Debian's Apptainer does not fit this release.
    """
    with interrupted_by_signals(), _exclusive_lock(progress) as lock, _workplace():
        facts = _healed(read_facts(options), progress)
        actions = decide(facts)
        packages = tuple(sorted({package for action in actions for package in action.packages}))
        if packages:
            _packages(packages, _wants_apptainer(actions), facts, lock, progress)
        facts = read_facts(options)
        changes = adjustments(facts)
        for action in changes:
            _adjust(action, facts, progress)
        if facts.runtime and (changes or _wants_apptainer(actions)):
            _try(facts.runtime, progress)
    return read_facts(options)


def _wants_apptainer(actions: Sequence[Action]) -> bool:
    return any(action.kind == "apptainer" for action in actions)


@contextmanager
def _exclusive_lock(progress: Progress) -> Iterator[int]:
    """Allow one setup at a time; dpkg holds the lock, too, also after the setup was killed."""
    with _LOCK.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            progress.say("waits", "another toolkit setup is at work on this machine")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle.fileno()


@contextmanager
def _workplace() -> Iterator[None]:
    """``parts.WORKPLACE``, empty, for as long as this takes."""
    shutil.rmtree(parts.WORKPLACE, ignore_errors=True)
    parts.WORKPLACE.mkdir(parents=True)
    parts.WORKPLACE.chmod(0o755)  # apt reads here as a user of its own, whatever our umask is
    try:
        yield
    finally:
        shutil.rmtree(parts.WORKPLACE, ignore_errors=True)


def _healed(facts: Facts, progress: Progress) -> Facts:
    """Finish an interrupted installation; a partly unpacked Apptainer counts as missing."""
    if not facts.apt:
        return facts
    with daemons.prevented_from_starting():
        apt.heal()
        if not apt.is_half_installed(apptainer_debian.PACKAGE):
            return facts
        apt.forget(apptainer_debian.PACKAGE)
    progress.say("healed", "an Apptainer that was only partly unpacked is installed again")
    return msgspec.structs.replace(facts, runtime=None)


def _packages(
    packages: tuple[str, ...], apptainer: bool, facts: Facts, lock: int, progress: Progress
) -> None:
    progress.begin("lists", "apt's package lists", expected=15 if apptainer else 6)
    complaints = apt.update()
    # What was fitted by us counts as a candidate of its own.
    direct = (
        apptainer and not newer.fitted(facts.os.codename) and apt.candidate("apptainer") is not None
    )
    wanted = (*packages, "apptainer") if direct else packages
    try:
        estimate = apt.estimate(wanted)
    except CommandFailedError as error:
        raise CommandFailedError(
            error.cause,
            place=error.place,
            details=(*complaints, *error.details),
            next_step=error.next_step,
        ) from error
    source = (
        apptainer_debian.prepare(parts.WORKPLACE / "rolling", facts.os.codename)
        if apptainer and not direct
        else None
    )
    progress.end()
    for line in announcement(
        estimate, apptainer_debian.offer(source) if source else None, facts.os.codename
    ):
        progress.say("plan", line)
    if estimate.fetch:
        progress.begin(
            "fetch",
            f"{human_size(estimate.fetch)} of packages",
            expected=estimate.fetch / _FETCH_SPEED,
        )
        apt.fetch(wanted)
    fitted = _rolling(source, facts, progress) if source else ()
    progress.begin(
        "install",
        counted(estimate.new + estimate.upgraded + len(fitted), "package"),
        expected=4 + estimate.new * _PER_PACKAGE,
    )
    with daemons.prevented_from_starting():
        apt.install([*wanted, *fitted], held=(lock,))
        daemons.keep_off_at_boot(wanted)
    progress.end()


def announcement(
    estimate: apt.Estimate, rolling: apptainer_debian.Offer | None, codename: str
) -> tuple[str, ...]:
    """Return the announcement of an installation, in one or two lines."""
    upgrades = f" and {counted(estimate.upgraded, 'upgrade')}" if estimate.upgraded else ""
    origin = f" from {', '.join(estimate.sources)}" if estimate.sources else ""
    fetch = f"{human_size(estimate.fetch)} to fetch{origin}, {estimate.disk} on disk"
    first = f"{counted(estimate.new, 'package')}{upgrades}: {fetch}"
    if rolling is None:
        return (first,)
    size = f"{human_size(rolling.size)} to fetch, {human_size(rolling.installed_size)} on disk"
    return (
        first,
        f"apptainer {rolling.version}: {size}; "
        f"Debian's package of {apptainer_debian.SUITE}, since {codename} has none",
    )


def _rolling(source: apptainer_debian.Source, facts: Facts, progress: Progress) -> tuple[Path, ...]:
    progress.begin("fetch", f"apptainer from {apptainer_debian.SUITE}", expected=3)
    package = apptainer_debian.fetch(source)
    progress.begin("fit", f"apptainer to {facts.os.codename}'s glibc", expected=4)
    fitted, changed = apptainer_debian.fit(package, facts.os.codename, apptainer_debian.glibc())
    progress.end()
    if changed:
        progress.say("", f"references changed: {', '.join(changed)}")
    return (fitted,)


def _adjust(action: Action, facts: Facts, progress: Progress) -> None:
    assert facts.runtime is not None or action.kind in ("fuse", "name")
    if action.kind == "fuse":
        fuse.open_to_all()
        progress.say("fuse", "/dev/fuse can be opened by users")
    elif action.kind == "ids":
        shell.run([str(facts.runtime), "config", "fakeroot", "--add", facts.user])
        progress.say("ids", f"{facts.user} has a range of subordinate user ids")
    elif action.kind == "name":
        # Written in place, because in containers it is a mount; with the address that Debian's
        # installer uses.
        hosts = Path("/etc/hosts")
        before = hosts.read_text() if hosts.exists() else ""
        hosts.write_text(f"{before.rstrip()}\n127.0.1.1\t{facts.unresolved}\n".lstrip())
        progress.say("name", f"{facts.unresolved} is 127.0.1.1 in /etc/hosts")
    elif action.kind == "capabilities":
        changed = capabilities.grant_own_capabilities(str(facts.runtime))
        progress.say(
            "root",
            f"{changed}: root gets the capabilities that it has "
            f"(it lacks {', '.join(facts.lacking)} here)",
        )


def _try(runtime: str, progress: Progress) -> None:
    progress.begin("try", "tiny image, as root and as a user", expected=3)
    complaint = smoke.run_smoke_tests(runtime)
    progress.end()
    if complaint:
        progress.say("warning", f"ordinary users cannot run images here: {complaint}")
