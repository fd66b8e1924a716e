"""The doctor's list: the items in the order in which they are made and shown."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.checks import Result, unchecked
from toolkit.doctor.case import DoctorCase
from toolkit.doctor.items import allreduce, cluster, gpus, image, machine, network

ITEMS = (
    cluster.check_slurm,
    cluster.check_node_states,
    machine.check_container,
    machine.check_namespaces,
    machine.check_directories,
    machine.check_space,
    image.check_image,
    image.check_allocation,
    image.check_image_on_nodes,
    gpus.check_gpus,
    gpus.check_driver,
    network.check_names,
    network.check_connections,
    network.check_rendezvous,
    network.check_clocks,
    network.check_interface,
    *allreduce.CHECKS,
)


def diagnose(case: DoctorCase) -> Iterator[Result]:
    """Yield the result of every item, in the order of the list."""
    for item in ITEMS:
        reason = _reason_to_skip(case) if item.scope == "nodes" else None
        yield reason._replace(name=item.name) if reason else item.only(case)


def _reason_to_skip(case: DoctorCase) -> Result | None:
    """Return why items that take nodes cannot be checked; None if they can."""
    if not case.nodes:
        image = case.image.name if case.image else "pytorch_cpu"
        return unchecked("no nodes were asked for", f"toolkit doctor --nodes 2 --image {image}")
    if case.client is None:
        return unchecked(f"no cluster: {case.no_site}")
    return unchecked(case.no_image) if case.image is None else None
