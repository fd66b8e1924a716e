"""Call a Python function on the nodes of a cluster, in an image, and return its result.

On submitit, which carries functions, results and exceptions as files; the job itself is an ordinary
run, with a plan, a script and a directory of its own below ``runs/``, so that what cannot work is
refused before anything queues, and `toolkit ps`, `logs`, `cancel` and `explain` know it.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.api.run import write
from toolkit.errors import (
    LauncherMismatchError,
    NeedsInstallError,
    PlanError,
    ToolkitError,
    UsageError,
)
from toolkit.launchers.others import SUBMITIT_FOLDER, SUBMITIT_TARGET
from toolkit.localcluster.access import local_name
from toolkit.model.base import field_names
from toolkit.model.image import Manifest
from toolkit.model.job import Job as Settings
from toolkit.planning.case import gather
from toolkit.planning.settings import Layer
from toolkit.runs.submit import submit as submit_run
from toolkit.slurm.client import PATIENCE, Wait, patiently

if TYPE_CHECKING:
    from toolkit.api.jobs import Job

# Not those that are a script's, or another launcher's; going back into the queue is submitit's own
# work here.
_NOT_OPTIONS = {
    *("summary", "script", "arguments", "launcher", "init", "max_restarts", "array", "requeue"),
    *("max_requeues", "retry", "snapshot"),
}
_OPTIONS = frozenset(field_names(Settings)) - _NOT_OPTIONS
_DAY = 24 * 60
_LOG = logging.getLogger("toolkit")
_TIMEOUTS = 3  # how often a function may run into its time limit and go on, as submitit has it


def submit(function: Callable[..., Any], *arguments: Any, **options: Any) -> Job:
    """Call ``function(*arguments)`` in a job, once in each of its tasks.

    Args:
        function: any callable that cloudpickle can serialize. If it has a method
            ``checkpoint(*arguments)`` that returns a ``submitit.helpers.DelayedSubmission``, it
            continues from there when the job is preempted or reaches its time limit.
        arguments: of the function; for named ones there is ``functools.partial``.
        options: of `toolkit run`, by their names in a job.toml: ``image``, ``nodes``,
            ``ntasks_per_node``, ``gpus``, ``time``, ``partition``, ``comment``, ``job_name``,
            ``bind``, ``env``, ``site``, ...; ``toolkit.toml`` and ``TOOLKIT_*`` apply as well.

    Returns:
        submitit's job: ``result()`` waits for the result, and raises with the remote traceback if
        the function failed; ``results()`` is a list for several tasks; ``done()``, ``state``,
        ``cancel()``, ``stdout()``, ``interrupt()``.

    Raises:
        NeedsInstallError: submitit is not installed here.
        UsageError: there is no such option, or the function cannot be serialized.
        PlanError: the job could not run; nothing was submitted.
        SlurmSilentError: Slurm's controller gave no answer for five minutes.
    """
    try:
        return _submit(function, arguments, options)
    except ToolkitError as error:
        findings = error.findings if isinstance(error, PlanError) else ()
        lines = (error.summary, *error.details, *(finding.summary for finding in findings))
        error.args = ("\n  ".join(lines),)  # which a traceback shows
        raise


def _submit(
    function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
) -> Job:
    try:
        import submitit
    except ImportError:
        raise NeedsInstallError(
            "toolkit.submit works on submitit, which is not installed here",
            place=sys.executable,
            next_step="pip install 'slurm-container-toolkit[submit]'",
        ) from None
    from toolkit.api.jobs import Job

    cwd, wait = Path.cwd(), Wait(PATIENCE, _LOG.warning)
    layer = _layer(function, options, cwd)
    case = patiently(lambda: gather(SUBMITIT_TARGET, layer, cwd), wait)
    # Modules beside the running script are visible on the nodes, too.
    case = case._replace(target=case.target._replace(folder=str(_folder(cwd))))
    if (mismatch := _mismatch(function, case.manifest)) is not None:
        case = case.with_findings(mismatch)
    run = write(case)
    folder = run.directory / SUBMITIT_FOLDER
    try:
        folder.mkdir(mode=0o700)  # the ranks run what is in it
        called = submitit.core.utils.DelayedSubmission(function, *arguments)
        called.set_timeout(case.minutes or _DAY, _TIMEOUTS)
        called.dump(folder / "function.pkl")
    except Exception as error:
        shutil.rmtree(run.directory)
        if isinstance(error, OSError):
            raise
        raise UsageError(
            f"{_name(function)} cannot be sent to the job: {error}", place="toolkit.submit"
        ) from error
    number = submit_run(run, local_name(case.site), wait)
    # The tasks wait for it: its name has the job's number in it.
    (folder / "function.pkl").rename(folder / f"{number}_submitted.pkl")
    tasks = range(run.plan.nodes * run.plan.ranks_per_node)
    return Job(folder, str(number), tuple(tasks))


def _layer(function: Callable[..., Any], options: dict[str, Any], cwd: Path) -> Layer:
    unknown = next((name for name in options if name not in _OPTIONS), None)
    if unknown is not None:
        raise UsageError(
            f"toolkit.submit has no option {unknown!r}",
            choices=_OPTIONS,
            value=unknown,
            place="toolkit.submit",
        )
    given = {name: value for name, value in options.items() if value is not None}
    given["env"] = {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys((str(_folder(cwd)), str(cwd)))),
        **given.get("env", {}),
    }
    if isinstance(given.get("bind"), str):
        given["bind"] = (given["bind"],)
    return Layer(
        "toolkit.submit",
        {"job_name": _name(function), **given, "launcher": "submitit", "snapshot": False},
    )


def _folder(cwd: Path) -> Path:
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(script).resolve().parent if script else cwd


def _name(function: Callable[..., Any]) -> str:
    """Return the name of a function; a partial has that of its function."""
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__name__", type(inner).__name__)).strip("<>")


def _mismatch(function: Callable[..., Any], manifest: Manifest | None) -> ToolkitError | None:
    """Return a finding if the function is sent as byte code to another Python version."""
    version = manifest.packages.apt.get("python3", "") if manifest else ""
    image_python = ".".join(version.split(".")[:2])
    own_python = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not image_python or image_python == own_python or _by_name(function):
        return None
    return LauncherMismatchError(
        f"{_name(function)} is sent as byte code of Python {own_python}, "
        f"and the image has Python {image_python}",
        place="image",
        next_step=f"run this with Python {image_python}, "
        "or define the function in its own module and import it",
    )


def _by_name(function: Callable[..., Any]) -> bool:
    """Return whether a function is sent as its name in a module, which the job imports."""
    owner = function if hasattr(function, "__qualname__") else type(function)
    module = sys.modules.get(getattr(owner, "__module__", ""))
    return (
        module is not None
        and module.__name__ != "__main__"
        and getattr(module, owner.__qualname__, None) is owner
    )
