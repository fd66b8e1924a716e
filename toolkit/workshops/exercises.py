"""Folders of exercises and workshops: read them, copy what came with the tool, write a new one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from toolkit.config import shipped
from toolkit.errors import ConfigError, ScriptMissingError, UsageError, of_system
from toolkit.files import config_error, read_text, read_toml, written_whole
from toolkit.model.base import BadDataError
from toolkit.model.job import Job
from toolkit.workshops.model import CONTENTS, NAME, WORKSHOP, Exercise, Workshop, check


def exercises() -> dict[str, Job]:
    """Return the job of each exercise, sorted by its name."""
    files = sorted(shipped("jobs").glob("*/job.toml"))
    return {path.parent.name: read_toml(path, Job) for path in files}


def copy(name: str, target: Path) -> None:
    """Copy an exercise to a directory that does not exist yet.

    Raises:
        ScriptMissingError: no exercise has this name.
        UsageError: there is something at the target, or it cannot be there.
    """
    name = name.removeprefix("jobs/").strip("/")
    source = shipped("jobs") / name
    known = exercises()
    if name not in known:
        raise ScriptMissingError(
            f"no exercise is called {name}",
            place="NAME",
            choices=known,
            value=name,
            next_step="toolkit jobs list",
        )
    if target.exists() or target.is_symlink():
        raise UsageError(
            f"{target} exists already",
            place="DIRECTORY",
            next_step=f"toolkit jobs copy {name} OTHER-DIRECTORY",
        )
    copy_folder(source, target)


def copy_folder(source: Path, target: Path) -> None:
    """Copy the folder of an exercise as a whole or not at all, without the runs in it.

    Raises:
        ToolkitError: a file cannot be read, or there can be none at the target.
    """
    try:
        _copy(source, target)
    except OSError as error:
        cause = f"{source.name} cannot be copied: {error.strerror or error}"
        place = str(error.filename or target)
        raise of_system(error) or UsageError(cause, place=place) from error


def _copy(source: Path, target: Path) -> None:
    with written_whole(target) as copied:
        for folder, below, names in os.walk(source, onerror=_raise, followlinks=True):
            below[:] = [name for name in below if name not in ("__pycache__", "runs")]
            inner = copied / Path(folder).relative_to(source)
            inner.mkdir()
            for name in names:
                shutil.copyfile(Path(folder, name), inner / name)
        _bring_script(source, copied)
        for path in (copied, *copied.rglob("*")):  # a wheel's files may be read-only
            path.chmod(0o755 if path.is_dir() else 0o644)


def _raise(error: OSError) -> None:
    raise error


def _bring_script(source: Path, copied: Path) -> None:
    """Copy a script that belongs to another exercise, and set its name in the copied job file.

    The modules beside the script are copied too.
    """
    file = source / "job.toml"
    script = (read_toml(file, Job, named=True).script or "") if file.is_file() else ""
    if "/" not in script:
        return
    for module in (source / script).parent.glob("*.py"):
        shutil.copy(module, copied / module.name)
    job = copied / "job.toml"
    text = job.read_text(encoding="utf-8").replace(
        f'script = "{script}"', f'script = "{Path(script).name}"'
    )
    job.write_text(text, encoding="utf-8")


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
        own = source_of(folder, exercise)
        if not (own / "job.toml").is_file() and not any(own.glob("*.ipynb")):
            choices = tuple(f"jobs/{name}" for name in exercises())
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
    with written_whole(folder) as made:
        for name, source in _EXERCISES.items():
            copy(source, made / name)
        (made / WORKSHOP).write_text(_TEXT.format(name=folder.name), encoding="utf-8")
        made.chmod(0o755)
