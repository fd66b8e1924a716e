"""Runtimes: what a rank runs inside.

A runtime is a row in ``RUNTIMES``, and ``scripts/templates/runtimes/<name>.j2`` is its template.
``docs/contributing/adding-a-runtime.md`` adds one.
"""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.errors import (
    LauncherMismatchError,
    SignatureError,
    ToolkitError,
    UnknownRuntimeError,
    UsageError,
)
from toolkit.launchers import LAUNCHERS, offered
from toolkit.model.case import Case
from toolkit.runtimes import containers, environments
from toolkit.runtimes.base import Runtime, bind_findings

RUNTIMES = {
    runtime.name: runtime
    for runtime in (
        containers.APPTAINER,
        environments.CONDA,
        containers.DOCKER,
        environments.NONE,
        containers.PYXIS,
    )
}
DEFAULT = "apptainer"


def get(name: str | None) -> Runtime:
    """Return the runtime of a name, or the default one.

    Raises:
        UnknownRuntimeError: no runtime has the name; the error names the nearest one.
    """
    runtime = RUNTIMES.get(name or DEFAULT)
    if runtime is None:
        raise unknown(name or DEFAULT)
    return runtime


def unknown(name: str) -> UnknownRuntimeError:
    """Return the error for a name that no runtime has."""
    return UnknownRuntimeError(
        f"there is no runtime {name!r}",
        place="--runtime",
        choices=RUNTIMES,
        value=name,
        next_step=f"one of {', '.join(RUNTIMES)}",
    )


def check(case: Case) -> Iterator[ToolkitError]:
    """Yield why the job cannot run in its runtime."""
    job, runtime, launcher = case.job, case.runtime, case.launcher
    if runtime is None:
        yield unknown(job.runtime or "")
        return
    # An image that the job's folder or the project names is passed over: the runtime was chosen in
    # its place.
    chosen = ("--image", case.origins.get("runtime"))
    if not runtime.image and job.image and case.origins.get("image", "") in chosen:
        yield UsageError(
            f"the runtime {runtime.name} starts no image",
            place="--image",
            next_step="leave --image out, or --runtime apptainer",
        )
    if not runtime.image and job.bind and case.origins.get("bind") == "--bind":
        yield UsageError(
            f"the runtime {runtime.name} has no container to show a directory in",
            place="--bind",
            next_step="use the directory as it is",
        )
    if not runtime.environments and job.conda_env is not None:
        yield UsageError(
            f"the runtime {runtime.name} cannot use an environment of conda ({job.conda_env})",
            place="--env",
            next_step=f"--runtime conda --env {job.conda_env}",
        )
    if runtime.image != "sif" and job.require_signed:
        yield SignatureError(
            f"only signed images may run, and images of {runtime.name} have no signatures",
            place="--runtime",
            next_step="--runtime apptainer, with a signed image",
        )
    yield from bind_findings(case) if runtime.image else ()
    yield from runtime.check(case)
    if launcher is None or launcher.needs <= runtime.offers:
        return
    names = [name for name in offered() if LAUNCHERS[name].needs <= runtime.offers]
    others = [name for name, other in RUNTIMES.items() if launcher.needs <= other.offers]
    yield LauncherMismatchError(
        f"the launcher {launcher.name} cannot start ranks by {runtime.name}",
        place="--launcher",
        next_step=f"--launcher {' or '.join(names)}; or --runtime {' or '.join(others)}",
    )
