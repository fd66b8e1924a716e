"""What an item of the doctor's list is given, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from toolkit.images.store.store import FoundImage
from toolkit.images.verify.jobs import Ended
from toolkit.model.base import Model
from toolkit.model.site import PORTS, Site
from toolkit.slurm.client import Client
from toolkit.units import counted

if TYPE_CHECKING:
    from toolkit.images.verify.case import Case as ImageCase

Outcome = Literal["PASS", "WARN", "FAIL", "not checked"]


class Answer(NamedTuple):
    """How an item came out, what was found, and what to do about it."""

    outcome: Outcome
    detail: str
    next_step: str = ""


def passed(detail: str) -> Answer:
    return Answer("PASS", detail)


def warned(detail: str, next_step: str = "") -> Answer:
    return Answer("WARN", detail, next_step)


def failed(detail: str, next_step: str = "") -> Answer:
    return Answer("FAIL", detail, next_step)


def unchecked(why: str, next_step: str = "") -> Answer:
    """It could not be found out, and why."""
    return Answer("not checked", why, next_step)


class Finding(Model, frozen=True, kw_only=True):
    """A line of the doctor's list.

    Attributes:
        name: of the item.
        outcome: how it came out.
        detail: what was found, or why it was not checked.
        next_step: what to do about it; empty where there is nothing to do.
    """

    name: str
    outcome: Outcome
    detail: str
    next_step: str = ""


class Told(Model, frozen=True, kw_only=True):
    """What ``scripts/probe.py`` found on one node. Where something did not work it says why: ``{"error": "timed out"}``.

    Attributes:
        host: as Slurm calls the node; ``called``: as it calls itself.
        started: seconds from the start of the container's command to that of the program in it; 0: not known.
        gpus: that are seen in the container.
        visible: CUDA_VISIBLE_DEVICES.
        driver: of NVIDIA; empty: there is none.
        addresses: of its network interfaces.
        missing: tasks that never came to the notice board.
        names: of every node its address and what this address is called.
        ways: to every other node by its name: how far its clock is ahead, the addresses at both ends.
        carries: MB/s to every other node, from interface to interface.
        meeting: whether the port of the first node at which ranks meet could be reached.
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
    ways: dict[str, dict[str, Any]] = {}
    carries: dict[str, dict[str, Any]] = {}
    meeting: dict[str, Any] = {}


@dataclass
class Case:
    """What the doctor looks at.

    Attributes:
        here: where the user stands.
        site: as it is written; None where there is none, and then ``no_site`` says why.
        client: the door to its Slurm.
        simulated: the cluster's GPUs are not real.
        image: that jobs will use; None where none was named or found, and then ``no_image`` says why.
        nodes, gpus: the shape that was asked for: nodes, and GPUs on each; 0 nodes: only this machine is looked at.
        partition: that was asked for.
        probe: runs the probe on nodes, once.
        verified: the image for the checks of ``images.verify``, with a way to nodes.
    """

    here: Path
    site: Site | None = None
    no_site: str = "no site was asked for"
    client: Client | None = None
    simulated: bool = False
    image: FoundImage | None = None
    no_image: str = "no image was named: --image NAME"
    nodes: int = 0
    gpus: int = 0
    partition: str | None = None
    probe: Callable[[], Ended] = Ended
    verified: ImageCase | None = None
    directories: dict[str, Path] = field(default_factory=dict)

    @property
    def ports(self) -> tuple[int, int]:
        """The first and the last at which ranks may meet."""
        return self.site.ports if self.site else PORTS

    @cached_property
    def ended(self) -> Ended:
        """How the probe came out."""
        return self.probe()

    @property
    def told(self) -> tuple[Told, ...]:
        """What the nodes found, in the order of their tasks; only those that got so far."""
        files = [
            (name, found) for name, found in self.ended.files.items() if name.startswith("told-")
        ]
        return tuple(
            msgspec.convert(found, Told)
            for _, found in sorted(files, key=lambda one: int(one[0][5:].split(".")[0]))
        )

    def no_nodes(self, least: int = 1) -> Answer | None:
        """Why nothing can be said of nodes; None: it can.

        Args:
            least: nodes that it takes.
        """
        if len(self.told) < self.nodes or not self.told:
            return unchecked("not all nodes told anything; see `image-on-nodes`")
        return (
            unchecked(f"it takes {counted(least, 'node')}: --nodes {least}")
            if len(self.told) < least
            else None
        )
