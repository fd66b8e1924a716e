"""Resolve what `toolkit run` runs.

A target is a script, a job's folder, or a run to repeat.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from toolkit import source
from toolkit.config import shipped
from toolkit.errors import ScriptMissingError, UnknownRunError, UsageError
from toolkit.files import read_bytes, read_json, read_toml
from toolkit.launchers import INTERPRETERS, LAUNCHERS
from toolkit.model.case import SHELLS, Target
from toolkit.model.job import Job
from toolkit.planning.settings import Layer, layer
from toolkit.quoting import shell as quote
from toolkit.trust import require_trusted

_MOST_SCRIPT = 1 << 20  # bytes


def understand(
    name: str, flags: Layer, cwd: Path, known: Job, *, is_command: bool
) -> tuple[Target, Layer, Layer, str]:
    """Resolve the words of a command with the settings that are ``known`` before the target's.

    Returns:
        What is run, its own settings, the options with those that another launcher's command
        amounts to, and what was understood of that command; empty: there is none.
    """
    words, note = (name, *flags.values.get("arguments", ())), ""
    is_file = (cwd / name).is_file() if is_command else (cwd / name).exists()
    given = LAUNCHERS.get(flags.values.get("launcher", ""))
    as_it_is = given is not None and (given.is_internal or given.name == "none")
    if not as_it_is and not is_file:
        from toolkit.planning import commands

        name, flags, note = commands.translate(words, flags) or (name, flags, "")
    launcher = LAUNCHERS.get(flags.values.get("launcher") or known.launcher or "")
    if launcher is not None and launcher.is_server:
        target = Target(name, str(cwd), str(cwd), is_program=True)
        return target, Layer("program", {}), flags, note
    is_other = any(name in other.commands for other in LAUNCHERS.values())
    is_program = is_other if launcher is None else launcher.takes_programs
    # A launcher of programs runs "python -m pkg.train" as it is written, but -m asks for a module.
    if not is_program or flags.values.get("python_module"):
        name, flags = python_target(name, flags, cwd)
    # The arguments of a shell or a Python say what it runs.
    starts = name in SHELLS or ("/" not in name and source.is_python(name))
    is_program = is_program or is_command or starts
    is_live = flags.values.get("snapshot") is False
    target, own = resolve(name, cwd, runs=known.runs or "runs", program=is_program, is_live=is_live)
    return target, own, flags, note


def resolve(
    name: str, cwd: Path, *, runs: str = "runs", program: bool = False, is_live: bool = False
) -> tuple[Target, Layer]:
    """Resolve a target's name from the current working directory, with its own settings.

    A folder with a ``job.toml`` is a job, one with a ``plan.json`` a run; ``jobs/NAME`` may also be
    a shipped job.

    Args:
        name: a script, a folder or a run.
        cwd: the current working directory.
        runs: the directory of runs.
        program: a name that is not a path is a program of the image, such as ``hostname``.
        is_live: use the work tree even if the run has a snapshot of it.

    Raises:
        ScriptMissingError: nothing has this name; the error names the nearest script or job.
        ConfigError: a job.toml is broken.
        UntrustedError: another user could have written the run that is repeated.
    """
    path, shipped_job = cwd / name, shipped("jobs") / name.removeprefix("jobs/")
    if not path.exists() and name.startswith("jobs/"):
        path = shipped_job
    if not path.exists() and name[-1:].isdigit():
        from toolkit.runs.run import find

        with suppress(UnknownRunError):
            path = find(name, cwd / runs).directory
    if (path / "plan.json").is_file() and (path / "job.json").is_file():
        return _repeated(path, cwd, is_live=is_live)
    if (path / "job.toml").is_file():
        is_named = not (name.startswith("jobs/") and shipped_job.is_dir())
        job = read_toml(path / "job.toml", Job, named=is_named)
        return _job("job.toml", job, path.resolve(), cwd)
    if path.is_file():
        return _script(name, path, cwd), Layer("script", {})
    # A folder does not hide a program: a clone of huggingface/accelerate is called accelerate.
    if program and _is_program(name) and (path.is_dir() or not path.exists()):
        return Target(name, str(cwd), str(cwd), is_program=True), Layer("program", {})
    step = "toolkit run --help describes scripts and jobs"
    if _is_program(name) and not path.exists():
        step = f"if it is a program of the image: toolkit run ... -- {name}"
    # The shipped jobs, and the scripts in the directory and in its folders.
    jobs = [f"jobs/{path.parent.name}" for path in shipped("jobs").glob("*/job.toml")]
    patterns = [f"{folder}*{suffix}" for suffix in INTERPRETERS for folder in ("", "*/")]
    scripts = [str(path.relative_to(cwd)) for each in patterns for path in cwd.glob(each)]
    raise ScriptMissingError(
        f"folder {name} has no job.toml" if path.is_dir() else f"no script or job {name}",
        place="SCRIPT",
        choices=[*jobs, *scripts],
        value=name,
        next_step=step,
    )


def _script(name: str, path: Path, cwd: Path) -> Target:
    has_options = False
    with suppress(OSError):  # The rules say so, or it is a large program.
        has_options = b"\n#SBATCH" in read_bytes(path, _MOST_SCRIPT)
    if has_options and path.suffix != ".py":
        raise UsageError(
            f"{name} is a batch script: its #SBATCH lines would not be read",
            place="SCRIPT",
            next_step=f"sbatch {quote(name)} submits it, toolkit lint {quote(name)} checks it; "
            "or toolkit run ... -- what its srun starts",
        )
    return Target(_short(path, cwd), str(path.parent.resolve()), str(cwd))


def _repeated(path: Path, cwd: Path, *, is_live: bool) -> tuple[Target, Layer]:
    from toolkit.model.run import Snapshot
    from toolkit.runs.run import Run

    require_trusted(path)
    run = Run(path.resolve())
    job = read_json(path / "job.json", Job, searched=True)
    job = replace(job, env={**job.env, **run.secrets})
    taken = None if is_live else run.read("snapshot.json", Snapshot)
    if taken is None:
        target, own = _job(path.name, job, cwd, cwd, is_run=True)
        return target._replace(repeats=run), own
    code, script = run.directory / "code", job.script or ""
    folder, directory = code / taken.folder, code / taken.directory
    file = folder / Path(script).name
    is_program = not file.is_file()
    name = script if is_program else _short(file, directory)
    target = Target(name, str(folder), str(directory), is_program, repeats=run, is_copy=True)
    return target, layer(path.name, job)


def python_target(name: str, flags: Layer, cwd: Path) -> tuple[str, Layer]:
    """Return a target and flags for ``-m``, or for a command that runs Python.

    Another command stays as it is, and so does one with a Python or options of its own, or whose
    program is a file here. Ranks are unbuffered without ``-u``.

    Raises:
        ScriptMissingError: the working directory does not have the module.
    """
    values = dict(flags.values)
    script, module = name, values.get("python_module") or ""
    if not module:
        command = source.python_command((name, *values.get("arguments", ())))
        if command is None or set(command[0]) - {"-u"} or "/" in name or (cwd / name).exists():
            return name, flags
        script, module, values["arguments"] = command[1:]
        top = module.partition(".")[0]
        if module and not ((cwd / top).exists() or (cwd / f"{top}.py").exists()):
            return name, flags  # a module of the image, such as mpi4py.futures
    if module:
        file = source.module_file(module, cwd)
        if file is None:
            raise ScriptMissingError(
                f"no module {module} in {cwd}",
                place="-m",
                next_step=f"change to the directory that holds {module.partition('.')[0]}; "
                f"for a module of the image: --launcher none -- python -m {module}",
            )
        script = _short(file, cwd)
        values["python_module"] = module
        values.setdefault("job_name", module.rpartition(".")[2])
    return script, flags._replace(values=values)


def _job(
    origin: str, job: Job, folder: Path, cwd: Path, *, is_run: bool = False
) -> tuple[Target, Layer]:
    script = folder / (job.script or "train.py")
    launcher = LAUNCHERS.get(job.launcher or "")
    takes_programs = is_run or (launcher is not None and launcher.takes_programs)
    if not script.is_file() and takes_programs and _is_program(job.script or ""):
        target = Target(job.script or "", str(folder), str(cwd), is_program=True)
        return target, layer(origin, job)
    if not script.is_file():
        raise ScriptMissingError(
            f"no script {script.name} in {folder}",
            place=f"{origin}, key script",
            choices=[path.name for path in script.parent.glob("*.py")],
            value=script.name,
        )
    name = {"job_name": folder.name} if folder != cwd else {}
    target = Target(_short(script, cwd), str(script.parent.resolve()), str(cwd))
    return target, Layer(origin, {**name, **layer(origin, job).values})


def _is_program(name: str) -> bool:
    """Return whether a word is a program name rather than a path or a missing script."""
    is_file = "/" in name or Path(name).suffix in INTERPRETERS
    return bool(name) and name[0] != "-" and not is_file


def _short(script: Path, cwd: Path) -> str:
    """Return the relative path of a script below the working directory, else its absolute path.

    A name that begins with a dash would be an option of the interpreter.
    """
    path = Path(os.path.normpath(cwd / script))
    short = str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)
    return f"./{short}" if short.startswith("-") else short
