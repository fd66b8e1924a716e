"""The states of runs that take turns in one allocation, each on its first nodes.

Such a run has a directory and a script like any other, but no job of its own: its ``run.json`` is a
link to that of the allocation's run, and the allocation's script writes down when it ran
(``part.json``). Its state is derived from both, so that it is followed and listed as others are.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from toolkit.errors import ConfigError
from toolkit.model.plan import Plan
from toolkit.model.run import JobState, PartTimes
from toolkit.runs.store import Paths
from toolkit.slurm import queue
from toolkit.slurm.hostlist import expand


def script_of(paths: Paths, plan: Plan) -> str:
    """Return the script of a run's job as sbatch got it: that of its allocation, if it is a part.

    The directory may have been moved since.
    """
    planned, holder = Path(plan.run_directory), paths.holder
    if holder is not None:
        planned = planned.parent / holder.name
    return str(Paths(planned).script)


def is_of(state: JobState, paths: Paths, plan: Plan) -> bool:
    """Return whether a job is a run's, by its script.

    A new local cluster counts its jobs from 1 again. The script of a job of salloc is not known.
    """
    return not state.command or queue.is_command_of(state.command, script_of(paths, plan))


def ended_state(paths: Paths, job_id: int) -> JobState | None:
    """Return the final state of a part that has succeeded, for which Slurm need not be asked."""
    times = read_times(paths)
    if times is None or not times.end or times.exit_code:
        return None
    return part_state(times, JobState(job_id=job_id, state="RUNNING"))


def own_state(paths: Paths, state: JobState) -> JobState:
    """Return the state of a run, given that of its job, of which it may be a part."""
    return part_state(read_times(paths), state) if paths.is_part else state


def read_times(paths: Paths) -> PartTimes | None:
    """Return when a part ran; None if it has not begun."""
    with suppress(ConfigError, ValueError):  # such as one that a full disk has cut off
        times = paths.read(paths.part, PartTimes) if paths.is_part else None
        expand(times.nodes if times else "")
        return times
    return None


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
