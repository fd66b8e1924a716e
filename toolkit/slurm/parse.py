"""Parse what sinfo and srun print about partitions and MPI. Pure. Jobs are in ``queue``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from toolkit.model.site import Partition
from toolkit.units import minutes

SINFO_FORMAT = "%P|%a|%l|%s|%D|%t|%c|%m|%G"
_GPU = re.compile(r"gpu(?::(?P<type>[^:,=(\s]+))?[:=](?P<count>\d+)")
# States of nodes that no job can start on, in sinfo's short form. Not "unk": so are all nodes for a
# moment after the controller's start.
_GONE = ("down", "drain", "drng", "fail", "futr", "pow_dn", "boot")


def rows(text: str, shape: str) -> Iterator[list[str]]:
    """Yield the values of each line that a ``--format`` of fields between bars printed.

    Other lines are skipped: a site's plugins and a login over ssh print such.
    """
    bars = shape.count("|")
    for line in text.splitlines():
        values = line.split("|", bars)
        if len(values) > bars:
            yield values


def partition(name: str, lines: Sequence[Sequence[str]]) -> Partition:
    """Return a partition from its lines in sinfo, one for each state and kind of its nodes."""
    available, limit, size, *_ = lines[-1]
    most_nodes = size.rpartition("-")[2]  # "1-1K" is not 1
    counts = [gpu_counts(gres) for *_, gres in lines]
    most = max(counts, key=lambda types: sum(types.values()))
    types = dict.fromkeys(each for types in counts for each in types if each)
    return Partition(
        name=name.rstrip("*"),
        default=name.endswith("*"),
        available=available == "up",
        max_minutes=minutes(limit),
        max_nodes=int(most_nodes) if most_nodes.isdigit() else None,
        nodes=sum(int(count) for _, _, _, count, state, *_ in lines if not state.startswith(_GONE)),
        cpus=max(number(cpus) or 0 for *_, cpus, _, _ in lines),
        memory=max(number(memory) or 0 for *_, memory, _ in lines),
        gpus=sum(most.values()),
        gpu_type=next(filter(None, most), None),
        gpus_by_type={each: max(types.get(each, 0) for types in counts) for each in types},
    )


def number(text: str) -> int | None:
    """Return the number that a text begins with; None for Slurm's words for none and unlimited."""
    digits = re.match(r"\d+", text)
    return int(digits[0]) if digits else None


def gpu_counts(gres: str) -> dict[str, int]:
    """Return the GPUs of each type in a list of generic resources.

    Each of Slurm's commands has its own form: ``gpu:v100:4(IDX:0-3),gpu:2`` is ``{"v100": 4, "":
    2}``, ``gres/gpu=8`` is ``{"": 8}``.
    """
    counts: dict[str, int] = {}
    for match in _GPU.finditer(gres):
        name = match["type"] or ""
        counts[name] = counts.get(name, 0) + int(match["count"])
    return counts


def gpus_in(gres: str) -> int:
    """Return the GPUs in a list of generic resources, as any of Slurm's commands writes it.

    Examples: ``gpu:v100:4(IDX:0-3)``, ``gres/gpu:2``, ``gres/gpu=8``. Trackable resources count all
    of them beside those of each type: ``gres/gpu:v100=4,gres/gpu=8``.
    """
    counts = gpu_counts(gres)
    return counts[""] if "=" in gres and "" in counts else sum(counts.values())


def common_mpi_type(spoken: Sequence[str], offered: Sequence[str]) -> str | None:
    """Return the first PMI type that an MPI speaks and Slurm offers; None if there is none.

    That is the plain name if Slurm has it, else the newest version of its plugin (``pmix_v4``).

    Args:
        spoken: what the image's MPI speaks, best first.
        offered: what ``srun --mpi=list`` prints.
    """
    for name in spoken:
        if name in offered:
            return name
        versions = [kind for kind in offered if re.fullmatch(rf"{name}_v\d+", kind)]
        if versions:
            return max(versions, key=lambda kind: int(kind.rpartition("_v")[2]))
    return None
