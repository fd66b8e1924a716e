"""Preflight: can jobs run here? One module for each item of the list, and a line here.

An item is a function ``check(case) -> Answer``. Those of nodes look at what a short job found
there, which `toolkit run` starts as it starts every job.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from toolkit.doctor.case import Answer, Case, Finding, failed, unchecked
from toolkit.errors import ToolkitError


class Entry(NamedTuple):
    """A line of the registry. ``of_nodes``: it takes an allocation."""

    module: str
    of_nodes: bool = False


# In this order: what later ones need comes first.
CHECKS: dict[str, Entry] = {
    "slurm": Entry("slurm"),
    "node-states": Entry("node_states"),
    "container": Entry("container"),
    "namespaces": Entry("namespaces"),
    "directories": Entry("directories"),
    "space": Entry("space"),
    "image": Entry("image"),
    "allocation": Entry("allocation", of_nodes=True),
    "image-on-nodes": Entry("image_on_nodes", of_nodes=True),
    "gpus": Entry("gpus", of_nodes=True),
    "driver": Entry("driver", of_nodes=True),
    "names": Entry("names", of_nodes=True),
    "connections": Entry("connections", of_nodes=True),
    "rendezvous": Entry("rendezvous", of_nodes=True),
    "clocks": Entry("clocks", of_nodes=True),
    "interface": Entry("interface", of_nodes=True),
    "allreduce-gloo": Entry("allreduce_gloo", of_nodes=True),
    "allreduce-mpi": Entry("allreduce_mpi", of_nodes=True),
    "allreduce-nccl": Entry("allreduce_nccl", of_nodes=True),
}


class Module(Protocol):
    """A module of this package."""

    def check(self, case: Case) -> Answer:
        """How it came out."""


def findings(case: Case) -> Iterator[Finding]:
    """Every item of the list, in the order of the registry, each as it is found."""
    for name, entry in CHECKS.items():
        answer = _answer(case, entry)
        yield Finding(
            name=name, outcome=answer.outcome, detail=answer.detail, next_step=answer.next_step
        )


def _answer(case: Case, entry: Entry) -> Answer:
    if entry.of_nodes and not case.nodes:
        image = case.image.name if case.image else "pytorch_cpu"
        return unchecked("no nodes were asked for", f"toolkit doctor --nodes 2 --image {image}")
    if entry.of_nodes and case.client is None:
        return unchecked(f"no cluster: {case.no_site}")
    if entry.of_nodes and case.image is None:
        return unchecked(case.no_image)
    module: Module = importlib.import_module(f"toolkit.doctor.{entry.module}")
    try:
        return module.check(case)
    except ToolkitError as error:
        return failed(error.cause, error.next_step or "")
