"""none: no container. The ranks have the job's environment.

That is the site's modules, and the Python that was on PATH when the job was planned.
"""

from __future__ import annotations

from toolkit.errors import ToolkitError
from toolkit.model.case import Case
from toolkit.model.environment import Environment
from toolkit.model.plan import Container
from toolkit.runtimes.shared import findings
from toolkit.runtimes.shared.base import (
    PREFIX,
    Runtime,
)

# The variable that an active environment sets.
_VARIABLES = {"venv": "VIRTUAL_ENV", "conda": "CONDA_PREFIX"}


class NoContainer(Runtime):
    """The nodes' own Python, or the virtual environment that is active."""

    summary = (
        "the nodes' own Python, with the site's modules, or the virtual environment that is active"
    )
    has_user_site = True

    def discover(self, case: Case) -> Case:
        """Find the Python on PATH, and what it can import."""
        from toolkit.runtimes.discover.environments import host

        if case.cluster is None:
            raise findings.unreachable_python(self.name, case.site.name)
        return case._replace(environment=host(case.site, case.job.modules))

    def check(self, case: Case) -> list[ToolkitError]:
        """Require a path that PATH can name, for an environment that is entered by it."""
        environment = _entered(case.environment)
        return [
            *super().check(case),
            *(findings.path_findings(environment.prefix, "--runtime") if environment else ()),
        ]

    def container(self, case: Case) -> Container:
        """Enter an active environment by its path.

        The job may be submitted from a shell that knows nothing of the environment.
        """
        environment = _entered(case.environment)
        name = case.environment.name if case.environment else "the nodes' Python"
        return Container(
            runtime=self.name,
            image=environment.prefix if environment else "",
            name=name,
            where=f"without a container, by {name}",
            prefix=PREFIX,
            inherits=True,
            settings={_VARIABLES[environment.kind]: environment.prefix} if environment else {},
        )

    def warnings(self, case: Case) -> tuple[str, ...]:
        """Warn of missing frameworks, and of data that has another path than in a container."""
        name = case.environment.name if case.environment else ""
        return (
            *(findings.missing_frameworks(case, name) if name else ()),
            *findings.dataset_paths(case),
        )


def _entered(environment: Environment | None) -> Environment | None:
    """Return an environment that must be entered; the host's own Python needs that not."""
    return environment if environment and environment.kind in _VARIABLES else None


RUNTIME = NoContainer()
