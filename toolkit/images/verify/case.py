"""What a check of an image is given, and what it answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from toolkit import shell
from toolkit.errors import CommandFailedError
from toolkit.images.store.settings import run_in_image
from toolkit.images.store.store import FoundImage
from toolkit.model.base import Model
from toolkit.resources import package_directory

MARK = "toolkit-json: "  # begins the line in which a script of ours tells what it found
_MOUNTED = "/mnt/toolkit"  # where the scripts are seen in the image
_PATIENCE = 300.0  # seconds for one program in the image


class Answer(NamedTuple):
    """How a check came out, and what was found."""

    outcome: Literal["passed", "failed", "unchecked"]
    detail: str


def passed(detail: str) -> Answer:
    return Answer("passed", detail)


def failed(detail: str) -> Answer:
    return Answer("failed", detail)


def unchecked(why: str) -> Answer:
    """It could not be found out, and why."""
    return Answer("unchecked", why)


class Looked(Model, frozen=True, kw_only=True):
    """What is in an image, as ``scripts/look.py`` finds it without importing anything.

    Attributes:
        python: version; empty: there is no Python 3.
        modules: the frameworks and their like that can be found.
        programs: those of MPI, Horovod and torch that are on PATH.
        cuda: version of CUDA; empty: there is none.
        compat: CUDA's compat package is there, by which data-centre GPUs run newer CUDA on older drivers.
        own: the commands of the image's own checks, by name.
    """

    python: str = ""
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    cuda: str = ""
    compat: bool = False
    own: dict[str, str] = {}


class Offer(Model, frozen=True, kw_only=True):
    """What a site was found to have.

    Attributes:
        name: of the site.
        mpi: what ``srun --mpi`` takes; None: nobody asked.
        container: the command that starts containers; None: there is none.
        containers: those that would do.
    """

    name: str
    mpi: tuple[str, ...] | None = None
    container: str | None = None
    containers: tuple[str, ...] = ()


class Met(Model, frozen=True, kw_only=True):
    """What the ranks of one job on several nodes told, or why there was none.

    Attributes:
        outcome: as of a check.
        detail: in words.
        drivers: of NVIDIA, on the nodes.
        speed: GB/s that each rank moved while all summed a long vector; 0: nobody asked for it (RANKS_SPEED_MB).
    """

    outcome: Literal["passed", "failed", "unchecked"]
    detail: str
    drivers: tuple[str, ...] = ()
    speed: float = 0.0


class Asked(Model, frozen=True, kw_only=True):
    """What the user wants to know beyond the image itself: ``--nodes``, ``--gpus``, ``--key``."""

    nodes: int = 0
    gpus: int = 0
    key: str = ""


@dataclass(frozen=True)
class Inside:
    """Runs programs in an image, as little helped by this machine as possible: no home, no variables, no ``/tmp`` of the host."""

    image: str
    gpus: bool = False

    def run(
        self,
        argv: Sequence[str],
        *,
        action: Literal["exec", "run"] = "exec",
        variables: Mapping[str, str] = {},  # never changed
        timeout: float = _PATIENCE,
    ) -> shell.Result:
        """Run a program; a failure is in the result.

        Raises:
            CommandFailedError: it gave no answer within ``timeout`` seconds.
        """
        environment = {
            f"{kind}ENV_{name}": value
            for name, value in variables.items()
            for kind in ("APPTAINER", "SINGULARITY")
        }
        binds = [
            f"{package_directory(where)}:{_MOUNTED}/{name}:ro" for name, where in _SCRIPTS.items()
        ]
        options = [
            *(("--nv",) if self.gpus else ()),
            *(word for bind in binds for word in ("--bind", bind)),
        ]
        return run_in_image(
            self.image,
            argv,
            timeout=timeout,
            action=action,
            options=options,
            variables=environment,
        )

    def told(
        self, script: str, *arguments: str, variables: Mapping[str, str] = {}
    ) -> tuple[dict[str, Any] | None, shell.Result]:
        """What one of our scripts tells of the image; None where it did not come to that."""
        result = self.run(["python3", at(script), *arguments], variables=variables)
        line = next(
            (line for line in reversed(result.stdout.splitlines()) if line.startswith(MARK)), None
        )
        return (json.loads(line.removeprefix(MARK)) if line else None), result


# What the image sees of us: directory there -> directory of the package.
_SCRIPTS = {"verify": "images/verify/scripts", "checks": "images/checks"}


def at(script: str) -> str:
    """Where a script of ours is seen in the image: ``look.py``, or ``checks/user_site.py``."""
    return f"{_MOUNTED}/{script if '/' in script else f'verify/{script}'}"


@dataclass
class Case:
    """An image that is being verified, and all that its checks may ask for.

    Attributes:
        image: the file, and the manifest that belongs to it.
        inside: runs programs in it.
        gpus: how many this machine has.
        site: what the site offers; None where there is none, and then ``no_site`` says why.
        asked: what the user wants beyond the image.
        job: starts ranks on the site's nodes: from launcher and arguments of ``ranks.py`` to what came of it; None: nobody asked for nodes.
        met: what the ranks of jobs told, by what carried their messages.
        controllers: what the image's Horovod can meet by, once a check has found it out; None: nobody knows.
        mpi: what the image's MPI speaks, once a check has found it out.
        frameworks: what could be imported, and its version, once a check has tried.
    """

    image: FoundImage
    inside: Inside
    gpus: int = 0
    site: Offer | None = None
    no_site: str = "no site was asked for"
    asked: Asked = field(default_factory=Asked)
    job: Callable[[str, Sequence[str], str], Met] | None = None
    met: dict[str, Met] = field(default_factory=dict)
    controllers: tuple[str, ...] | None = None
    mpi: tuple[str, ...] = ()
    frameworks: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return Path(self.image.path)

    @cached_property
    def labels(self) -> dict[str, str]:
        """What the image says of itself."""
        from toolkit.images.store.labels import labels

        return labels(self.image.path)

    @cached_property
    def looked(self) -> Looked:
        """What is in the image."""
        try:
            told, _ = self.inside.told("look.py")
        except CommandFailedError:
            told = None
        return msgspec.convert(told, Looked) if told is not None else Looked()

    @cached_property
    def promised(self) -> dict[str, str]:
        """The modules that its manifest says it has, and their versions."""
        return dict(self.image.manifest.frameworks) if self.image.manifest else {}

    @property
    def no_python(self) -> str | None:
        """Why nothing can be found out that needs the image's Python; None: it can."""
        return None if self.looked.python else "the image has no Python 3 that runs"

    def has(self, module: str) -> bool:
        return module in self.looked.modules

    @property
    def base(self) -> str:
        """The reference of the image that it began as; of a foreign one what its labels say."""
        manifest = self.image.manifest
        return (
            manifest.base.reference
            if manifest and manifest.base
            else self.labels.get("org.label-schema.usage.singularity.deffile.from", "")
        )

    @property
    def drivers(self) -> tuple[str, ...]:
        """The NVIDIA drivers of the nodes that ranks ran on, and of this machine."""
        return tuple(dict.fromkeys(driver for met in self.met.values() for driver in met.drivers))

    def meet(self, launcher: str, arguments: Sequence[str], controller: str) -> Answer:
        """Have ranks on the site's nodes sum, and say how that came out."""
        if self.job is None:
            return unchecked("no nodes were asked for: --nodes N")
        if controller not in self.met:
            self.met[controller] = self.job(launcher, arguments, controller)
        met = self.met[controller]
        return Answer(met.outcome, met.detail)
