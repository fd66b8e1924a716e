"""Read the layers of settings of a directory: files of settings, and this shell's variables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from toolkit.config import settings_files
from toolkit.errors import ToolkitError, UsageError
from toolkit.files import read_toml
from toolkit.model.base import BadDataError
from toolkit.model.job import Job, Project
from toolkit.planning.settings import DEFAULTS, Layer, Settings, from_environment, layer, merge
from toolkit.runtimes import DEFAULT, RUNTIMES


def project_layers(cwd: Path) -> list[Layer]:
    """Return the settings of the machine, of the user, and of the project around ``cwd``."""
    return [layer(file.origin, read_toml(file.path, Project)) for file in settings_files(cwd)]


def merge_layers(layers: Sequence[Layer]) -> Settings:
    """Merge layers.

    Raises:
        UsageError: a value is not valid.
    """
    try:
        return merge(layers)
    except BadDataError as error:
        raise UsageError(f"a setting is not valid: {error}", place=error.key) from None


def chosen_site(cwd: Path) -> str:
    """Return the site that the settings of a directory choose; ``auto`` if they choose none."""
    return _chosen(cwd).site or "auto"


def chosen_runs(cwd: Path) -> Path:
    """Return the directory of the runs that are started in a directory."""
    return Path(_chosen(cwd).runs or "runs")


def _chosen(cwd: Path) -> Job:
    layers = [layer("default", DEFAULTS), *project_layers(cwd), from_environment(os.environ)]
    return merge_layers(layers).job


def with_variables(settings: Settings) -> tuple[Settings, list[ToolkitError]]:
    """Return the settings with the values of secret variables and of those that are passed on.

    The findings are of variables that are not set. A repeated run has the values already. For a
    runtime that has named environments, the first name that is not a variable of this shell is that
    of the environment.
    """
    job = settings.job
    names, environment = _split_names(job, os.environ)
    values = {name: os.environ.get(name, job.env.get(name)) for name in (*names, *job.secret)}
    unset = [
        _unset(name, is_secret=name in job.secret)
        for name, value in values.items()
        if value is None
    ]
    env = {**job.env, **{name: value for name, value in values.items() if value is not None}}
    job = replace(job, env=env, pass_env=names, conda_env=environment)
    return Settings(job, settings.origins), unset


def _split_names(job: Job, environment: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    """Return the variables to pass on, and the environment of conda if ``--env`` names one."""
    runtime = RUNTIMES.get(job.runtime or DEFAULT)
    if runtime is None or runtime.environments is None:
        return job.pass_env, job.conda_env
    others = [name for name in job.pass_env if name not in environment and name not in job.env]
    chosen = others[0] if others else job.conda_env
    return tuple(name for name in job.pass_env if name != chosen), chosen


def _unset(name: str, *, is_secret: bool) -> ToolkitError:
    cause = f"the variable {name} is not set in this shell"
    if is_secret:
        return UsageError(cause, place="--secret", next_step=f"read -rs {name}; export {name}")
    return UsageError(
        cause,
        place="--env",
        next_step=f"--env {name}=VALUE; an environment of conda: --runtime conda --env {name}",
    )
