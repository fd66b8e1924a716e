"""Report what all processes of a run are doing, from their stacks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from toolkit import launchers
from toolkit.model.plan import Plan
from toolkit.runs.blame import rank_of
from toolkit.runs.error_records import is_starter
from toolkit.runs.stacks import (
    Frame,
    Position,
    Process,
    Stacks,
    is_idle_worker,
    numbers_text,
    position,
)

_SEPARATE = ("none", "ray", "submitit")
_MOST_GROUPS = 12  # in the summary; all stacks follow it


class Answer(NamedTuple):
    """The answer of one process.

    Attributes:
        process: whose it is.
        stacks: of its threads; None if it has not written them.
        before: those that it had written before; None if it was not asked.
        has_ended: it noted its end.
    """

    process: Process
    stacks: Stacks | None = None
    before: Stacks | None = None
    has_ended: bool = False

    @property
    def main(self) -> tuple[Frame, ...]:
        """The stack of its main thread."""
        return (self.stacks or {}).get(self.process.main, ())


class Standing(NamedTuple):
    """The activity of one rank, or of another process of a run without ranks.

    Attributes:
        label: ``3``, in an array ``2.3``; of another process ``1234 on nid001``.
        rank: its number; None if it has none.
        answer: of the rank's process.
        position: None if it has not answered.
        text: ``waits in all_reduce (train.py:31)``, and in the plural.
        moved: it was elsewhere when it was asked before; None if it was not asked.
    """

    label: str
    rank: int | None
    answer: Answer
    position: Position | None
    texts: tuple[str, str]
    moved: bool | None = None
    from_text: str = ""


Code = Callable[[Frame], str]


def standings(answers: Sequence[Answer], plan: Plan, code: Code) -> list[Standing]:
    """Return what each rank is doing, in order; of each rank one process is chosen."""
    by_rank: dict[tuple[int, int], list[Answer]] = {}
    others: list[Answer] = []
    starters: list[Answer] = []
    for answer in answers:
        rank = rank_of(answer.process.report, plan.launch.launcher)
        if rank is not None:
            by_rank.setdefault((_element(answer), rank), []).append(answer)
        else:
            is_agent = is_starter(answer.process.report.program)
            (starters if is_agent else others).append(answer)
    if by_rank:
        chosen = [
            (f"{element}.{rank}" if plan.array else str(rank), rank, _chosen(several, code))
            for (element, rank), several in sorted(by_rank.items())
        ]
        return [_standing(label, rank, answer, answers, code) for label, rank, answer in chosen]
    return [
        _standing(f"{answer.process.report.pid} on {answer.process.report.host}", None, *rest)
        for answer in others or starters  # such as agents that wait for each other
        if answer.stacks is not None
        for rest in ((answer, answers, code),)
    ]


def _element(answer: Answer) -> int:
    number = answer.process.report.env.get("SLURM_ARRAY_TASK_ID", "")
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else 0


def _chosen(several: Sequence[Answer], code: Code) -> Answer:
    """Return the process of a rank that others wait for: no helper of it, no wrapper around it."""

    def order(answer: Answer) -> tuple[bool, bool, bool, bool, int]:
        where = position(answer.main, code) if answer.stacks is not None else None
        return (
            where is None,
            bool(answer.process.report.process) and answer.process.report.index is None,
            where is None or where.kind != "collective",
            where is None or where.frame is None or where.name.startswith("subprocess."),
            answer.process.report.pid,
        )

    return min(several, key=order)


def _standing(
    label: str, rank: int | None, answer: Answer, answers: Sequence[Answer], code: Code
) -> Standing:
    if answer.stacks is None:
        text = (
            "has ended" if answer.has_ended else "does not answer: its process is gone or stopped"
        )
        return Standing(label, rank, answer, None, (text, _plural(text)))
    where = position(answer.main, code)
    more = _worker_text(answer, answers, code) if where.kind == "loader" else ""
    earlier = (answer.before or {}).get(answer.process.main)
    return Standing(
        label,
        rank,
        answer,
        where,
        (where.text() + more, where.text(plural=True) + more),
        None if earlier is None else earlier != answer.main,
        "" if earlier is None else position(earlier, code).text(),
    )


def _plural(text: str) -> str:
    return (
        text.replace("has ", "have ")
        .replace("does ", "do ")
        .replace("its process is", "their processes are")
    )


def _worker_text(answer: Answer, answers: Sequence[Answer], code: Code) -> str:
    """Return where the workers are that a data loader waits for."""
    report = answer.process.report
    places = {
        position(other.main, code).text()
        for other in answers
        if other.process.parent == report.pid
        and other.process.report.host == report.host
        and other.stacks is not None
        and not is_idle_worker(other.main)
    }
    return f", whose worker {min(places)}" if places else ""


def summary(stands: Sequence[Standing], plan: Plan) -> str:
    """Return all of it as one sentence, those who wait for others first."""
    noun = launchers.get(plan.launch.launcher).task_noun
    groups: dict[tuple[str, str], list[Standing]] = {}
    for stand in stands:
        groups.setdefault(stand.texts, []).append(stand)
    ordered = sorted(groups.values(), key=lambda group: (_order(group[0]), -len(group)))
    parts = [
        f"{subject(group, noun)} {group[0].texts[len(group) > 1]}"
        for group in ordered[:_MOST_GROUPS]
    ]
    if len(ordered) > _MOST_GROUPS:
        parts.append(f"and {len(ordered) - _MOST_GROUPS} other places")
    if missing := without_file(stands, plan):
        verb = "have" if len(missing) > 1 else "has"
        parts.append(f"{_subject(missing, noun)} {verb} written no file: no Python has started")
    return "; ".join(parts)


def _order(stand: Standing) -> int:
    kinds = ("collective", "gpu", "loader", "code")
    return kinds.index(stand.position.kind) if stand.position else len(kinds)


def subject(group: Sequence[Standing], noun: str) -> str:
    """Return who is meant: ``ranks 0, 1, 3``, or ``processes 7 on nid001``."""
    numbers = [stand.rank for stand in group if stand.rank is not None]
    if len(numbers) == len(group) and all("." not in stand.label for stand in group):
        return _subject(numbers, noun)
    word = noun if numbers else "process"
    plural = "" if len(group) == 1 else "es" if word == "process" else "s"
    few = [stand.label for stand in group[:8]]
    return f"{word}{plural} {', '.join(few)}{', ...' if len(group) > 8 else ''}"


def _subject(numbers: Sequence[int], noun: str) -> str:
    return f"{noun}{'s' if len(numbers) > 1 else ''} {numbers_text(numbers)}"


def without_file(stands: Sequence[Standing], plan: Plan) -> list[int]:
    """Return the ranks that should be there and have no file; empty if their number is open."""
    known = {stand.rank for stand in stands}
    if None in known or not known or plan.array or plan.least_nodes or plan.gpus_by_node:
        return []
    return sorted(set(range(plan.nodes * plan.ranks_per_node)) - known)


def moved_text(stands: Sequence[Standing], noun: str) -> str:
    """Return what has moved since the ranks were asked before; empty if they were not."""
    compared = [stand for stand in stands if stand.moved is not None]
    if not compared:
        return ""
    stayed = [stand for stand in compared if not stand.moved]
    moved = [stand for stand in compared if stand.moved]
    if not moved:
        return (
            "nothing has moved" if len(compared) > 1 else f"{subject(stayed, noun)} has not moved"
        )
    parts = [
        f"{subject([stand], noun)} was elsewhere: it {stand.from_text}"
        for stand in moved[:_MOST_GROUPS]
    ]
    if len(moved) > _MOST_GROUPS:
        parts = [f"{subject(moved, noun)} have moved"]
    if stayed:
        parts.append(f"{subject(stayed, noun)} {'have' if len(stayed) > 1 else 'has'} not moved")
    return "; ".join(parts)


def apart_text(worlds: Sequence[int], plan: Plan) -> str:
    """Return how ranks trained that did not all meet; empty if they did, or were not meant to.

    Args:
        worlds: with how many ranks each rank has trained.
        plan: of the run. Tasks of the launcher none, and elements of an array, are on purpose.
    """
    is_one = not (plan.array or plan.least_nodes) and plan.launch.launcher not in _SEPARATE
    size = max(worlds, default=0)
    if not is_one or size >= len(worlds):
        return ""
    if size == 1:
        return f"{len(worlds)} ranks trained alone: world size 1 each"
    sizes = sorted(set(worlds), reverse=True)
    if len(sizes) > 1:
        shown = ", ".join(f"{worlds.count(each)} in worlds of {each}" for each in sizes)
        return f"{len(worlds)} ranks trained apart: {shown}"
    groups = -(-len(worlds) // size)
    return f"{len(worlds)} ranks trained in {groups} groups of {size}, which never met"


class Group(NamedTuple):
    """Threads with equal stacks.

    Attributes:
        ranks: labels of the ranks that they are of.
        others: names of other processes that they are of.
        frames: the innermost first.
        is_main: they are main threads.
    """

    ranks: tuple[str, ...]
    others: tuple[str, ...]
    frames: tuple[Frame, ...]
    is_main: bool

    def owners(self, noun: str) -> str:
        """Return whose they are: ``ranks 0, 1, 3``."""
        numbers = [int(label) for label in self.ranks if label.isdigit()]
        few = ", ".join(self.ranks[:8]) if len(numbers) < len(self.ranks) else numbers_text(numbers)
        ranks = [f"{noun}{'s' if len(self.ranks) > 1 else ''} {few}"] if self.ranks else []
        more = ["..."] if len(self.others) > 4 else []
        thread = "" if self.is_main else ": another thread"
        return ", ".join([*ranks, *self.others[:4], *more]) + thread


def equal_stacks(answers: Iterable[Answer], stands: Sequence[Standing]) -> list[Group]:
    """Return the stacks of all threads, equal ones together; those of ranks' main threads first."""
    labels = {id(stand.answer): stand.label for stand in stands if stand.rank is not None}
    groups: dict[tuple[bool, tuple[Frame, ...]], tuple[list[str], list[str]]] = {}
    for answer in sorted(answers, key=lambda answer: _order_of_label(labels.get(id(answer)))):
        report, label = answer.process.report, labels.get(id(answer))
        name = f"process {report.pid} on {report.host} ({report.process or report.program})"
        for ident, frames in (answer.stacks or {}).items():
            ranks, others = groups.setdefault((ident == answer.process.main, frames), ([], []))
            names = others if label is None else ranks
            names += [label or name] if not names or names[-1] != (label or name) else []
    ordered = sorted(groups.items(), key=lambda item: (not item[1][0], not item[0][0]))
    return [
        Group(tuple(ranks), tuple(others), frames, is_main)
        for (is_main, frames), (ranks, others) in ordered
    ]


def _order_of_label(label: str | None) -> tuple[int, ...]:
    return tuple(map(int, label.split("."))) if label else (1 << 62,)
