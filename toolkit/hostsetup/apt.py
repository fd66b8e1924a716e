"""Call apt and dpkg; no other module does.

Downloads can be interrupted at any time. What dpkg has begun is brought to its end first: apt runs
in a session of its own, so that Ctrl-C in the terminal reaches only us.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from toolkit import shell
from toolkit.errors import CommandFailedError
from toolkit.quoting import shell_words

_LISTS = Path("/var/lib/apt/lists")
_ALWAYS = (
    "-q",
    "-y",
    "-o",
    "DPkg::Lock::Timeout=600",
    "-o",
    "Acquire::Retries=3",
    "--no-install-recommends",
)
_KEEP_SETTINGS = ("-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold")
# What an installation brings and takes, among the lines of ``apt-get --print-uris install``.
_SIZES = re.compile(r"(\d+ upgraded, |Need to get |After this operation, )")
_APT_TARGET = re.compile(
    r"(?P<origin>[^|]*)\|main\|(?P<codename>[^|]*)\|(?P<release>[^|]*)\|"
    r"(?P<site>(?:https?://|file:/)[^|]*)"
)


def environment() -> dict[str, str]:
    """Return the environment of apt: no questions, and messages in English, which we parse."""
    return {
        **os.environ,
        "DEBIAN_FRONTEND": "noninteractive",
        "LC_ALL": "C.UTF-8",
        "NEEDRESTART_MODE": "l",
        "APT_LISTCHANGES_FRONTEND": "none",
    }


def has_lists() -> bool:
    """Return whether the package lists were ever fetched (a fresh machine has none)."""
    return any(_LISTS.glob("*_Packages*"))


def candidate(package: str, options: Sequence[str] = ()) -> str | None:
    """Return the version that apt would install, or None if no archive has the package."""
    answer = shell.run(["apt-cache", *options, "policy", package], env=environment(), check=False)
    match = re.search(r"^ *Candidate: (\S+)$", answer.stdout, re.MULTILINE)
    return match[1] if match and match[1] != "(none)" else None


def debian_mirrors() -> dict[str, str]:
    """Return the first mirror of each release of Debian; none if this machine has no apt."""
    form = "$(ORIGIN)|$(COMPONENT)|$(CODENAME)|$(RELEASE)|$(SITE)"
    argv = ("apt-get", "indextargets", "--format", form, "Created-By: Packages")
    if shell.which(argv[0]) is None:
        return {}
    return parse_mirrors(shell.run(argv, env=environment(), check=False, timeout=30).stdout)


def parse_mirrors(listing: str) -> dict[str, str]:
    """Return the first mirror of each release in a listing of apt's index targets.

    The origin is unknown until apt has downloaded its lists.
    """
    mirrors: dict[str, str] = {}
    for target in map(_APT_TARGET.fullmatch, listing.splitlines()):
        if target:
            is_unknown = target["origin"].startswith("$") or not target["origin"]
            is_named = "debian" in target["site"].rsplit("/", 1)[-1].lower()
            if target["origin"] == "Debian" or (is_unknown and is_named):
                codename = target["codename"]
                name = target["release"] if codename[:1] in ("$", "") else codename
                mirrors.setdefault(name, target["site"])
    return mirrors


def update(options: Sequence[str] = ()) -> tuple[str, ...]:
    """Fetch the package lists, also if an archive does not answer: a missing package shows later.

    Returns:
        apt's complaints.
    """
    answer = _apt([*options, "update"], check=False)
    return tuple(line for line in answer.stdout.splitlines() if line.startswith(("E:", "W:")))


def describe(packages: Sequence[str]) -> tuple[str, ...]:
    """Return how apt describes an installation; changes nothing and needs no root.

    Raises:
        CommandFailedError: apt knows no way to install them.
    """
    argv = ["apt-get", *_ALWAYS, "--print-uris", "install", *packages]
    lines = shell.run(argv, env=environment()).stdout.splitlines()
    return tuple(line for line in lines if _SIZES.match(line))


def fetch(packages: Sequence[str | Path]) -> None:
    """Download the packages and all that they depend on; may be interrupted.

    Raises:
        CommandFailedError: some could not be had.
    """
    _apt(["--download-only", "install", *packages])


def install(packages: Sequence[str | Path], held: Sequence[int] = ()) -> None:
    """Install packages by name or file. Once dpkg runs, it is awaited even after Ctrl-C.

    Args:
        packages: names, or paths of .deb files.
        held: file descriptors that apt keeps open, too: locks that last if we are killed.

    Raises:
        CommandFailedError: apt or dpkg failed; with the tail of their output.
    """
    _apt([*_KEEP_SETTINGS, "install", *packages], finish=True, held=held)


def heal() -> None:
    """Repair dpkg after a power cut or ``kill -9``; apt refuses to run before that."""
    shell.run(
        ["dpkg", "--configure", "-a", "--force-confdef", "--force-confold"],
        env=environment(),
        check=False,
    )


def forget_if_half_installed(package: str) -> bool:
    """Remove a package that dpkg was interrupted in unpacking; return whether it was.

    apt does that by itself for packages that it can download, not for one of a file.
    """
    answer = shell.run(["dpkg-query", "-W", "-f", "${db:Status-Eflag}", package], check=False)
    if answer.stdout.strip() != "reinstreq":
        return False
    argv = ["dpkg", "--purge", "--force-remove-reinstreq", "--force-depends", package]
    shell.run(argv, env=environment(), check=False)
    return True


def _apt(
    arguments: Sequence[str | Path],
    *,
    check: bool = True,
    finish: bool = False,
    held: Sequence[int] = (),
) -> shell.Result:
    argv = tuple(str(word) for word in ("apt-get", *_ALWAYS, *arguments))
    # Not a pipe, which would end apt if we are killed.
    with tempfile.TemporaryFile(mode="w+", errors="replace") as printed:
        process = shell.start(
            argv,
            env=environment(),
            stdout=printed.fileno(),
            stderr=subprocess.STDOUT,
            new_session=True,
            pass_fds=held,
        )
        try:
            process.wait()
        except BaseException:
            if not finish:
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise
        printed.seek(0)
        output = printed.read()
    result = shell.Result(argv, process.returncode, output, "")
    if check and not result.ok:
        raise CommandFailedError(
            f"apt-get failed with exit code {process.returncode}",
            place=shell_words(argv),
            details=[line for line in result.tail(40) if line.startswith(("E:", "Err:"))]
            or result.tail(),
            next_step="if the network or an archive failed, run the same command again to go on",
        )
    return result
