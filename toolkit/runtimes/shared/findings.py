"""Errors and warnings of several runtimes, and the home directory of an image."""

from __future__ import annotations

import re
from typing import TypedDict

from toolkit.errors import ToolkitError, UsageError
from toolkit.model.case import Case

# Modules that are looked for in a Python of the host, by the names that scripts import.
FRAMEWORKS = ("torch", "horovod", "tensorflow", "ray", "mpi4py", "lightning", "submitit")


class Home(TypedDict):
    """The part of a ``Container`` that says where its home is."""

    home: str | None
    home_name: str


def home(name: str, scratch: str | None) -> Home:
    """Return a directory for each image, on the site's scratch if it has one.

    The directory's name has no characters that a container's options interpret.
    """
    safe = re.sub(r"[^\w.+-]", "-", name, flags=re.ASCII)
    return Home(
        home=f"{scratch.rstrip('/')}/toolkit/home/{safe}" if scratch else None, home_name=safe
    )


def path_findings(prefix: str, option: str) -> list[ToolkitError]:
    """Return an error if an environment lies in a directory that PATH cannot name."""
    if ":" not in prefix:
        return []
    return [
        UsageError(
            f"a directory with ':' in its name cannot be on PATH: {prefix}",
            place=option,
            next_step="put the environment elsewhere",
        )
    ]


def missing_frameworks(case: Case, name: str) -> tuple[str, ...]:
    """Warn of frameworks that the script imports and that ``name`` does not have."""
    frameworks = case.manifest.frameworks if case.manifest else None
    if frameworks is None or not case.source.python:
        return ()
    missing = [
        framework
        for framework in FRAMEWORKS
        if case.source.imports_any(framework) and framework not in frameworks
    ]
    if not missing:
        return ()
    return (f"the script imports {', '.join(missing)}, which {name} does not have",)


def dataset_paths(case: Case) -> tuple[str, ...]:
    """Warn of data that a container shows as ``/data/NAME``: without one, it has another path."""
    datasets = case.site.datasets
    return tuple(
        f"/data/{name} exists only in containers; without one, the data is in {datasets[name]}"
        for name in case.job.datasets
        if name in datasets
    )


def unreachable_python(name: str, site: str) -> UsageError:
    """Return the error for a Python of a cluster that this machine does not reach."""
    return UsageError(
        f"the runtime {name} uses a Python of the cluster, which this machine does not reach",
        place="--runtime",
        next_step=f"plan it on a login node of {site}, or --runtime apptainer",
    )
