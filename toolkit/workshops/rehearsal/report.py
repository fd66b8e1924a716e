"""The report of a rehearsal: data, and its form as text. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from math import ceil
from statistics import median

from toolkit.model.base import Model
from toolkit.units import counted, human_size, human_time

JOIN = "join"


class Attempt(Model, frozen=True, kw_only=True):
    """A participant's run of an exercise, or the joining.

    Attributes:
        person: the participant.
        exercise: its name; ``join``: the joining of the workshop.
        ok: it succeeded.
        accuracy: that it printed; None if it printed none.
        after: seconds from the first command of the rehearsal to the end.
        queued: seconds in the queue; None if it is unknown.
        cause: why it failed.
        fix: what to do about it.
    """

    person: str
    exercise: str
    ok: bool
    after: float
    accuracy: float | None = None
    queued: float | None = None
    cause: str = ""
    fix: str = ""


class Report(Model, frozen=True, kw_only=True):
    """The report of a rehearsal.

    Attributes:
        workshop: its name.
        people: the number of participants.
        interrupted: it was ended early; what was done by then is reported.
        exercises: in their order.
        cluster: on which it ran, as text.
        seconds: the whole time of all participants.
        attempts: what the participants did, in the order of time.
        memory: the most bytes of memory that the participants and their jobs took.
    """

    workshop: str
    people: int
    interrupted: bool = False
    exercises: tuple[str, ...]
    cluster: str
    seconds: float
    attempts: tuple[Attempt, ...]
    memory: int = 0

    @property
    def failures(self) -> tuple[Attempt, ...]:
        """The attempts that failed."""
        return tuple(attempt for attempt in self.attempts if not attempt.ok)

    def first_accuracies(self) -> dict[str, float]:
        """Return the seconds of each participant to the first accuracy."""
        first: dict[str, float] = {}
        for each in self.attempts:
            if each.accuracy is not None:
                first[each.person] = min(each.after, first.get(each.person, each.after))
        return first


def summary(report: Report) -> dict[str, str]:
    """Return the report in a few lines: name -> value."""
    first = report.first_accuracies().values()
    queued = [each.queued for each in report.attempts if each.queued is not None]
    return {
        "workshop": f"{report.workshop}, {counted(report.people, 'participant')}",
        "cluster": report.cluster,
        "duration": human_time(report.seconds) + (", interrupted" if report.interrupted else ""),
        "first accuracy": f"{_spread(first)}; {len(first)} of "
        f"{counted(report.people, 'participant')}",
        "in the queue": f"{_spread(queued)}, of each job",
        "failures": str(len(report.failures)),
        "memory": human_size(report.memory),
    }


def _spread(seconds: Collection[float]) -> str:
    """Format the median, the time in which nine of ten were done, and the longest."""
    if not seconds:
        return "none"
    ordered = sorted(seconds)
    most = ordered[ceil(0.9 * len(ordered)) - 1]
    return (
        f"{human_time(median(ordered))} (median), {human_time(most)} (90 %), "
        f"{human_time(ordered[-1])} (last)"
    )


def rows(report: Report) -> list[tuple[str, ...]]:
    """Return a table of the participants: first accuracy, and each exercise's state and time."""
    cells = {(each.person, each.exercise): _cell(each) for each in report.attempts}
    first = report.first_accuracies()
    people = sorted({each.person for each in report.attempts})
    columns = (JOIN, *report.exercises)
    return [
        ("PARTICIPANT", "FIRST ACCURACY", *columns),
        *(
            (
                person,
                human_time(first[person]) if person in first else "-",
                *(cells.get((person, name), "-") for name in columns),
            )
            for person in people
        ),
    ]


def _cell(attempt: Attempt) -> str:
    if not attempt.ok:
        return f"FAILED {human_time(attempt.after)}"
    accuracy = "ok" if attempt.accuracy is None else f"{attempt.accuracy:.3f}"
    waited = "" if attempt.queued is None else f", queued {human_time(attempt.queued)}"
    return f"{accuracy} at {human_time(attempt.after)}{waited}"


def causes(report: Report) -> Iterator[tuple[str, str]]:
    """Yield each cause of failures with its fix, the most frequent first."""
    groups: dict[tuple[str, str], list[str]] = {}
    for each in report.failures:
        name = rf"(?<![\w-]){re.escape(each.person)}(?![\w-])"
        text = re.sub(name, "USER", f"{each.cause}; {each.fix}".rstrip("; "))
        groups.setdefault((each.exercise, text), []).append(each.person)
    for (exercise, text), people in sorted(groups.items(), key=lambda item: -len(item[1])):
        yield f"{exercise} ({counted(len(people), 'participant')})", text
