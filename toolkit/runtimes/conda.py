"""conda: an environment that the user has made, beside containers. It is entered without conda, by what `conda activate` would do."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.errors import ToolkitError, UsageError
from toolkit.model.plan import Container
from toolkit.runtimes import Asked, common
from toolkit.runtimes.none import data, no_torchrun


def check(asked: Asked) -> Sequence[ToolkitError]:
    """The environment must be named; that it is there was looked up."""
    findings = [*common.no_image(asked, "conda"), *common.unsigned(asked, "conda")]
    if asked.job.conda_env is None:
        findings.append(
            UsageError(
                "the runtime conda needs the name of an environment",
                place="--env",
                next_step="--env NAME",
            )
        )
    findings += common.on_path(asked.environment.prefix, "--env") if asked.environment else []
    return [
        *findings,
        *(no_torchrun(asked.environment) if asked.job.launcher == "torchrun" else []),
    ]


def container(asked: Asked) -> Container:
    """What `conda activate` sets, and what the user has given the environment."""
    found = asked.environment
    prefix, name = (found.prefix, found.name) if found else ("", asked.job.conda_env or "")
    return Container(
        runtime="conda",
        image=prefix,
        name=name,
        where=f"in the conda environment {name}",
        prefix=common.PREFIX,
        inherits=True,
        settings={
            "CONDA_PREFIX": prefix,
            "CONDA_DEFAULT_ENV": name,
            **(found.variables if found else {}),
        },
    )


def warnings(asked: Asked) -> tuple[str, ...]:
    """Frameworks that are not in the environment, and data that has another path than in a container."""
    return (*common.unheld(asked, f"the environment {asked.job.conda_env}"), *data(asked))
