"""Read a workshop's folder, find the files that it names, and write a new one that works."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from toolkit.config import shipped
from toolkit.errors import ConfigError, UsageError
from toolkit.files import config_error, read_text, read_toml, temporary_beside
from toolkit.model.base import BadDataError
from toolkit.model.job import Job
from toolkit.workshops import exercises
from toolkit.workshops.model import CONTENTS, NAME, WORKSHOP, Exercise, Workshop, check


def load(folder: Path) -> Workshop:
    """Read ``workshop.toml`` of a folder.

    Raises:
        ConfigError: it is missing or broken, with the nearest valid key; or names a file that does
            not exist, or a folder without an exercise.
        UsageError: the folder's name cannot be that of a workshop.
    """
    path = folder / WORKSHOP
    if not path.is_file() or (folder / CONTENTS).is_file():
        raise ConfigError(
            f"{folder} is not the folder of a workshop, with its {WORKSHOP}",
            place=str(folder),
            next_step="name it, or write a new one: toolkit workshop new first",
        )
    _require_name(folder.resolve().name)
    workshop = read_toml(path, Workshop, named=True)
    try:
        check(workshop)
        _require_exercises(folder, workshop)
    except BadDataError as error:
        raise config_error(path, read_text(path), error) from None
    return workshop


def _require_name(name: str) -> None:
    if not NAME.match(name):
        raise UsageError(
            f"{name!r} cannot be the name of a workshop",
            place="DIRECTORY",
            next_step="letters, digits, - and _: toolkit workshop new first-steps",
        )


def _require_exercises(folder: Path, workshop: Workshop) -> None:
    for number, exercise in enumerate(workshop.exercises):
        if not is_exercise(source_of(folder, exercise)):
            choices = tuple(f"jobs/{name}" for name in exercises.exercises())
            message = f"no job.toml and no notebook is in {exercise.folder}"
            raise BadDataError(message, f"exercises[{number}].folder", choices, exercise.folder)
        for name in exercise.text.values():
            if not (folder / name).is_file():
                raise BadDataError(f"there is no file {name}", f"exercises[{number}].text")


def notes(folder: Path, workshop: Workshop) -> Iterator[tuple[str, str]]:
    """Yield what participants will miss: a subject, and a text."""
    jobs = {each.name: job_of(source_of(folder, each)) for each in workshop.exercises}
    for name, job in jobs.items():
        image = (job.image if job else None) or workshop.image
        if image and image not in workshop.images and "/" not in image:
            yield "not packed", f"{image} of {name} is not in [images]: the site must have it"
        if job is None and not workshop.image:
            text = f"{name} is a notebook, and {WORKSHOP} has no image for notebooks: image = NAME"
            yield "no image", text
    for language in workshop.language[1:]:
        without = [each.name for each in workshop.exercises if language not in each.text]
        if without:
            text = f"{language}: {', '.join(without)} in the language of README.md"
            yield "untranslated", text


def source_of(folder: Path, exercise: Exercise) -> Path:
    """Return the folder of an exercise: beside ``workshop.toml``, else a shipped one."""
    own = folder / exercise.folder
    name = exercise.folder.removeprefix("jobs/")
    return own if own.exists() or name == exercise.folder else shipped("jobs") / name


def data_directory(folder: Path, directory: str) -> Path:
    """Return a directory of data; a relative one begins at the workshop's folder."""
    return folder / Path(directory).expanduser()


def is_exercise(folder: Path) -> bool:
    """Return whether a folder has a job or notebooks."""
    return (folder / "job.toml").is_file() or any(folder.glob("*.ipynb"))


def job_of(folder: Path) -> Job | None:
    """Return the job of an exercise; None for one of notebooks."""
    path = folder / "job.toml"
    return read_toml(path, Job, named=True) if path.is_file() else None


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
    _require_name(folder.name)
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
