"""What `toolkit run` was pointed at: a script, a job's folder, or a run to be repeated."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from toolkit.errors import ScriptMissingError, UnknownRunError
from toolkit.files import read_json, read_toml
from toolkit.launchers import LAUNCHERS
from toolkit.model.job import Job
from toolkit.planning.settings import Layer, layer
from toolkit.records import secrets
from toolkit.resources import shipped


class Target(NamedTuple):
    """A target that was found.

    Attributes:
        script: as the ranks are given it: relative to where the user stands if it is below, else absolute.
        folder: directory of the script, absolute.
        layer: what the target itself says about how it is run.
        program: there is no script: it is a program of the image.
        run: directory of the run that is repeated; None: it is none.
        snapshot_cwd: where the ranks run, in the snapshot of that run; empty: it has none.
    """

    script: str
    folder: str
    layer: Layer
    program: bool = False
    run: Path | None = None
    snapshot_cwd: str = ""


def resolve(name: str, here: Path, *, program: bool = False, is_live: bool = False) -> Target:
    """Find the target ``name`` from the directory ``here``.

    Args:
        name: a script, a folder or a run.
        here: where the user stands.
        program: where nothing is there, it is a program of the image, such as ``hostname``.
        is_live: the work tree is meant, also where a run has a snapshot of it.

    A folder with a ``job.toml`` is a job, one with a ``plan.json`` a run; ``jobs/NAME`` is also
    found among the shipped jobs.

    Raises:
        ScriptMissingError: nothing is there; names the nearest script or job.
        ConfigError: a job.toml is broken.
    """
    path = here / name
    if not path.exists() and name.startswith("jobs/"):
        path = shipped("jobs") / name.removeprefix("jobs/")
    if not path.exists() and name[-1:].isdigit():
        path = _run_of(name, here) or path
    if (path / "plan.json").is_file() and (path / "job.json").is_file():
        job = read_json(path / "job.json", Job)
        job = replace(job, env={**job.env, **secrets.read(path)})
        return (None if is_live else _snapshot(path.resolve(), job)) or _job(
            path.name, job, here, here
        )._replace(run=path)
    if (path / "job.toml").is_file():
        settings = read_toml(path / "job.toml", Job, named=not _hides_shipped(name))
        return _job("job.toml", settings, path.resolve(), here)
    if path.is_file():
        return Target(_word(path, here), str(path.parent.resolve()), Layer("script", {}))
    if program and _is_program(name) and not path.exists():
        return Target(name, str(here), Layer("program", {}), program=True)
    step = ""
    if _is_program(name) and not path.exists():
        step = f"toolkit run --launcher none ... -- {name}, if it is a program of the image"
    missing = (
        f"the folder {name} has no job.toml"
        if path.is_dir()
        else f"there is no script or job {name}"
    )
    raise ScriptMissingError(
        missing,
        place="SCRIPT",
        choices=_near(here),
        value=name,
        next_step=step or "toolkit run --help shows what a script or job can be",
    )


def _snapshot(run: Path, job: Job) -> Target | None:
    """Return the target in the snapshot of a run; None if it has none."""
    from toolkit.records.snapshot import of_run

    taken = of_run(run)
    if taken is None:
        return None
    said, code = layer(run.name, job), run / "code"
    folder, cwd = code / taken.folder, code / taken.directory
    name = Path(job.script or "").name
    is_program = not (folder / name).is_file()
    script = (job.script or "") if is_program else _word(folder / name, cwd)
    return Target(script, str(folder), said, is_program, run, str(cwd))


def _run_of(name: str, here: Path) -> Path | None:
    """Return the directory of the run that a name or a job id means."""
    from toolkit.records.store import find

    try:
        return find(name, here / "runs").directory
    except UnknownRunError:
        return None


def python_target(target_name: str, flags: Layer, cwd: Path) -> tuple[str, Layer]:
    """Return a target and flags for ``-m``, or for a command that runs Python."""
    module = flags.values.get("python_module")
    if isinstance(module, str):
        values = {
            **flags.values,
            "job_name": flags.values.get("job_name", module.rpartition(".")[2]),
        }
        return module_file(module, cwd), flags._replace(values=values)
    words = (target_name, *tuple(flags.values.get("arguments", ())))
    command = of_python(words, cwd)
    if command is None:
        return target_name, flags
    script, module, arguments = command
    values = {**flags.values, "arguments": arguments}
    if module:
        values |= {
            "python_module": module,
            "job_name": flags.values.get("job_name", module.rpartition(".")[2]),
        }
    return script, flags._replace(values=values)


def of_python(words: Sequence[str], here: Path) -> tuple[str, str, tuple[str, ...]] | None:
    """Return script, module and arguments of ``python [-u] -m pkg.train ...`` and of ``python train.py ...``.

    None: the words are another command, or a file has the name of the program.
    """
    from toolkit.imports.entry import is_python

    rest = [*words[1:]]
    while rest[:1] == ["-u"]:
        del rest[0]
    if (
        not words
        or "/" in words[0]
        or not is_python(words[0])
        or (here / words[0]).exists()
        or not rest
    ):
        return None
    if rest[0] == "-m" and len(rest) > 1:
        return module_file(rest[1], here), rest[1], tuple(rest[2:])
    return (rest[0], "", tuple(rest[1:])) if rest[0].endswith(".py") else None


def module_file(name: str, here: Path) -> str:
    """Return the file that ``python -m NAME`` runs, as the ranks are given it.

    Raises:
        ScriptMissingError: the working directory does not have the module.
    """
    from toolkit.imports.entry import of_module

    found = of_module(name, here)
    if found is None:
        raise ScriptMissingError(
            f"there is no module {name} in {here}",
            place="-m",
            next_step=f"change to the directory that holds {name.partition('.')[0]}; one of the image: --launcher none -- python -m {name}",
        )
    return _word(found.file, here)


def _job(origin: str, job: Job, folder: Path, here: Path) -> Target:
    script = folder / (job.script or "train.py")
    launcher = LAUNCHERS.get(job.launcher or "")
    takes_programs = launcher is not None and launcher.takes_programs
    if not script.is_file() and takes_programs and _is_program(job.script or ""):
        return Target(job.script or "", str(folder), layer(origin, job), program=True)
    if not script.is_file():
        choices = [path.name for path in script.parent.glob("*.py")]
        raise ScriptMissingError(
            f"there is no script {script.name} in {folder}",
            place=f"{origin}, key script",
            choices=choices,
            value=script.name,
        )
    said = layer(origin, job)
    name = {"job_name": folder.name} if folder != here else {}
    return Target(
        _word(script, here), str(script.parent.resolve()), Layer(origin, {**name, **said.values})
    )


def _hides_shipped(name: str) -> bool:
    """Return whether a name that was found here is also that of a shipped job."""
    return name.startswith("jobs/") and (shipped("jobs") / name.removeprefix("jobs/")).is_dir()


def _is_program(name: str) -> bool:
    """Whether a word can be the name of a program: whoever writes a path means a file, and ``train.py`` is a script that is missing."""
    return bool(name) and "/" not in name and not name.endswith((".py", ".sh"))


def _word(script: Path, here: Path) -> str:
    """A script below the working directory keeps the short name that the user gave it."""
    path = Path(os.path.normpath(here / script))
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _near(here: Path) -> list[str]:
    jobs = [f"jobs/{path.parent.name}" for path in shipped("jobs").glob("*/job.toml")]
    return [
        *jobs,
        *(
            str(path.relative_to(here))
            for pattern in ("*.py", "*/*.py")
            for path in here.glob(pattern)
        ),
    ]
