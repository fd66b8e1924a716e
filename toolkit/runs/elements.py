"""The elements of a run that is a job array, one by one: how each is now, or came out."""

from __future__ import annotations

from toolkit.errors import SlurmUnreachableError, UnknownRunError
from toolkit.files import read_json
from toolkit.model.job import Job
from toolkit.model.ways import PointOutcome
from toolkit.records import store
from toolkit.runs import excerpt, follow, points, status


def of(paths: store.Paths) -> tuple[PointOutcome, ...]:
    """Return the elements of a run that is a job array, now or as they came out.

    Raises:
        SlurmUnreachableError: it was never submitted, or has not ended and Slurm does not answer.
    """
    _, came_out = status.current(paths)
    if came_out is not None:
        return came_out.points
    submission, plan = status.submission_of(paths), follow.read_plan(paths)
    states = status.client_of(submission).elements(submission.job_id)
    past = excerpt.history(paths, plan, submission.job_id)
    return points.read(paths, plan, submission.job_id, states, past, ended=False)


def with_earlier(paths: store.Paths) -> list[tuple[str, PointOutcome]]:
    """Return the elements of a run, and for a rerun of failed points also those that succeeded before; each with its run's name."""
    found = {point.number: (paths.name, point) for point in of(paths)}
    earlier = read_json(paths.job, Job).rerun_of
    if earlier:
        try:
            before = with_earlier(store.find(earlier, paths.directory.parent))
        except (UnknownRunError, SlurmUnreachableError):
            before = []
        found = {point.number: (name, point) for name, point in before} | found
    return [found[number] for number in sorted(found)]
