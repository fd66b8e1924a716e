"""The image that is verified, and what its checks know of it and of a site's nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from toolkit.checks import failed
from toolkit.errors import CommandFailedError
from toolkit.images.recipe.block import CHECKS
from toolkit.images.recipe.image_checks import runner as runner_script
from toolkit.images.store.contents import SCRIPT, Contents
from toolkit.images.store.settings import inspect
from toolkit.images.store.store import StoredImage
from toolkit.images.verify.own_checks import (
    MOUNTED,
    OWN_CHECKS,
    Results,
    ask,
    list_lacks,
    usual_checks,
)
from toolkit.model.base import Model
from toolkit.model.run import Outcome


class SiteOffer(Model, frozen=True, kw_only=True):
    """The offer of a site to images.

    Attributes:
        name: of the site.
        mpi: the types that ``srun --mpi`` takes; None if they are not known.
    """

    name: str
    mpi: tuple[str, ...] | None = None


class ScriptRun(NamedTuple):
    """The run of a script of ours on nodes.

    Attributes:
        outcome: of the run; None if it never ran, and then ``refusal`` says why.
        refusal: in one sentence.
        files: the content of the ``*.json`` files that the script left, by name.
    """

    outcome: Outcome | None = None
    refusal: str = ""
    files: dict[str, Any] = {}

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


_OWN_CHECKS = f"[ ! -e {CHECKS}/run ] || {OWN_CHECKS}"  # a foreign image has none
# Runs ``checks/ranks.py`` on nodes, given a launcher and the script's arguments. It needs the run
# API, which is above images, and is therefore passed in.
RunRanks = Callable[[str, Sequence[str]], ScriptRun]


@dataclass
class ImageCase:
    """An image that is verified, and all that its checks need.

    Attributes:
        image: the file, and the manifest that belongs to it.
        local_gpus: the number of GPUs of this machine.
        local_drivers: the version of their driver.
        site: what the site offers; None if there is none, and then ``no_site`` says why.
        nodes, gpus: the requested nodes, and GPUs on each.
        run_ranks: starts ranks on the site's nodes; None if no nodes were requested.
        runs: of ranks on nodes, by backend.
        controllers: how the image's Horovod can coordinate, once its checks have run.
        gpu_code: the GPU architectures that they found code for, as of a manifest.
    """

    image: StoredImage
    local_gpus: int = 0
    local_drivers: tuple[str, ...] = ()
    site: SiteOffer | None = None
    no_site: str = "no site was asked for"
    nodes: int = 0
    gpus: int = 0
    run_ranks: RunRanks | None = None
    runs: dict[str, ScriptRun] = field(default_factory=dict)
    controllers: tuple[str, ...] = ()
    gpu_code: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def labels(self) -> dict[str, str]:
        """The image's labels."""
        return inspect(self.image.path)["labels"]

    @property
    def base(self) -> str:
        """The reference of the base image; for a foreign image what its labels say."""
        manifest = self.image.manifest
        if manifest and manifest.base:
            return manifest.base.reference
        return self.labels.get("org.label-schema.usage.singularity.deffile.from", "")

    @property
    def action(self) -> Literal["exec", "run"]:
        """The action by which jobs start it; they run no runscript of a foreign image."""
        manifest = self.image.manifest
        return "run" if manifest and manifest.runscript else "exec"

    def _ask(self, results: Results, *scripts: str) -> Contents:
        gpus = self.local_gpus > 0
        return ask(self.image.path, results, *scripts, action=self.action, gpus=gpus)

    @cached_property
    def contents(self) -> Contents:
        """The contents of the image; nothing if it does not run."""
        try:
            return self._ask(Results(), SCRIPT)
        except CommandFailedError:
            return Contents()

    @cached_property
    def results(self) -> Results:
        """The results of the checks in the image: its own, and the usual ones that it lacks."""
        results = Results()
        try:
            contents = self.contents = self._ask(results, SCRIPT, _OWN_CHECKS)
            modules = [name for name in contents.modules if name not in results.frameworks]
            lacks = list_lacks(contents, modules, self.local_gpus)
            calls = [
                call
                for call in usual_checks(contents, modules)
                if not lacks[call.name] and not results.find(call.name)
            ]
            if calls:
                self._ask(results, runner_script(calls, contents.modules, MOUNTED))
        except CommandFailedError as error:
            results.checks.append(failed(error.cause, name="checks"))
        self.controllers, self.gpu_code = tuple(results.controllers), results.gpu_code
        return results

    def lacks(self, check: str, gpus: int | None = None) -> str:
        """Return what the image lacks for one of the usual checks; empty if nothing.

        Args:
            check: its name.
            gpus: the number of GPUs for NCCL; None: those of this machine.
        """
        count = self.local_gpus if gpus is None else gpus
        return list_lacks(self.contents, self.contents.modules, count, self.controllers)[check]

    @property
    def mpi(self) -> tuple[str, ...]:
        """The PMI types of the image's MPI."""
        manifest = self.image.manifest
        return manifest.mpi if manifest else tuple(self.results.mpi)

    @property
    def drivers(self) -> tuple[str, ...]:
        """The NVIDIA drivers of this machine and of the nodes that ranks ran on."""
        of_nodes = (
            str(each) for run in self.runs.values() for each in run.results.get("drivers", ())
        )
        return tuple(dict.fromkeys((*self.local_drivers, *of_nodes)))


def local_case(image: StoredImage, **fields: Any) -> ImageCase:
    """Return a case with the GPUs and drivers of this machine; ``fields`` are the other fields."""
    gpus = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    driver = None
    with suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
        driver = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return ImageCase(
        image=image,
        local_gpus=gpus,
        local_drivers=(driver[1],) if driver else (),
        **fields,
    )
