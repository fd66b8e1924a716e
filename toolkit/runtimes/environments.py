"""Runtimes without an image: environments of conda, and the nodes' own Python."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.errors import ToolkitError, UsageError
from toolkit.model.case import Case
from toolkit.model.image import Environment
from toolkit.model.plan import Container
from toolkit.runtimes.base import Runtime, missing_frameworks


def _require_cluster(case: Case) -> None:
    """Raise UsageError for a Python of a cluster that this machine does not reach."""
    if case.cluster is None:
        raise UsageError(
            f"the runtime {case.job.runtime} uses a Python of the cluster, "
            "which this machine does not reach",
            place="--runtime",
            next_step=f"plan it on a login node of {case.site.name}, or --runtime apptainer",
        )


def _check_prefix(environment: Environment | None, option: str) -> Iterator[ToolkitError]:
    """Require a directory that PATH can name, for an environment that is entered by it."""
    if environment is not None and ":" in environment.prefix:
        yield UsageError(
            f"a directory with ':' in its name cannot be on PATH: {environment.prefix}",
            place=option,
            next_step="put the environment elsewhere",
        )


def _check_contents(case: Case) -> Iterator[ToolkitError]:
    """Warn of missing frameworks, and of data that has another path than in a container."""
    name, datasets = case.environment.name if case.environment else "", case.site.datasets
    if case.job.conda_env is not None:
        name = f"the environment {case.job.conda_env}"
    if name:
        yield from missing_frameworks(case, name)
    for data in case.job.datasets:
        if data in datasets:
            yield UsageError(
                f"/data/{data} exists only in containers; without one, the data is in "
                f"{datasets[data]}",
                is_warning=True,
            )


def _discover_conda(case: Case) -> Case:
    """Find the environment, and what its Python can import."""
    from toolkit.runtimes.pythons import conda

    _require_cluster(case)
    name = case.job.conda_env
    environment = conda(name, case.site, case.job.modules) if name else None
    return case._replace(environment=environment)


def _conda_names() -> list[str]:
    from toolkit.runtimes.pythons import names

    return names()


def _check_conda(case: Case) -> Iterator[ToolkitError]:
    """Require the name of an environment; ``discover`` has found that it exists."""
    if case.job.conda_env is None:
        yield UsageError(
            "the runtime conda needs the name of an environment",
            place="--env",
            next_step="--env NAME",
        )
    yield from _check_prefix(case.environment, "--env")
    yield from _check_contents(case)


def _conda(case: Case) -> Container:
    """Return what `conda activate` sets, and what the user has given the environment.

    It is entered without conda.
    """
    environment = case.environment
    prefix = environment.prefix if environment else ""
    name = environment.name if environment else case.job.conda_env or ""
    return Container(
        runtime="conda",
        image=prefix,
        name=name,
        where=f"in the conda environment {name}",
        inherits=True,
        settings={
            "CONDA_PREFIX": prefix,
            "CONDA_DEFAULT_ENV": name,
            **(environment.variables if environment else {}),
        },
    )


CONDA = Runtime(
    "conda",
    "a conda environment (--env NAME), with the site's modules",
    container=_conda,
    check=_check_conda,
    discover=_discover_conda,
    environments=_conda_names,
)

# The variable that an active environment sets.
_VARIABLES = {"venv": "VIRTUAL_ENV", "conda": "CONDA_PREFIX"}


def _discover_host(case: Case) -> Case:
    """Find the Python on PATH, and what it can import."""
    from toolkit.runtimes.pythons import host

    _require_cluster(case)
    return case._replace(environment=host(case.site, case.job.modules))


def _entered(case: Case) -> Environment | None:
    """Return an environment that must be entered; the host's own Python needs that not."""
    environment = case.environment
    return environment if environment and environment.kind in _VARIABLES else None


def _check_host(case: Case) -> Iterator[ToolkitError]:
    yield from _check_prefix(_entered(case), "--runtime")
    yield from _check_contents(case)


def _none(case: Case) -> Container:
    """Enter an active environment by its path; else the ranks have the job's environment.

    The job may be submitted from a shell that knows nothing of the environment.
    """
    environment = _entered(case)
    name = case.environment.name if case.environment else "the nodes' Python"
    return Container(
        runtime="none",
        image=environment.prefix if environment else "",
        name=name,
        where=f"without a container, by {name}",
        inherits=True,
        settings={_VARIABLES[environment.kind]: environment.prefix} if environment else {},
    )


NONE = Runtime(
    "none",
    "the nodes' own Python, with the site's modules, or the virtual environment that is active",
    container=_none,
    check=_check_host,
    discover=_discover_host,
    has_user_site=True,
)
