"""Types of GPUs in three forms. Pure.

The user writes ``a100:4``, a site file ``A100 NVLink``, and Slurm has its own names.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from toolkit.errors import UsageError
from toolkit.model.case import Case
from toolkit.model.site import Facts, Site
from toolkit.quoting import alternatives


class GpuType(NamedTuple):
    """A type of GPU as in ``--gres=gpu:TYPE:N``.

    Attributes:
        name: as Slurm writes it; empty if any GPU will do, or Slurm has no types there.
        error: the error if the cluster is known not to have the type.
    """

    name: str
    error: UsageError | None = None


def short_name(gpu: str | None) -> str:
    """Return the type in a description of GPUs: ``v100`` of ``V100 NVLink``."""
    return re.sub(r"[^a-z0-9_.-]", "", (gpu or "").split(" ")[0].lower())


def resolve(case: Case) -> GpuType:
    """Return the type of a job's GPUs as Slurm names it.

    Slurm's own answer takes precedence over the site file. If Slurm has no types for the GPUs, but
    the file says that all of the partition are of the type that the job requests, the partition
    decides.
    """
    job, site, partition = case.job, case.site, case.partition
    wanted = job.gpu_type
    if not wanted:
        return GpuType("")
    named = {key.lower(): value for key, value in site.gpu_types.items()}.get(
        wanted.lower(), wanted
    )
    type_in_file = short_name(case.written.gpu) if case.written else ""
    if partition is not None and partition.gpus_by_type:
        for name in partition.gpus_by_type:
            if name.lower() in (wanted.lower(), named.lower()):
                return GpuType(name)
        known = list(partition.gpus_by_type)
    elif type_in_file == wanted.lower():
        return GpuType("" if partition is not None and partition.gpus else named)
    elif type_in_file:
        known = [type_in_file]
    elif partition is not None and partition.gpus:
        if not named:
            return GpuType("")
        cause = f"Slurm has no types for the GPUs of partition {partition.name}"
        step = f"{job.gpu_option} without the type"
        return GpuType(wanted, UsageError(cause, place=job.gpu_option, next_step=step))
    else:
        known = known_types(site, case.facts)
        if not known or wanted.lower() in map(str.lower, known):
            return GpuType(named)
    return GpuType(named, _unknown(case, known))


def known_types(site: Site, facts: Facts) -> list[str]:
    """Return the types of all partitions, Slurm's first."""
    live = [name for partition in facts.partitions for name in partition.gpus_by_type]
    described = [
        short_name(partition.gpu) for partition in site.partitions.values() if partition.gpu
    ]
    return list(dict.fromkeys((*live, *site.gpu_types, *described)))


def _partitions_with(wanted: str, site: Site, facts: Facts) -> list[str]:
    """Return the partitions that have GPUs of a type."""
    live = [
        partition.name
        for partition in facts.partitions
        if wanted.lower() in map(str.lower, partition.gpus_by_type)
    ]
    described = [
        name
        for name, partition in site.partitions.items()
        if partition.batch and short_name(partition.gpu) == wanted.lower()
    ]
    return live or described


def _unknown(case: Case, known: list[str]) -> UsageError:
    job, name = case.job, case.partition_name
    place = f"partition {name}" if name else f"site {case.site.name}"
    elsewhere = _partitions_with(job.gpu_type, case.site, case.facts)
    if elsewhere:
        step = f"with {job.gpu_type}: {alternatives('--partition', elsewhere)}"
    else:
        step = f"one of {', '.join(sorted(known))}"
    return UsageError(
        f"{place} has no GPUs of type {job.gpu_type!r}",
        place=job.gpu_option,
        choices=() if elsewhere else known,
        value=job.gpu_type,
        next_step=step,
    )
