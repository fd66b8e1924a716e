"""Find the image of a job, and ask its runtime for what the plan needs to know."""

from __future__ import annotations

import os
from pathlib import Path

from toolkit.errors import ToolkitError, UsageError
from toolkit.images.store import store
from toolkit.model.job import Job
from toolkit.planning import offline
from toolkit.planning.cluster import Cluster
from toolkit.runtimes import DEFAULT, RUNTIMES
from toolkit.runtimes.shared.base import Discovery, ImageFile, RuntimeFacts
from toolkit.slurm.client import Client


class ImageFinder:
    """Finder of the SIF that a job names.

    Attributes:
        image: the image, if it is on this machine.
        is_to_fetch: the image is in a registry and has not been fetched.
    """

    def __init__(self, job: Job, cluster: Cluster) -> None:
        self._name = job.image or ""
        self._cluster = cluster
        self.image: store.StoredImage | None = None
        self.is_to_fetch = False

    def find(self) -> ImageFile:
        """Return the image where the ranks will have it.

        Raises:
            UsageError: no image is named.
            ToolkitError: there is no such image.
        """
        if not self._name:
            raise UsageError(
                "no image is named",
                place="--image",
                next_step="--image NAME, such as pytorch_cpu; toolkit image list shows the names",
            )
        if "://" in self._name:
            from toolkit.images.registry import foreign

            if foreign.is_reference(self._name):
                self.image = foreign.find_stored(self._name)
                if self.image is None:
                    self.is_to_fetch = True
                    return ImageFile(str(foreign.locate(self._name)), exists=False)
                return ImageFile(self.image.path, self.image.manifest)
        if not self._cluster.is_reachable:
            self.image = offline.find_image(self._name)
            return ImageFile(self.image.path, self.image.manifest, exists=False)
        directories = [Path(os.path.expandvars(name)) for name in self._cluster.site.images]
        self.image = store.find(self._name, directories)
        return ImageFile(self.image.path, self.image.manifest)


def runtime_facts(
    job: Job, cluster: Cluster, client: Client, images: ImageFinder, findings: list[ToolkitError]
) -> RuntimeFacts:
    """Return the facts that the job's runtime discovers; add its error to ``findings``."""
    runtime = RUNTIMES.get(job.runtime or DEFAULT)
    if runtime is None:
        return RuntimeFacts()  # The plan refuses the runtime.
    live = client if cluster.is_reachable else None
    discovery = Discovery(job, cluster.site, live, images.find, offline.is_recipe(job))
    try:
        return runtime.discover(discovery)
    except ToolkitError as error:
        error.place = error.place or ("--image" if runtime.image else "--runtime")
        findings.append(error)
        return RuntimeFacts()
