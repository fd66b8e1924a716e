"""Ask Slurm why a job waits: the edge of ``waiting``."""

from __future__ import annotations

from toolkit.explain.waiting import Facts, Holder
from toolkit.slurm import overview
from toolkit.slurm.client import Client

_HOLDERS = 200  # of a large partition the first to end


def gather(client: Client, job_id: int) -> Facts:
    """Return what Slurm tells of a waiting job.

    Raises:
        SlurmUnreachableError: Slurm does not answer.
    """
    told = client.ask("scontrol", "--oneliner", "show", "job", str(job_id)).stdout
    job = overview.fields(next(iter(told.splitlines()), ""))
    partition = job.get("Partition", "").partition(",")[0]
    of_it = (f"--partition={partition}",) if partition else ()
    running = client.ask(
        "squeue",
        "--noheader",
        "--states=RUNNING,COMPLETING",
        "--sort=e",
        *of_it,
        "--format=%i|%u|%N|%e",
    ).stdout
    waiting = client.ask(
        "squeue", "--noheader", "--states=PENDING", *of_it, "--format=%i|%Q"
    ).stdout
    reserved = client.ask("scontrol", "--oneliner", "show", "reservation").stdout
    reservations = [
        overview.fields(line)
        for line in reserved.splitlines()
        if line.startswith("ReservationName=")
    ]
    return Facts(
        job=job,
        holders=[
            Holder(*parts)
            for line in running.splitlines()[:_HOLDERS]
            if len(parts := line.strip().split("|")) == len(Holder._fields)
        ],
        ahead=_ahead(waiting, job),
        nodes=client.node_states(partition or None),
        reservations={fields["ReservationName"]: fields for fields in reservations},
        start=client.expected_start(job_id),
    )


def _ahead(text: str, job: dict[str, str]) -> int:
    """Count the waiting jobs with a higher priority than this one's."""
    own = job.get("Priority", "")
    if not own.isdecimal():
        return 0
    others = (line.strip().partition("|")[2] for line in text.splitlines())
    return sum(value.isdecimal() and int(value) > int(own) for value in others)
