"""Removing what a build left, also files that belong to the subordinate ids of an ordinary user, which that user cannot remove."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path


def subordinate_range(file: Path) -> tuple[int, int] | None:
    """The first range of ids that ``/etc/subuid`` or ``/etc/subgid`` gives us: start and length."""
    uid = os.getuid()
    try:
        names = {str(uid), pwd.getpwuid(uid).pw_name}
    except KeyError:
        names = {str(uid)}
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    fields = (line.split(":") for line in lines)
    return next(
        (
            (int(start), int(length))
            for name, start, length in (f for f in fields if len(f) == 3)
            if name in names
        ),
        None,
    )


def remove(directory: Path) -> bool:
    """Remove a directory with all that is in it; says whether it is gone."""
    shutil.rmtree(directory, ignore_errors=True)
    if directory.exists() and os.getuid() != 0:
        _remove_mapped(directory)
    return not directory.exists()


def _remove_mapped(directory: Path) -> None:
    """As root of a user namespace that has our subordinate ids. ``unshare --map-auto`` would do, where util-linux is new enough."""
    users, groups = subordinate_range(Path("/etc/subuid")), subordinate_range(Path("/etc/subgid"))
    if users is None or groups is None:
        return
    script = 'echo ready && read -r go && exec rm -rf -- "$1"'
    try:
        process = subprocess.Popen(
            ["unshare", "--user", "sh", "-c", script, "sh", str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdin
        assert process.stdout
        if process.stdout.readline():
            for program, own, (start, length) in (
                ("newuidmap", os.getuid(), users),
                ("newgidmap", os.getgid(), groups),
            ):
                subprocess.run(
                    [program, str(process.pid), "0", str(own), "1", "1", str(start), str(length)],
                    check=True,
                )
            process.stdin.write("go\n")
        process.communicate(timeout=300)
    except (OSError, subprocess.SubprocessError):
        return
