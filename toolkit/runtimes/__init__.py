"""What a rank runs inside: one module per runtime, one template of the same name in ``scripts/templates/runtimes``, one line here.

A runtime is pure: it refuses (``check``), and says how a command enters (``container``), which the
script does. What it needs to know of this machine was looked up before, in
``toolkit.runtimes.discover.discover``.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from toolkit.errors import LauncherMismatchError, ToolkitError, UnknownRuntimeError
from toolkit.model.base import Model
from toolkit.model.environment import Engine, Environment
from toolkit.model.image import Manifest
from toolkit.model.job import Job
from toolkit.model.plan import Bind, Container
from toolkit.model.site import Facts, Site
from toolkit.model.source import Source


class Entry(NamedTuple):
    """A line of the registry.

    Attributes:
        summary: what the runtime is for.
        image: what kind of image it starts; None: it starts none.
        launchers: those that can start ranks in it; None: all.
        interface: the network interface that ranks use, where it is not the site's.
        noun: what messages call the thing that ranks run in.
    """

    summary: str
    image: Literal["sif", "docker", "enroot"] | None = None
    launchers: tuple[str, ...] | None = None
    interface: str | None = None
    noun: str = "image"


# The module of a runtime is toolkit.runtimes.<name>.
RUNTIMES: dict[str, Entry] = {
    "apptainer": Entry("Apptainer or Singularity, with a SIF", image="sif"),
    "docker": Entry(
        "Docker or podman, on one node, with an image of that engine",
        image="docker",
        launchers=("torchrun", "srun", "spawn", "none", "horovod-gloo"),
        interface="lo",
    ),
    "pyxis": Entry(
        "Slurm's own plugin Pyxis, with an image of a registry or a squashfs file of enroot",
        image="enroot",
        launchers=(
            "torchrun",
            "srun",
            "spawn",
            "none",
            "horovod",
            "mpi",
            "horovod-gloo",
            "tensorflow",
            "shell",
        ),
    ),
    "conda": Entry("a conda environment (--env NAME), with the site's modules", noun="environment"),
    "none": Entry(
        "the nodes' own Python, with the site's modules, or the virtual environment that is active",
        noun="environment",
    ),
}


class Asked(Model, frozen=True, kw_only=True):
    """What a runtime decides from.

    Attributes:
        image: absolute path or reference; empty where none was found, or none is needed.
        manifest: what is in it; None: nobody knows.
        is_recipe: it is built from one of our recipes.
        environment, engine: what was found for the runtimes that need one.
        binds: the directories that ranks need, and what the user names.
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


class Runtime(Protocol):
    """A module of this package."""

    def check(self, asked: Asked) -> Sequence[ToolkitError]:
        """Why the job cannot run in it; empty if it can."""

    def container(self, asked: Asked) -> Container:
        """The decisions that its template writes out."""

    def warnings(self, asked: Asked) -> tuple[str, ...]:
        """What will probably go wrong."""


def get(name: str) -> Runtime:
    """The module of a runtime.

    Raises:
        UnknownRuntimeError: with the nearest name.
    """
    if name not in RUNTIMES:
        raise UnknownRuntimeError(
            f"there is no runtime {name!r}",
            place="--runtime",
            choices=RUNTIMES,
            value=name,
            next_step=f"one of {', '.join(RUNTIMES)}",
        )
    module: Runtime = importlib.import_module(f"toolkit.runtimes.{name}")
    return module


def able(runtime: str, launcher: str) -> str:
    """The launcher that does the same in a runtime: ``horovod-gloo`` for ``horovod`` where no rank would find Slurm's PMI; else itself."""
    entry = RUNTIMES.get(runtime)
    other = f"{launcher}-gloo"
    return (
        other
        if entry
        and entry.launchers
        and launcher not in entry.launchers
        and other in entry.launchers
        else launcher
    )


def launcher_findings(runtime: str, launcher: str) -> list[ToolkitError]:
    """A finding where a launcher cannot start ranks in a runtime."""
    can = RUNTIMES[runtime].launchers
    if can is None or launcher in can:
        return []
    others = ", ".join(name for name, entry in RUNTIMES.items() if entry.launchers is None)
    return [
        LauncherMismatchError(
            f"the launcher {launcher} cannot start ranks by {runtime}",
            place="--launcher",
            next_step=f"--launcher {' or '.join(can)}; or --runtime {' or '.join(others.split(', '))}",
        )
    ]


def noun(runtime: str) -> str:
    """Return what messages call the thing that ranks run in: ``image`` or ``environment``."""
    entry = RUNTIMES.get(runtime)
    return entry.noun if entry else "image"
