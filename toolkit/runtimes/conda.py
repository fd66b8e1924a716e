"""conda: an environment that the user has made.

It is entered without conda, by what `conda activate` would do.
"""

from __future__ import annotations

from toolkit.errors import ToolkitError, UsageError
from toolkit.model.plan import Container
from toolkit.runtimes.shared import findings
from toolkit.runtimes.shared.base import (
    PREFIX,
    Discovery,
    Runtime,
    RuntimeFacts,
    RuntimeRequest,
)


class Conda(Runtime):
    """Environments of conda."""

    summary = "a conda environment (--env NAME), with the site's modules"
    names_environment = True

    def discover(self, discovery: Discovery) -> RuntimeFacts:
        """Find the environment, and what its Python can import."""
        from toolkit.runtimes.discover.environments import conda

        job, site = discovery.job, discovery.site
        if discovery.client is None:
            raise findings.unreachable_python(self.name, site.name)
        if not job.conda_env:
            return RuntimeFacts()
        environment, manifest = conda(job.conda_env, site, job.modules)
        return RuntimeFacts(
            manifest=manifest, environment=environment, shared=("--env", environment.prefix)
        )

    def environment_names(self) -> list[str]:
        """Return the names of all environments of conda."""
        from toolkit.runtimes.discover.environments import names

        return names()

    def check(self, request: RuntimeRequest) -> list[ToolkitError]:
        """Require the name of an environment; ``discover`` has found that it exists."""
        errors = super().check(request)
        if request.job.conda_env is None:
            errors.append(
                UsageError(
                    "the runtime conda needs the name of an environment",
                    place="--env",
                    next_step="--env NAME",
                )
            )
        if request.environment:
            errors += findings.path_findings(request.environment.prefix, "--env")
        return errors

    def container(self, request: RuntimeRequest) -> Container:
        """Return what `conda activate` sets, and what the user has given the environment."""
        environment = request.environment
        prefix = environment.prefix if environment else ""
        name = environment.name if environment else request.job.conda_env or ""
        return Container(
            runtime=self.name,
            image=prefix,
            name=name,
            where=f"in the conda environment {name}",
            prefix=PREFIX,
            inherits=True,
            settings={
                "CONDA_PREFIX": prefix,
                "CONDA_DEFAULT_ENV": name,
                **(environment.variables if environment else {}),
            },
        )

    def warnings(self, request: RuntimeRequest) -> tuple[str, ...]:
        """Warn of missing frameworks, and of data that has another path than in a container."""
        name = f"the environment {request.job.conda_env}"
        return (
            *findings.missing_frameworks(request, name),
            *findings.dataset_paths(request),
        )


RUNTIME = Conda()
