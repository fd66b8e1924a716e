"""The base class of runtimes, and what a runtime decides from.

A runtime is pure, but for ``discover``: it refuses (``check``), and decides how a command enters
(``container``), which its template writes out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal, get_args

from toolkit.errors import SignatureError, ToolkitError, UsageError
from toolkit.launchers.base import Capability
from toolkit.model.case import Case
from toolkit.model.plan import Container

if TYPE_CHECKING:
    pass

ALL_CAPABILITIES: frozenset[Capability] = frozenset(get_args(Capability))
# The prefix for variables of the ranks, where a runtime has none of its own.
PREFIX = "TOOLKITENV_"


class Runtime(ABC):
    """The base class of runtimes.

    Attributes:
        summary: what the runtime is for, for ``--help`` and the documentation.
        image: the kind of image that it starts; None if it starts none.
        offers: what it has of all that a launcher may need.
        interface: the network interface that ranks use; None for that of the site.
        names_environment: ``--env NAME`` may name an environment of this runtime.
        has_user_site: ranks see the user's own Python packages (``~/.local``).
    """

    summary: str = ""
    image: Literal["sif", "docker", "enroot"] | None = None
    offers: frozenset[Capability] = ALL_CAPABILITIES
    interface: str | None = None
    names_environment: bool = False
    has_user_site: bool = False

    @property
    def name(self) -> str:
        """The runtime's name, which is that of its module."""
        return type(self).__module__.rpartition(".")[2].replace("_", "-")

    @property
    def noun(self) -> str:
        """``image`` or ``environment``, as messages call what ranks run in."""
        return "image" if self.image else "environment"

    def discover(self, case: Case) -> Case:
        """Return the case with what the runtime needs to know of this machine or of the cluster.

        Raises:
            ToolkitError: it is not there.
        """
        return case

    def environment_names(self) -> list[str]:
        """Return the environments of this machine, for completion of ``--env``."""
        return []

    def check(self, case: Case) -> list[ToolkitError]:
        """Return why the job cannot run in it; empty if it can."""
        return [
            *([] if self.image else self._image_findings(case)),
            *([] if self.names_environment else self._environment_findings(case)),
            *([] if self.image == "sif" else self._signature_findings(case)),
        ]

    @abstractmethod
    def container(self, case: Case) -> Container:
        """Return the decisions that the runtime's template writes out."""

    def warnings(self, case: Case) -> tuple[str, ...]:
        """Return what will probably go wrong."""
        del case
        return ()

    def _image_findings(self, case: Case) -> list[ToolkitError]:
        """Return errors for an image, or a directory to bind, that the user asks for.

        An image that the job's folder or the project names is passed over: it is the runtime that
        was chosen in its place.
        """
        findings: list[ToolkitError] = []
        origin = case.origins.get("image", "")
        is_asked_for = origin == "--image" or origin == case.origins.get("runtime")
        if case.job.image and is_asked_for:
            findings.append(
                UsageError(
                    f"the runtime {self.name} starts no image",
                    place="--image",
                    next_step="leave --image out, or --runtime apptainer",
                )
            )
        if case.job.bind and case.origins.get("bind") == "--bind":
            findings.append(
                UsageError(
                    f"the runtime {self.name} has no container to show a directory in",
                    place="--bind",
                    next_step="use the directory as it is",
                )
            )
        return findings

    def _environment_findings(self, case: Case) -> list[ToolkitError]:
        """Return an error if an environment of conda is named."""
        name = case.job.conda_env
        if name is None:
            return []
        return [
            UsageError(
                f"the runtime {self.name} cannot use an environment of conda ({name})",
                place="--env",
                next_step=f"--runtime conda --env {name}",
            )
        ]

    def _signature_findings(self, case: Case) -> list[ToolkitError]:
        """Return an error if only signed images may run: a signature is part of a SIF."""
        if not case.job.require_signed:
            return []
        return [
            SignatureError(
                f"only signed images may run, and images of {self.name} have no signatures",
                place="--runtime",
                next_step="--runtime apptainer, with a signed image",
            )
        ]
