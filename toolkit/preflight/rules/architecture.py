"""Image and nodes are of one architecture: programs of another end with `Exec format error`."""

from __future__ import annotations

from toolkit.errors import ShapeError
from toolkit.preflight.model import Case, Finding


def look(case: Case) -> list[Finding]:
    image = case.seen.architecture
    nodes, source, sure = _nodes(case)
    if not image or not nodes or image == nodes:
        return []
    cause = f"the image is for {image}, the nodes of {case.partition_name or case.site.name} are {nodes}"
    fitting = ", ".join(_fitting(case, image))
    step = f"an image for {nodes}" + (f", or one of the partitions {fitting}" if fitting else "")
    return [Finding(ShapeError(cause, place="--image", next_step=step), source, stops=sure)]


def _fitting(case: Case, image: str) -> list[str]:
    """Some partitions that are there, whose nodes are of the image's architecture and have as many GPUs."""
    live = {partition.name for partition in case.facts.partitions} or set(case.site.partitions)
    least = case.job.most_gpus
    return [
        name
        for name, one in case.site.partitions.items()
        if one.arch == image and one.batch and one.gpus >= least and name in live
    ][:4]


def _nodes(case: Case) -> tuple[str, str, bool]:
    """The nodes' architecture, who says it, and whether that is sure."""
    if case.written is not None:
        return case.written.arch, case.source, True
    if case.site.access == "local-cluster":
        return case.seen.machine, "the nodes are this machine", True
    return case.seen.machine, "guessed: as this machine's", False
