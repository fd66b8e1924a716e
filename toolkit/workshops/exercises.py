"""The exercises that came with the tool: what each shows, and copies to scratch on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from toolkit.config import shipped
from toolkit.errors import ScriptMissingError, UsageError, of_system
from toolkit.files import read_toml, temporary_beside
from toolkit.model.job import Job


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
    with temporary_beside(target) as scratch:
        copied = scratch / "copy"
        for folder, below, names in os.walk(source, onerror=_raise, followlinks=True):
            below[:] = [name for name in below if name not in ("__pycache__", "runs")]
            inner = copied / Path(folder).relative_to(source)
            inner.mkdir()
            for name in names:
                shutil.copyfile(Path(folder, name), inner / name)
        _bring_script(source, copied)
        for path in (copied, *copied.rglob("*")):  # a wheel's files may be read-only
            path.chmod(0o755 if path.is_dir() else 0o644)
        copied.rename(target)


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
