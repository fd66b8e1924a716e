"""Jobs other than a single run: requeued jobs, job arrays and sweeps."""

from __future__ import annotations

from toolkit.model.base import Model


class Requeue(Model, frozen=True, kw_only=True):
    """The return of a job to the queue before its time limit.

    Attributes:
        signal: the signal that Slurm sends the batch shell: ``USR1``.
        seconds: the least time between the signal and the time limit.
        wait: the longest time, in seconds, that the ranks have to write a checkpoint.
        times: the most times that the job is requeued.
    """

    signal: str
    seconds: int
    wait: int
    times: int


class Stint(Model, frozen=True, kw_only=True):
    """One attempt of a requeueable job.

    Times are seconds since the epoch; 0: unknown.

    Attributes:
        number: from 1.
        nodes: as Slurm writes them.
        how: how it ended, as text; empty while it runs, or if Slurm ended it.
        element: its number in a job array.
    """

    number: int
    began: int
    nodes: str
    ended: int = 0
    how: str = ""
    element: int | None = None


class Point(Model, frozen=True, kw_only=True):
    """One point of a sweep.

    Attributes:
        number: its number in the job array, from 0.
        values: names and values, as the user wrote them.
        arguments: the arguments that they add to the script's.
    """

    number: int
    values: tuple[tuple[str, str], ...]
    arguments: tuple[str, ...]


class PointOutcome(Model, frozen=True, kw_only=True):
    """The outcome or the present state of an element of a job array.

    Attributes:
        number: of the element.
        state: Slurm's.
        exit_code: None: it has not ended.
        seconds: from start to end by Slurm's clock.
        results: the JSON object that it printed last, if it did.
        message: the error, if it failed.
    """

    number: int
    state: str
    exit_code: int | None = None
    seconds: float = 0.0
    results: dict[str, object] = {}
    message: str = ""
