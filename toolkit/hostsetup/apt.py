"""Call apt and dpkg; no other module does."""

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

_ALWAYS = (
    "-q",
    "-y",
    "-o",
    "DPkg::Lock::Timeout=600",
    "-o",
    "Acquire::Retries=3",
    # Settings of the administrator's stay.
    "-o",
    "Dpkg::Options::=--force-confdef",
    "-o",
    "Dpkg::Options::=--force-confold",
    "--no-install-recommends",
)
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
    answer = shell.run(["apt-get", *_ALWAYS, *options, "update"], env=environment(), check=False)
    return tuple(line for line in answer.stderr.splitlines() if line.startswith(("E:", "W:")))


def install(packages: Sequence[str | Path]) -> None:
    """Install packages by name or file.

    After Ctrl-C, apt gives up a download, but brings to its end what dpkg has begun: it runs in a
    session of its own, so that Ctrl-C in the terminal reaches only us.

    Raises:
        CommandFailedError: apt or dpkg failed; with the tail of their output.
    """
    argv = tuple(map(str, ("apt-get", *_ALWAYS, "install", *packages)))
    # Not a pipe, which would end apt if we are killed.
    with tempfile.TemporaryFile(mode="w+", errors="replace") as printed:
        process = shell.start(
            argv,
            env=environment(),
            stdout=printed.fileno(),
            stderr=subprocess.STDOUT,
            new_session=True,
        )
        try:
            process.wait()
        finally:
            process.send_signal(signal.SIGINT)  # which apt itself heeds between two calls of dpkg
            process.wait()
        printed.seek(0)
        lines = printed.read().splitlines()
    if process.returncode:
        raise CommandFailedError(
            f"apt-get failed with exit code {process.returncode}",
            place=shell_words(argv),
            details=[line for line in lines if line.startswith(("E:", "Err:"))] or lines[-12:],
            next_step="if the network or an archive failed, run the same command again to go on",
        )


def heal(package: str) -> None:
    """Repair dpkg and what was not completely installed; apt refuses to run before that.

    apt installs again what was partly unpacked, if it can download it: not ``package``, which came
    as a file, and is removed.

    Raises:
        CommandFailedError: apt or dpkg failed.
    """
    argv = ["dpkg", "--configure", "-a", "--force-confdef", "--force-confold"]
    shell.run(argv, env=environment(), check=False)
    answer = shell.run(["dpkg-query", "-W", "-f", "${db:Status-Eflag}", package], check=False)
    if answer.stdout.strip() == "reinstreq":
        purge = ["dpkg", "--purge", "--force-remove-reinstreq", "--force-depends", package]
        shell.run(purge, env=environment(), check=False)
    install(["--fix-broken"])
