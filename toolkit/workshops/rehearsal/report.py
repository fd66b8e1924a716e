"""The report of a rehearsal: data, and its forms as text and as HTML. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import ceil
from statistics import median

from toolkit import reports
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
        began: seconds from the first command of the rehearsal to the beginning.
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
    began: float = 0.0
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
        cpus: of this machine, on which all nodes are.
        cpu_seconds: that these CPUs were busy.
        memory: the most bytes of memory that the participants and their jobs took.
    """

    workshop: str
    people: int
    interrupted: bool = False
    exercises: tuple[str, ...]
    cluster: str
    seconds: float
    attempts: tuple[Attempt, ...]
    cpus: int = 0
    cpu_seconds: float = 0.0
    memory: int = 0

    @property
    def failures(self) -> tuple[Attempt, ...]:
        """The attempts that failed."""
        return tuple(attempt for attempt in self.attempts if not attempt.ok)

    def first_accuracies(self) -> dict[str, tuple[float, float]]:
        """Return the seconds of each participant from the own first command to the first accuracy.

        The second number is how many of these the jobs waited in the queue.
        """
        first: dict[str, tuple[float, float]] = {}
        began: dict[str, float] = {}
        queued: dict[str, float] = {}
        for each in sorted(self.attempts, key=lambda each: each.after):
            began.setdefault(each.person, each.began)
            queued[each.person] = queued.get(each.person, 0.0) + (each.queued or 0.0)
            if each.accuracy is not None:
                seconds = each.after - began[each.person]
                first.setdefault(each.person, (seconds, queued[each.person]))
        return first


def summary(report: Report) -> dict[str, str]:
    """Return the report in a few lines: name -> value."""
    first = report.first_accuracies().values()
    queued = [each.queued for each in report.attempts if each.queued is not None]
    return {
        "workshop": f"{report.workshop}, {counted(report.people, 'participant')}",
        "cluster": report.cluster,
        "duration": human_time(report.seconds) + (", interrupted" if report.interrupted else ""),
        "first accuracy": f"{_spread([seconds for seconds, _ in first])}, from the own first "
        f"command; {len(first)} of {counted(report.people, 'participant')}",
        "of it queued": _spread([waited for _, waited in first]) if queued else "unknown",
        "in the queue": f"{_spread(queued)}, of each job" if queued else "unknown",
        "failures": str(len(report.failures)),
        "machine": _machine(report),
        "memory": human_size(report.memory),
    }


def _machine(report: Report) -> str:
    busy = report.cpu_seconds / max(report.seconds * report.cpus, 1.0)
    each = report.cpu_seconds / max(report.people, 1)
    return (
        f"{counted(report.cpus, 'CPU')}, {min(busy, 1.0):.0%} busy; "
        f"{each:.1f} s of CPU for each participant"
    )


def _spread(seconds: Sequence[float]) -> str:
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
            (person, _first(first.get(person)), *(cells.get((person, n), "-") for n in columns))
            for person in people
        ),
    ]


def _first(first: tuple[float, float] | None) -> str:
    if first is None:
        return "-"
    return f"after {human_time(first[0])}, queued {human_time(first[1])}"


def _cell(attempt: Attempt) -> str:
    if not attempt.ok:
        return f"FAILED {human_time(attempt.after)}"
    accuracy = "ok" if attempt.accuracy is None else f"{attempt.accuracy:.3f}"
    waited = "" if attempt.queued is None else f", queued {human_time(attempt.queued)}"
    return f"{accuracy} at {human_time(attempt.after)}{waited}"


def causes(report: Report) -> Iterator[tuple[str, str]]:
    """Yield each cause of failures with its fix, the most frequent first."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for each in report.failures:
        cause, fix = (_of_anyone(text, each.person) for text in (each.cause, each.fix))
        groups.setdefault((each.exercise, cause, fix), []).append(each.person)
    for (exercise, cause, fix), people in sorted(groups.items(), key=lambda item: -len(item[1])):
        yield f"{exercise} ({counted(len(people), 'participant')})", f"{cause}; {fix}".rstrip("; ")


def _of_anyone(text: str, person: str) -> str:
    """Return a text without the name of a participant."""
    return re.sub(rf"(?<![\w-]){re.escape(person)}(?![\w-])", "USER", text)


def to_html(report: Report) -> str:
    """Return the report as a page of HTML that requests nothing from outside."""
    return reports.render(
        "rehearsal.html.j2",
        title=f"Rehearsal of {report.workshop}",
        summary=summary(report),
        people=rows(report),
        causes=list(causes(report)),
    )
