"""Gather what the doctor examines: the site and its Slurm, the image, directories, nodes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from toolkit import shell
from toolkit.checks import Result, unchecked
from toolkit.config import package_directory
from toolkit.doctor.node_jobs import rank_runner, run_script
from toolkit.errors import SlurmUnreachableError, ToolkitError
from toolkit.images.store import store
from toolkit.images.store.store import StoredImage
from toolkit.images.verify.case import ImageCase, ScriptRun, local_case
from toolkit.localcluster import access
from toolkit.localcluster.paths import paths_of
from toolkit.model.base import Model
from toolkit.model.site import PORTS, Site
from toolkit.planning.settings import find_cluster
from toolkit.slurm.client import Client
from toolkit.units import counted

MEGABYTES = 16  # of the vector whose sum is timed
_PROBE = package_directory("doctor/scripts") / "probe.py"


class NodeReport(Model, frozen=True, kw_only=True):
    """The report of ``scripts/probe.py`` about one node.

    Where something did not work the report says why: ``{"error": "timed out"}``.

    Attributes:
        host: as Slurm calls the node.
        started: seconds from the start of the container's command to that of the program in it; 0
            if not known.
        gpus: that the container sees.
        driver: version of theirs; empty if there are none.
        address: of the site's network interface; empty if there is none.
        names: of every node its address, and what this address is called.
        links: to every other node by its name: how far its clock is ahead.
        over_interface: the same, from interface to interface.
        rendezvous: the same of the first node's port at which ranks meet; empty on that node.
    """

    host: str
    started: float = 0.0
    gpus: tuple[str, ...] = ()
    driver: str = ""
    address: str = ""
    names: dict[str, dict[str, Any]] = {}
    links: dict[str, dict[str, Any]] = {}
    over_interface: dict[str, dict[str, Any]] = {}
    rendezvous: dict[str, dict[str, Any]] = {}


@dataclass
class DoctorCase:
    """The cluster, the image and the directories that the doctor examines.

    Attributes:
        nodes, gpus: the requested nodes, and GPUs on each; with 0 nodes only this machine is
            examined.
        settings: of the jobs on nodes: partition, time, comment, account.
        site: as it is written; None if there is none, and then ``no_site`` says why.
        client: the door to its Slurm.
        has_simulated_gpus: the cluster's GPUs are not real.
        image: that jobs will use; None if none was named or found, and then ``no_image`` says why.
        image_case: the image for the checks of ``images.verify``, with access to nodes; None if
            this machine starts no containers.
        directories: where images, runs and caches go.
    """

    nodes: int = 0
    gpus: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    site: Site | None = None
    no_site: str = "no site was asked for"
    client: Client | None = None
    has_simulated_gpus: bool = False
    image: StoredImage | None = None
    no_image: str = "no image is named: --image NAME"
    image_case: ImageCase | None = None
    directories: dict[str, Path] = field(default_factory=dict)

    @property
    def ports(self) -> tuple[int, int]:
        """The first and the last port at which ranks may meet."""
        return self.site.ports if self.site else PORTS

    @cached_property
    def probe(self) -> ScriptRun:
        """The run of the probe, with one task on each node."""
        settings = {
            "image": self.image.path if self.image else "",
            "launcher": "none",
            "job_name": "doctor",
            "nodes": self.nodes,
            "ntasks_per_node": 1,
            **({"gpus": self.gpus} if self.gpus else {}),
            **self.settings,
        }
        interface = (self.site.interface,) if self.site and self.site.interface else ()
        return run_script(_PROBE, settings, (*map(str, self.ports), *interface), self.site)

    @cached_property
    def reports(self) -> tuple[NodeReport, ...]:
        """The reports of the nodes that got so far, in the order of their tasks."""
        files = {
            int(name.removeprefix("report-").removesuffix(".json")): content
            for name, content in self.probe.files.items()
            if name.startswith("report-")
        }
        return tuple(msgspec.convert(files[task], NodeReport) for task in sorted(files))

    def no_reports(self, least: int = 1) -> Result | None:
        """Return why nodes cannot be judged; None if they can.

        Args:
            least: the number of nodes that the item takes.
        """
        if len(self.reports) < self.nodes or not self.reports:
            return unchecked("not all nodes reported; see `image-on-nodes`")
        if len(self.reports) < least:
            return unchecked(f"it takes {counted(least, 'node')}: --nodes {least}")
        return None


def gather(
    site: str, image: str | None, nodes: int, gpus: int, settings: Mapping[str, Any], cwd: Path
) -> DoctorCase:
    """Gather what the doctor examines.

    Args:
        site: name of the site.
        image: name of the image.
        nodes, gpus: the number of nodes, and of GPUs on each; 0 if unset.
        settings: of the jobs on nodes.
        cwd: the current working directory.

    Raises:
        UnknownSiteError: there is no such site.
    """
    case = DoctorCase(nodes=nodes, gpus=gpus, settings={"site": site, **settings})
    try:
        place = find_cluster(site)
    except SlurmUnreachableError as error:
        case.no_site = error.cause
    else:
        case.site, case.client = place.site, place.client
        local = access.local_name(place.site)
        case.has_simulated_gpus = (
            local is not None and not access.must_run(paths_of(local)).real_gpus
        )
    own = "$SCRATCH" if "SCRATCH" in os.environ else str(Path.home() / ".cache")
    scratch = case.site.scratch if case.site and case.site.scratch else own
    caches = Path(os.path.expandvars(scratch)) / "toolkit"
    case.directories = {"images": store.images_directory(), "runs": cwd, "caches": caches}
    if not image:
        return case
    try:
        case.image = store.find(
            image,
            [Path(os.path.expandvars(each)) for each in (case.site.images if case.site else ())],
        )
        shell.require_apptainer()
    except ToolkitError as error:
        case.no_image = ": ".join(filter(None, (error.cause, error.next_step)))
        return case
    of_ranks = {**settings, "env": {"RANKS_SPEED_MB": str(MEGABYTES)}}
    run_ranks = rank_runner(case.image.path, site, nodes, gpus, of_ranks, case.site)
    case.image_case = local_case(
        case.image,
        nodes=nodes,
        gpus=gpus,
        run_ranks=run_ranks if nodes else None,
    )
    return case
