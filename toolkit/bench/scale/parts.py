"""Runs that take turns in one allocation, each on its first nodes.

Such a run has a directory and a script like any other, but no job of its own: Slurm has that of the
allocation's run, whose script writes down when each part ran (``part.json``).
"""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from toolkit.errors import ConfigError
from toolkit.model.base import Model
from toolkit.model.run import JobState
from toolkit.runs.run import Run
from toolkit.slurm.hostlist import expand
from toolkit.slurm.queue import Snapshot


class PartTimes(Model, frozen=True, kw_only=True):
    """``part.json`` of a run that is a part of a larger allocation, written by that job's script.

    Times are seconds since the epoch.

    Attributes:
        start: of the run's script.
        nodes: that it has, of those of the allocation, as Slurm writes them.
        end: 0: it has not ended, or was stopped with its allocation.
        exit_code: of the script.
    """

    start: int
    nodes: str
    end: int = 0
    exit_code: int = 0


class Part(Run):
    """A run whose job is that of an allocation, with a state of its own."""

    @property
    def times(self) -> PartTimes | None:
        """When it ran; None if it has not begun."""
        with suppress(ConfigError, ValueError):  # such as one that a full disk has cut off
            times = self.read("part.json", PartTimes)
            expand(times.nodes if times else "")
            return times
        return None

    def state(self, known: Snapshot | None = None) -> JobState | None:
        """Return its own state; Slurm need not be asked for that of a part that has succeeded."""
        times, number = self.times, self.find(known)
        if number is None:
            return None
        if times is not None and times.end and not times.exit_code:
            return part_state(times, JobState(job_id=number, state="RUNNING"))
        job = super().state(known)
        return job and part_state(times, job)


def part_state(times: PartTimes | None, job: JobState) -> JobState:
    """Return the state of a part, given its times and the state of the job. Pure.

    A part that fails ends its job, and one whose job is ended by Slurm often fails before it is
    stopped: why it failed is known when the job has ended.
    """
    if times is None:
        if not job.ended:
            return job if job.state == "PENDING" else replace(job, state="PENDING", reason="Turn")
        stopped = "CANCELLED" if job.state in ("COMPLETED", "FAILED") else job.state
        return replace(job, state=stopped, reason="", nodes="", start=0, exit_code=0, signal=0)
    own = replace(job, start=times.start, nodes=times.nodes)
    if times.end and (not times.exit_code or job.state in ("FAILED", "COMPLETED")):
        state = "FAILED" if times.exit_code else "COMPLETED"
        return replace(
            own, state=state, reason="", exit_code=times.exit_code, signal=0, end=times.end
        )
    if job.state == "COMPLETED":  # its end could not be written
        return replace(own, state="FAILED", exit_code=1)
    return own
