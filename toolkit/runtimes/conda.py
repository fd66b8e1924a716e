"""conda: an environment that the user has made.

It is entered without conda, by what `conda activate` would do.
"""

from __future__ import annotations

from toolkit.errors import ToolkitError, UsageError
from toolkit.model.case import Case
from toolkit.model.plan import Container
from toolkit.runtimes.shared import findings
from toolkit.runtimes.shared.base import (
    PREFIX,
    Runtime,
)


class Conda(Runtime):
    """Environments of conda."""

    summary = "a conda environment (--env NAME), with the site's modules"
    names_environment = True

    def discover(self, case: Case) -> Case:
        """Find the environment, and what its Python can import."""
        from toolkit.runtimes.discover.environments import conda

        job, site = case.job, case.site
        if case.cluster is None:
            raise findings.unreachable_python(self.name, site.name)
        if not job.conda_env:
            return case
        return case._replace(environment=conda(job.conda_env, site, job.modules))

    def environment_names(self) -> list[str]:
        """Return the names of all environments of conda."""
        from toolkit.runtimes.discover.environments import names

        return names()

    def check(self, case: Case) -> list[ToolkitError]:
        """Require the name of an environment; ``discover`` has found that it exists."""
        errors = super().check(case)
        if case.job.conda_env is None:
            errors.append(
                UsageError(
                    "the runtime conda needs the name of an environment",
                    place="--env",
                    next_step="--env NAME",
                )
            )
        if case.environment:
            errors += findings.path_findings(case.environment.prefix, "--env")
        return errors

    def container(self, case: Case) -> Container:
        """Return what `conda activate` sets, and what the user has given the environment."""
        environment = case.environment
        prefix = environment.prefix if environment else ""
        name = environment.name if environment else case.job.conda_env or ""
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

    def warnings(self, case: Case) -> tuple[str, ...]:
        """Warn of missing frameworks, and of data that has another path than in a container."""
        name = f"the environment {case.job.conda_env}"
        return (
            *findings.missing_frameworks(case, name),
            *findings.dataset_paths(case),
        )


RUNTIME = Conda()
