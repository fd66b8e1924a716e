"""The report of a rehearsal: data, and its forms as text and as HTML. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
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
        exercises: in their order.
        cluster: on which it ran, as text.
        seconds: the whole time of all participants.
        attempts: what the participants did, in the order of time.
        controller_cpu: seconds of CPU that slurmctld took; None if it is unknown.
        controller_memory: the most bytes of memory that slurmctld took.
        memory: the most bytes of memory that the participants and their jobs took.
        disk: the bytes in the directory of each participant.
        shared: the bytes of the unpacked workshop.
    """

    workshop: str
    people: int
    exercises: tuple[str, ...]
    cluster: str
    seconds: float
    attempts: tuple[Attempt, ...]
    controller_cpu: float | None = None
    controller_memory: int = 0
    memory: int = 0
    disk: tuple[int, ...] = ()
    shared: int = 0

    @property
    def failures(self) -> tuple[Attempt, ...]:
        """The attempts that failed."""
        return tuple(attempt for attempt in self.attempts if not attempt.ok)

    def first_accuracies(self) -> list[float]:
        """Return for each participant with an accuracy the seconds until the first one, sorted."""
        first: dict[str, float] = {}
        for attempt in self.attempts:
            if attempt.accuracy is not None:
                first[attempt.person] = min(attempt.after, first.get(attempt.person, attempt.after))
        return sorted(first.values())


def summary(report: Report) -> dict[str, str]:
    """Return the report in a few lines: name -> value."""
    first = report.first_accuracies()
    queued = [each.queued for each in report.attempts if each.queued is not None]
    load = (
        f"{report.controller_cpu:.1f} s of CPU in {human_time(report.seconds)}, "
        f"{human_size(report.controller_memory)}"
    )
    return {
        "workshop": f"{report.workshop}, {counted(report.people, 'participant')}",
        "cluster": report.cluster,
        "duration": human_time(report.seconds),
        "first accuracy": f"{_spread(first)} after the first command; {len(first)} of "
        f"{counted(report.people, 'participant')}",
        "in the queue": _spread(queued),
        "failures": str(len(report.failures)),
        "controller": "unknown" if report.controller_cpu is None else load,
        "memory": human_size(report.memory),
        "disk": f"{human_size(max(report.disk, default=0))} for each participant, "
        f"{human_size(report.shared)} for all together",
    }


def _spread(seconds: Sequence[float]) -> str:
    if not seconds:
        return "none"
    return f"{human_time(median(seconds))} (median), {human_time(max(seconds))} (last)"


def rows(report: Report) -> list[tuple[str, ...]]:
    """Return a table of the participants: state, accuracy and time of each exercise."""
    cells = {(each.person, each.exercise): _cell(each) for each in report.attempts}
    people = sorted({each.person for each in report.attempts})
    columns = (JOIN, *report.exercises)
    return [
        ("PARTICIPANT", *columns),
        *((person, *(cells.get((person, name), "-") for name in columns)) for person in people),
    ]


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
        groups.setdefault((each.exercise, each.cause, each.fix), []).append(each.person)
    for (exercise, cause, fix), people in sorted(groups.items(), key=lambda item: -len(item[1])):
        yield f"{exercise} ({counted(len(people), 'participant')})", f"{cause}; {fix}".rstrip("; ")


def to_html(report: Report) -> str:
    """Return the report as a page of HTML that requests nothing from outside."""
    header, *people = rows(report)
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            f"<title>Rehearsal of {escape(report.workshop)}</title>",
            "<style>body { font-family: system-ui, sans-serif; margin: 2rem; }",
            "td, th { padding: .2rem .7rem; text-align: left; border-bottom: 1px solid #ccc; }",
            "</style></head><body>",
            f"<h1>Rehearsal of {escape(report.workshop)}</h1>",
            _table([], summary(report).items()),
            "<h2>Participants</h2>",
            _table(header, people),
            "<h2>Failures</h2>",
            _table(["Where", "Cause"], causes(report)),
            "</body></html>\n",
        )
    )


def _table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = ("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in lines)
    return "\n".join(("<table>", f"<tr>{head}</tr>" if head else "", *body, "</table>"))
