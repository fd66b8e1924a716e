"""Write a new workshop that works as it is."""

from __future__ import annotations

import os
from pathlib import Path

from toolkit import exercises
from toolkit.errors import UsageError
from toolkit.files import temporary_beside
from toolkit.workshops.model import NAME, WORKSHOP

_TEXT = """\
# A workshop. Show it: toolkit workshop show    check it: toolkit workshop rehearse --people 4
title = "Distributed training: the first hour"
language = ["en"]                 # a second one: ["en", "ko"], and a text for each exercise
# date = "2027-03-01, 14:00"
people = 20

# Any option of `toolkit run`, for all exercises; a job.toml takes precedence.
# site = "neuron"
# partition = "cas_v100_4"
# reservation = "workshop"
# account = "course"


# The shared directory in which runs leave results, with the consent of each participant;
# toolkit workshop open creates it.
# results = "/scratch/workshops/{name}"

[images]
pytorch_cpu = ""                  # or its lock, a file beside this one: "pytorch_cpu.lock"

# [data]
# fashion-mnist = "/usr/share/datasets/fashion-mnist"      # read-only in jobs: /data/fashion-mnist

[[exercises]]
name = "01-ddp"
folder = "01-ddp"

[[exercises]]
name = "02-horovod"
folder = "02-horovod"
"""
_EXERCISES = {"01-ddp": "digits-ddp", "02-horovod": "digits-horovod"}


def create(folder: Path) -> None:
    """Write a workshop with two exercises into a folder that does not exist yet.

    Raises:
        UsageError: there is something at its path, or no workshop can have this name.
    """
    if not NAME.match(folder.name):
        raise UsageError(
            f"{folder.name!r} cannot be the name of a workshop",
            place="DIRECTORY",
            next_step="letters, digits, - and _: toolkit workshop new first-steps",
        )
    if os.path.lexists(folder):
        raise UsageError(
            f"{folder} exists already",
            place="DIRECTORY",
            next_step="toolkit workshop new OTHER-DIRECTORY",
        )
    with temporary_beside(folder) as scratch:
        made = scratch / "made"
        for name, source in _EXERCISES.items():
            exercises.copy(source, made / name)
        (made / WORKSHOP).write_text(_TEXT.format(name=folder.name), encoding="utf-8")
        made.chmod(0o755)
        made.rename(folder)
