"""Has work done in the sandbox: under the guard, with the privileges that this user has."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from toolkit.images.build.apptainer.apptainer import SOURCE, SYSTEM_PATH
from toolkit.images.build.apptainer.work import CANNOT, Work
from toolkit.images.build.follow import Follower
from toolkit.images.build.privilege import may_mount, namespace_ids
from toolkit.images.build.workspace import Workspace
from toolkit.images.recipe.block import CHECKS
from toolkit.images.store.settings import VARIABLES
from toolkit.model.base import to_json


class LayersUnavailableError(Exception):
    """This machine does not let this user mount what layers need; says why."""


def run_sandbox(
    work: Work, place: Workspace, follower: Follower, on_line: Callable[[str], object] | None = None
) -> int:
    """Have it done; the exit code of the first step that failed, or 0.

    Raises:
        NotHereError: nothing has been done.
        ForbiddenError: this user has no subordinate ids.
    """
    file = place.output / "work.json"
    users, groups = ((), ()) if may_mount() else namespace_ids()
    file.write_text(
        to_json(msgspec.structs.replace(work, users=users, groups=groups)), encoding="utf-8"
    )
    command = [
        "env",
        f"PYTHONPATH={SOURCE}",
        sys.executable,
        "-m",
        "toolkit.images.build.apptainer.sandbox",
        str(file),
    ]
    code = follower.follow(
        command, environment(), place, steps=[task.name for task in work.tasks], on_line=on_line
    )
    if code == CANNOT:
        follower.give_up()
        raise LayersUnavailableError(
            "; ".join(line.removeprefix("toolkit: ") for line in follower.reader.tail)
        )
    return code


def run_image_checks(program: str, place: Workspace, follower: Follower) -> int:
    """Run what ``place.sif`` carries to prove itself, as users run it and with nothing of this machine; its exit code."""
    command = [
        program,
        "--silent",
        "exec",
        "--cleanenv",
        "--containall",
        str(place.sif),
        "/bin/sh",
        f"{CHECKS}/run",
    ]
    settings = dict.fromkeys(VARIABLES, str(place.output / "config"))
    return follower.follow(command, environment() | settings, place)


def environment() -> dict[str, str]:
    """For our own programs and Apptainer: nothing of the user's."""
    path = dict.fromkeys((*SYSTEM_PATH.split(":"), *os.environ.get("PATH", "").split(":")))
    return {
        "HOME": str(Path.home()),
        "PATH": ":".join(part for part in path if part),
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": str(SOURCE),
    }
