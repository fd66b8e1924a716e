"""The image that is verified, and what its checks know of it and of a site's nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from toolkit.images.store.settings import inspect
from toolkit.images.store.store import StoredImage
from toolkit.images.verify.own_checks import Results, run_checks
from toolkit.images.verify.runner import ImageContents, ImageRunner
from toolkit.model.base import Model
from toolkit.model.run import Outcome


class SiteOffer(Model, frozen=True, kw_only=True):
    """The offer of a site to images.

    Attributes:
        name: of the site.
        mpi: the types that ``srun --mpi`` takes; None if they are not known.
        container: the command that starts containers; None if there is none.
        containers: the commands that would do.
    """

    name: str
    mpi: tuple[str, ...] | None = None
    container: str | None = None
    containers: tuple[str, ...] = ()


class RankSum(Model, frozen=True, kw_only=True):
    """The sum of the vectors of all ranks of one job on several nodes.

    Attributes:
        outcome: as of a check.
        detail: what the ranks reported, or why there were none.
        drivers: versions of the nodes' NVIDIA drivers.
        speed: GB/s that each rank moved while all summed a long vector; 0 if that was not measured
            (RANKS_SPEED_MB).
    """

    outcome: Literal["passed", "failed", "unchecked"]
    detail: str
    drivers: tuple[str, ...] = ()
    speed: float = 0.0


class VerifyOptions(Model, frozen=True, kw_only=True):
    """Options beyond the image itself: ``--nodes``, ``--gpus``, ``--key``."""

    nodes: int = 0
    gpus: int = 0
    key: str = ""


class ScriptRun(NamedTuple):
    """The run of a script of ours on nodes.

    Attributes:
        outcome: of the run; None if it never ran, and then ``refusal`` says why.
        refusal: in one sentence.
        files: the content of the ``*.json`` files that the script left, by name.
        fix: what `toolkit explain` advises after a failure, or the refusal; empty if not known.
    """

    outcome: Outcome | None = None
    refusal: str = ""
    files: dict[str, Any] = {}
    fix: str = ""

    @property
    def results(self) -> dict[str, Any]:
        """The report of the first rank; empty if there is none."""
        return dict(self.outcome.results) if self.outcome else {}

    @property
    def complaint(self) -> str:
        """The reason why there are no results, in one sentence."""
        if self.outcome is None:
            return self.refusal
        return self.outcome.message or f"the job ended with {self.outcome.exit_code}"


# Runs ``checks/ranks.py`` on nodes, given a launcher and the script's arguments. It needs the run
# API, which is above images, and is therefore passed in.
RunRanks = Callable[[str, Sequence[str]], ScriptRun]


def local_drivers() -> tuple[int, tuple[str, ...]]:
    """Return the number of GPUs of this machine, and the version of its NVIDIA driver."""
    gpus = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return gpus, ()
    match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return gpus, (match[1],) if match else ()


@dataclass
class ImageCase:
    """An image that is verified, and all that its checks need.

    Attributes:
        image: the file, and the manifest that belongs to it.
        runner: runs programs in it.
        gpus: the number of GPUs of this machine.
        site: what the site offers; None if there is none, and then ``no_site`` says why.
        options: what the user wants beyond the image.
        run_ranks: starts ranks on the site's nodes; None if no nodes were requested.
        local_drivers: of this machine.
        sums: what ranks on nodes reported, by backend.
        manifest_mpi: the PMI types of the image's MPI, if the checks in the image need not run to
            know them.
        controllers: how the image's Horovod can coordinate, once a check has found it out.
    """

    image: StoredImage
    runner: ImageRunner
    gpus: int = 0
    site: SiteOffer | None = None
    no_site: str = "no site was asked for"
    options: VerifyOptions = field(default_factory=VerifyOptions)
    run_ranks: RunRanks | None = None
    local_drivers: tuple[str, ...] = ()
    sums: dict[str, RankSum] = field(default_factory=dict)
    manifest_mpi: tuple[str, ...] | None = None
    controllers: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The path of the image."""
        return Path(self.image.path)

    @cached_property
    def labels(self) -> dict[str, str]:
        """The image's labels."""
        return inspect(self.image.path)["labels"]

    @cached_property
    def contents(self) -> ImageContents:
        """The contents of the image."""
        # Checks of its own are tried where no Python tells whether there are any.
        empty = ImageContents(has_checks=self.image.manifest is not None)
        return self.runner.contents() or empty

    @cached_property
    def results(self) -> Results:
        """The results of the checks in the image: its own, and the usual ones that it lacks."""
        contents, manifest = self.contents, self.image.manifest
        return run_checks(self.runner, contents, self.expected, self.gpus, own=manifest is not None)

    @property
    def mpi(self) -> tuple[str, ...]:
        """The PMI types of the image's MPI."""
        return tuple(self.results.mpi) if self.manifest_mpi is None else self.manifest_mpi

    @cached_property
    def expected(self) -> dict[str, str]:
        """The modules that the manifest lists, and their versions."""
        return dict(self.image.manifest.frameworks) if self.image.manifest else {}

    @property
    def no_python(self) -> str:
        """The reason why the image's Python cannot be used; empty if it can."""
        return "" if self.contents.python else "the image has no Python 3 that runs"

    def has(self, module: str) -> bool:
        """Return whether a module is in the image."""
        return module in self.contents.modules

    @property
    def base(self) -> str:
        """The reference of the base image; for a foreign image what its labels say."""
        manifest = self.image.manifest
        return (
            manifest.base.reference
            if manifest and manifest.base
            else self.labels.get("org.label-schema.usage.singularity.deffile.from", "")
        )

    @property
    def drivers(self) -> tuple[str, ...]:
        """The NVIDIA drivers of this machine and of the nodes that ranks ran on."""
        of_nodes = (driver for each in self.sums.values() for driver in each.drivers)
        return tuple(dict.fromkeys((*self.local_drivers, *of_nodes)))


def local_case(image: StoredImage, **fields: Any) -> ImageCase:
    """Return a case with the GPUs and drivers of this machine; ``fields`` are the other fields."""
    gpus, drivers = local_drivers()
    runner = ImageRunner(image.path, gpus=gpus > 0)
    return ImageCase(image=image, runner=runner, gpus=gpus, local_drivers=drivers, **fields)
