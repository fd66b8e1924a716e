"""The case that the doctor examines: site, Slurm, image, reports of nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from toolkit.checks import Result, unchecked
from toolkit.images.store.store import StoredImage
from toolkit.images.verify.case import ImageCase, ScriptRun
from toolkit.model.base import Model
from toolkit.model.site import PORTS, Site
from toolkit.slurm.client import Client
from toolkit.units import counted


class NodeReport(Model, frozen=True, kw_only=True):
    """The report of ``scripts/probe.py`` about one node.

    Where something did not work the report says why: ``{"error": "timed out"}``.

    Attributes:
        host: as Slurm calls the node; ``called``: as it calls itself.
        started: seconds from the start of the container's command to that of the program in it; 0
            if not known.
        gpus: that the container sees.
        visible: CUDA_VISIBLE_DEVICES.
        driver: version of NVIDIA's driver; empty if there is none.
        addresses: of its network interfaces.
        missing: the number of tasks that never reported.
        names: of every node its address, and what this address is called.
        links: to every other node by its name: how far its clock is ahead, the addresses at both
            ends.
        throughput: MB/s to every other node, from interface to interface.
        rendezvous: whether the port of the first node at which ranks meet could be reached.
    """

    host: str
    called: str = ""
    started: float = 0.0
    gpus: tuple[str, ...] = ()
    visible: str = ""
    driver: str = ""
    addresses: dict[str, str] = {}
    missing: int = 0
    names: dict[str, dict[str, Any]] = {}
    links: dict[str, dict[str, Any]] = {}
    throughput: dict[str, dict[str, Any]] = {}
    rendezvous: dict[str, Any] = {}


@dataclass
class DoctorCase:
    """The cluster, the image and the directories that the doctor examines.

    Attributes:
        cwd: the current working directory.
        site: as it is written; None if there is none, and then ``no_site`` says why.
        client: the door to its Slurm.
        has_simulated_gpus: the cluster's GPUs are not real.
        image: that jobs will use; None if none was named or found, and then ``no_image`` says why.
        nodes, gpus: the requested nodes, and GPUs on each; with 0 nodes only this machine is
            examined.
        partition: that was requested.
        run_probe: runs the probe on nodes; called once.
        image_case: the image for the checks of ``images.verify``, with access to nodes.
        directories: where images, runs and caches go.
    """

    cwd: Path
    site: Site | None = None
    no_site: str = "no site was asked for"
    client: Client | None = None
    has_simulated_gpus: bool = False
    image: StoredImage | None = None
    no_image: str = "no image is named: --image NAME"
    nodes: int = 0
    gpus: int = 0
    partition: str | None = None
    run_probe: Callable[[], ScriptRun] = ScriptRun
    image_case: ImageCase | None = None
    directories: dict[str, Path] = field(default_factory=dict)

    @property
    def ports(self) -> tuple[int, int]:
        """The first and the last port at which ranks may meet."""
        return self.site.ports if self.site else PORTS

    @cached_property
    def probe(self) -> ScriptRun:
        """The run of the probe."""
        return self.run_probe()

    @property
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
