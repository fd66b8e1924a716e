"""Write the directory of a planned run: plan, script, secrets, hook and the record of its code."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from toolkit import launchers, scripts
from toolkit.config import package_directory
from toolkit.errors import ConfigError
from toolkit.files import write_atomically
from toolkit.model.base import to_json
from toolkit.model.case import Case
from toolkit.model.job import Job
from toolkit.model.plan import Plan
from toolkit.quoting import shell
from toolkit.runs import code, directories
from toolkit.runs.run import SECRETS, Run
from toolkit.text import shows
from toolkit.trust import require_trusted

# Whatever the umask is: a group may share a directory of runs, and only its owner writes to a run.
_RUNS_MODE, _RUN_MODE = 0o775, 0o755


def reserve(directory: Path) -> bool:
    """Create a run's directory; return False if another process was faster.

    Raises:
        UntrustedError: another user could replace the directory; nothing was written.
        ConfigError: the directory of runs is a file, or a link to nothing.
    """
    if os.path.lexists(directory):
        return False
    try:
        require_trusted(directory)
        directory.parent.mkdir(mode=_RUNS_MODE, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(
            f"{directory.parent} is not a directory",
            place="runs",
            next_step="remove it, or name another directory: export TOOLKIT_RUNS=DIR",
        ) from error
    require_trusted(directory)  # where all users may write, another was perhaps faster
    try:
        directory.mkdir(mode=_RUN_MODE)
    except FileExistsError:
        return False
    (directory / "logs").mkdir(mode=_RUN_MODE)
    directories.remember(directory.parent)
    return True


def fill(plan: Plan, case: Case) -> Run:
    """Write the files of a run into its directory, which is removed if that fails."""
    run = Run(Path(plan.run_directory))
    try:
        values = {name: case.job.env[name] for name in plan.secrets}
        if values or launchers.get(plan.launch.launcher).is_server or shows(case.job.arguments):
            run.directory.chmod(0o700)
        if plan.reports:
            _place_hook(run)
        if values:
            write_secrets(run, plan.container.prefix, values)
        write(run, plan, repeatable(case, plan))
        tree, folder = case.tree, case.target.folder
        if tree is not None:
            code.copy(run, tree, case.target.cwd, folder)
        if tree is not None and tree.is_copy:
            code.repeat(Path(tree.root).parent, run)
        else:
            code.record(run, case.script_file, Path(folder), values.values())
    except BaseException:
        shutil.rmtree(run.directory)
        raise
    return run


def write_secrets(run: Run, prefix: str, values: Mapping[str, str]) -> None:
    """Write variables for the job's script; from now on only the owner can enter the directory.

    Plan, settings, logs and dry runs have only the names.

    Args:
        run: that gets them.
        prefix: of a variable's name, by which it reaches the ranks.
        values: of the variables, by name.
    """
    run.directory.chmod(0o700)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(run.directory / SECRETS, flags, 0o600), "w", encoding="utf-8") as stream:
        stream.writelines(
            f"export {prefix}{name}={shell(value)}\n" for name, value in sorted(values.items())
        )


def _place_hook(run: Run) -> None:
    """Copy the module of the ranks to where the processes of a run import it."""
    run.reports.mkdir(mode=0o700)
    source = package_directory("scripts") / "report" / "sitecustomize.py"
    (run.reports / source.name).write_bytes(source.read_bytes())


def write(run: Run, plan: Plan, job: Job) -> None:
    """Write plan, settings and script of a run into its directory.

    The plan comes first: a run whose submission is killed is listed, and can be removed.
    """
    run.plan = plan
    write_atomically(run.directory / "plan.json", to_json(plan))
    write_atomically(run.directory / "job.json", to_json(job))
    write_atomically(run.script, scripts.script(plan), mode=0o755)


def repeatable(case: Case, plan: Plan) -> Job:
    """Return the settings that repeat a run, without values of secrets and dependencies."""
    target = case.target
    script = target.script if target.is_program else str(Path(target.folder) / target.name)
    if case.tree is not None and case.tree.is_copy:
        script = case.job.script or script  # of the work tree, which --no-snapshot runs
    values = {name: value for name, value in case.job.env.items() if name not in plan.secrets}
    return replace(case.job, script=script, after=(), env=values, pass_env=())
