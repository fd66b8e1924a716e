"""The base class of runtimes, and what a runtime decides from.

A runtime is pure, but for ``discover``: it refuses (``check``), and decides how a command enters
(``container``), which its template writes out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from toolkit.errors import SignatureError, ToolkitError, UsageError
from toolkit.launchers.shared.base import Capability
from toolkit.model.base import Model
from toolkit.model.environment import Engine, Environment
from toolkit.model.image import Manifest
from toolkit.model.job import Job
from toolkit.model.plan import Bind, Container
from toolkit.model.site import Facts, Site
from toolkit.model.source import Source

if TYPE_CHECKING:
    from toolkit.slurm.client import Client

ALL_CAPABILITIES: frozenset[Capability] = frozenset(get_args(Capability))
# The prefix for variables of the ranks, where a runtime has none of its own.
PREFIX = "TOOLKITENV_"


class ImageFile(NamedTuple):
    """A SIF that the job's image names.

    Attributes:
        path: absolute.
        manifest: what is in it; None if it is not known.
        exists: the file is on this machine; else it is on the cluster, or will be fetched.
    """

    path: str
    manifest: Manifest | None = None
    exists: bool = True


class Discovery(NamedTuple):
    """The input of a runtime's discovery.

    Attributes:
        job: the merged settings.
        site: the cluster, whose modules are loaded.
        client: the door to Slurm; None if the cluster cannot be reached from this machine.
        find_image: finds the SIF that the job names.
        is_recipe: the job's image is the name of one of our recipes.
    """

    job: Job
    site: Site
    client: Client | None
    find_image: Callable[[], ImageFile]
    is_recipe: bool = False


class RuntimeFacts(NamedTuple):
    """The result of a runtime's discovery.

    Attributes:
        image: path or reference of the image; empty if there is none.
        manifest: what is in the image or the environment; None if it is not known.
        environment: the Python that ranks run in, for a runtime without an image.
        engine: the container engine.
        shared: a path that the nodes must see, after the option that chose it.
    """

    image: str = ""
    manifest: Manifest | None = None
    environment: Environment | None = None
    engine: Engine | None = None
    shared: tuple[str, str] | None = None


class RuntimeRequest(Model, frozen=True, kw_only=True):
    """The input of a runtime's decisions.

    Attributes:
        job: the merged settings.
        origins: where each of them comes from.
        site: what is written of the cluster.
        facts: what the cluster answered.
        image: absolute path or reference; empty if none was found, or none is needed.
        manifest: what is in it; None if it is not known.
        is_recipe: it is built from one of our recipes.
        environment: what ``discover`` returned, as ``engine``.
        engine: see ``environment``.
        binds: the directories that ranks need, and those that the user names.
        source: what was read of the script.
    """

    job: Job
    origins: dict[str, str]
    site: Site
    facts: Facts
    image: str = ""
    manifest: Manifest | None = None
    is_recipe: bool = False
    environment: Environment | None = None
    engine: Engine | None = None
    binds: tuple[Bind, ...] = ()
    source: Source = Source()


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

    def discover(self, discovery: Discovery) -> RuntimeFacts:
        """Return what the runtime needs to know of this machine or of the cluster.

        Raises:
            ToolkitError: it is not there.
        """
        if not self.image:
            return RuntimeFacts()
        if not discovery.job.image:
            raise UsageError(
                "no image is named",
                place="--image",
                next_step=f"--runtime {self.name} --image REGISTRY/NAME:TAG",
            )
        return RuntimeFacts(image=discovery.job.image)

    def environment_names(self) -> list[str]:
        """Return the environments of this machine, for completion of ``--env``."""
        return []

    def check(self, request: RuntimeRequest) -> list[ToolkitError]:
        """Return why the job cannot run in it; empty if it can."""
        return [
            *([] if self.image else self._image_findings(request)),
            *([] if self.names_environment else self._environment_findings(request)),
            *([] if self.image == "sif" else self._signature_findings(request)),
        ]

    @abstractmethod
    def container(self, request: RuntimeRequest) -> Container:
        """Return the decisions that the runtime's template writes out."""

    def warnings(self, request: RuntimeRequest) -> tuple[str, ...]:
        """Return what will probably go wrong."""
        del request
        return ()

    def _image_findings(self, request: RuntimeRequest) -> list[ToolkitError]:
        """Return errors for an image, or a directory to bind, that the user asks for.

        An image that the job's folder or the project names is passed over: it is the runtime that
        was chosen in its place.
        """
        findings: list[ToolkitError] = []
        origin = request.origins.get("image", "")
        is_asked_for = origin == "--image" or origin == request.origins.get("runtime")
        if request.job.image and is_asked_for:
            findings.append(
                UsageError(
                    f"the runtime {self.name} starts no image",
                    place="--image",
                    next_step="leave --image out, or --runtime apptainer",
                )
            )
        if request.job.bind and request.origins.get("bind") == "--bind":
            findings.append(
                UsageError(
                    f"the runtime {self.name} has no container to show a directory in",
                    place="--bind",
                    next_step="use the directory as it is",
                )
            )
        return findings

    def _environment_findings(self, request: RuntimeRequest) -> list[ToolkitError]:
        """Return an error if an environment of conda is named."""
        name = request.job.conda_env
        if name is None:
            return []
        return [
            UsageError(
                f"the runtime {self.name} cannot use an environment of conda ({name})",
                place="--env",
                next_step=f"--runtime conda --env {name}",
            )
        ]

    def _signature_findings(self, request: RuntimeRequest) -> list[ToolkitError]:
        """Return an error if only signed images may run: a signature is part of a SIF."""
        if not request.job.require_signed:
            return []
        return [
            SignatureError(
                f"only signed images may run, and images of {self.name} have no signatures",
                place="--runtime",
                next_step="--runtime apptainer, with a signed image",
            )
        ]
