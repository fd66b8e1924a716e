"""Ask Slurm's accounting by sacct what jobs used, and sum it up.

Text is read rather than ``--json``, whose keys differ between versions of Slurm; these fields have
the same names and units in all of them.
"""

from __future__ import annotations

import io
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from toolkit.errors import SlurmUnreachableError
from toolkit.slurm.client import Client
from toolkit.slurm.parse import gpus_in
from toolkit.units import whole

USAGE = (
    *("JobIDRaw", "User", "Account", "Partition", "State", "ElapsedRaw", "AllocCPUS"),
    *("AllocTRES", "Eligible", "Start"),
)
GROUPS = {"user": "User", "account": "Account", "partition": "Partition"}
# They ended without an error of their own; a job that another one waits for is CANCELLED, too.
_NOT_FAILED = (
    *("CANCELLED", "COMPLETED", "COMPLETING", "PENDING", "PREEMPTED", "REQUEUED", "RESIZING"),
    *("REVOKED", "RUNNING", "SUSPENDED"),
)
_AMOUNT = re.compile(r"([^,=]+)=(\d+(?:\.\d+)?)([KMGTP]?)(?=,|\Z)")
_SECONDS = 60  # slurmdbd reads a month of a large site from its database

Job = Mapping[str, str]


class AccountingOffError(
    SlurmUnreachableError,
    exit_code=69,
    kind="slurm",
    page="run/cost",
    step="a local cluster with accounting: toolkit cluster up --accounting",
):
    """The cluster keeps no records of what jobs used, or does not show them."""


def ask(
    client: Client, fields: Sequence[str], *options: str, seconds: int = _SECONDS
) -> Iterator[Job]:
    """Yield what sacct prints of jobs and their steps: field -> value.

    Times are seconds since the epoch, and memory of jobs is in powers of 1024.

    Raises:
        AccountingOffError: the cluster has no accounting, or it did not answer.
    """
    words = ("sacct", "--noheader", "--parsable2", "--noconvert", f"--format={','.join(fields)}")
    clock = ("env", "SLURM_TIME_FORMAT=%s", "timeout", str(seconds))
    result = client.ask(*clock, *words, *options)
    if not result.ok:
        cause = "this cluster keeps no accounting, or does not show it"
        if result.returncode == 124:  # as timeout(1) ends
            cause = f"sacct gave no answer in {seconds} s; ask for less: --since 1d"
        raise AccountingOffError(cause, place="sacct", details=result.tail(3))
    for line in io.StringIO(result.stdout):  # one by one: a month of a site is a million of them
        values = line.rstrip("\n").split("|")
        if len(values) == len(fields):  # a site's plugins print other lines
            yield dict(zip(fields, values, strict=True))


def amounts(tres: str) -> dict[str, float]:
    """Return what a list of trackable resources counts; memory in bytes.

    ``cpu=8,gres/gpu=2,mem=4096M`` is ``{"cpu": 8, "gres/gpu": 2, "mem": 4294967296}``. Times are
    left out.
    """
    return {
        name: float(count) * 1024 ** " KMGTP".index(unit or " ")
        for name, count, unit in _AMOUNT.findall(tres)
    }


def seconds_of(text: str) -> float:
    """Return a CPU time of sacct in seconds: ``1-02:03:04``, ``01:02:03``, ``00:19.366``."""
    days, _, clock = text.rpartition("-")
    total = 0.0
    for part in clock.split(":") if re.fullmatch(r"\d+(:\d+)*(\.\d+)?", clock) else ():
        total = total * 60 + float(part)
    return total + (whole(days) or 0) * 86400


def state_of(job: Job) -> str:
    """Return the state of a job; sacct writes ``CANCELLED by 1000``."""
    return next(iter(job["State"].split()), "UNKNOWN")


class Use(NamedTuple):
    """The use of a cluster by a group of jobs.

    Attributes:
        name: of the group, or the end state.
        jobs: number of jobs; one that was requeued is one job.
        failed_share: part of the hours that jobs took which failed: of GPU hours if there are any,
            else of CPU hours.
        wait_seconds: the median of what jobs waited for; None: no job started.
    """

    name: str
    jobs: int
    cpu_hours: float
    gpu_hours: float
    failed_share: float
    wait_seconds: float | None


def usage(jobs: Iterable[Job], by: str, since: float) -> tuple[list[Use], list[Use]]:
    """Return what was used by each group and by the jobs of each end state, the largest first.

    Args:
        jobs: with the fields of ``USAGE``; one that was requeued has a record for each attempt.
        by: ``user``, ``account`` or ``partition``.
        since: begin of the time that counts; the wait of a job that began before is left out.
    """
    cpu, gpu = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    ids = defaultdict[tuple[str, str], set[str]](set)
    waits = defaultdict[tuple[str, str], list[int]](list)
    for job in jobs:
        key = (job[GROUPS[by]] or "-", state_of(job))
        elapsed = whole(job["ElapsedRaw"]) or 0
        cpu[key] += elapsed * (whole(job["AllocCPUS"]) or 0)
        gpu[key] += elapsed * gpus_in(job["AllocTRES"])
        ids[key].add(job["JobIDRaw"])
        eligible, start = whole(job["Eligible"]), whole(job["Start"])
        if eligible and start and start >= max(since, eligible):
            waits[key].append(start - eligible)

    def sum_up(name: str, place: int) -> Use:
        keys = [key for key in ids if key[place] == name]
        hours = gpu if any(gpu[key] for key in keys) else cpu
        failed = sum(hours[key] for key in keys if key[1] not in _NOT_FAILED)
        waited = [seconds for key in keys for seconds in waits[key]]
        return Use(
            name=name,
            jobs=len(set[str]().union(*(ids[key] for key in keys))),
            cpu_hours=sum(cpu[key] for key in keys) / 3600,
            gpu_hours=sum(gpu[key] for key in keys) / 3600,
            failed_share=failed / (sum(hours[key] for key in keys) or 1),
            wait_seconds=statistics.median(waited) if waited else None,
        )

    groups, states = (
        sorted(
            (sum_up(name, place) for name in {key[place] for key in ids}),
            key=lambda use: (-use.gpu_hours, -use.cpu_hours, use.name),
        )
        for place in (0, 1)
    )
    return groups, states
