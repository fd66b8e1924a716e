"""Ways to run a job other than once from beginning to end: again and again, as many points, at a terminal."""

from __future__ import annotations

from toolkit.model.base import Model


class Requeue(Model, frozen=True, kw_only=True):
    """How a job goes back into the queue before it is stopped.

    Attributes:
        signal: that Slurm sends the batch shell: ``USR1``.
        seconds: how long before the time limit, at the least.
        wait: seconds that the ranks have at most to write down what they need.
        times: how often it goes back at most.
    """

    signal: str
    seconds: int
    wait: int
    times: int


class Stint(Model, frozen=True, kw_only=True):
    """One attempt of a job that goes back into the queue. Times are seconds since the epoch; 0: not known.

    Attributes:
        number: from 1.
        nodes: as Slurm writes them.
        how: how it ended, in words; empty while it goes on, or where Slurm ended it.
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
        values: names and values, as they were written.
        arguments: what they add to the script's.
    """

    number: int
    values: tuple[tuple[str, str], ...]
    arguments: tuple[str, ...]


class PointOutcome(Model, frozen=True, kw_only=True):
    """How an element of a job array came out, or how it is now.

    Attributes:
        number: of the element.
        state: Slurm's.
        exit_code: None: it has not ended.
        seconds: from start to end by Slurm's clock.
        results: the JSON object that it printed last, if it did.
        message: what went wrong.
    """

    number: int
    state: str
    exit_code: int | None = None
    seconds: float = 0.0
    results: dict[str, object] = {}
    message: str = ""
