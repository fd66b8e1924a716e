"""Rehearse a workshop: all participants join and run every exercise at the same time."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from toolkit import shell
from toolkit.errors import CommandFailedError, UsageError
from toolkit.model.job import Job
from toolkit.planning.cluster import find_cluster
from toolkit.progress import Progress
from toolkit.slurm.client import Client
from toolkit.terminal_text import one_line
from toolkit.workshops import archive, pack, results
from toolkit.workshops.model import Workshop
from toolkit.workshops.reading import job_of, load, source_of
from toolkit.workshops.rehearsal import accounts
from toolkit.workshops.rehearsal.accounts import Person
from toolkit.workshops.rehearsal.measure import Measures, measuring, size_of
from toolkit.workshops.rehearsal.report import JOIN, Attempt, Report
from toolkit.workshops.rehearsal.stage import (
    Stage,
    interrupted_by_signals,
    stage,
    temporary_place,
)

_FORMAT = "%u|%j|%V|%S"
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
_MINE = "mine"


class Options(NamedTuple):
    """Options of a rehearsal.

    Attributes:
        people: the number of participants.
        nodes: of each partition of the local cluster.
        limit: seconds after which a command of a participant is ended.
        only: the exercises to run; empty: all.
    """

    people: int
    nodes: int = 2
    limit: float = 3600
    only: tuple[str, ...] = ()


class _Crew:
    """The participants, their commands, and what they have done."""

    def __init__(
        self, exercises: tuple[str, ...], argv: Callable[..., tuple[str, ...]], limit: float
    ) -> None:
        self.exercises, self._argv, self._limit = exercises, argv, limit
        self.attempts: list[Attempt] = []
        self._running: set[subprocess.Popen[str]] = set()
        self._lock, self._stopped = threading.Lock(), False
        self.began = time.monotonic()

    def participate(self, person: Person, source: Path, join_options: tuple[str, ...]) -> None:
        """Join as one participant, and run every exercise."""
        words = ("workshop", "join", str(source), _MINE, "--json", *join_options)
        if not self._attempt(person, person.home, JOIN, words):
            return
        for name in self.exercises:
            self._attempt(person, person.home / _MINE, name, ("run", "--json", name))

    def _attempt(self, person: Person, cwd: Path, exercise: str, words: tuple[str, ...]) -> bool:
        code, answer, tail = self._call(person, cwd, words)
        if self._stopped:
            return False
        after = time.monotonic() - self.began
        cause, fix = ("", "") if code == 0 else self._cause(person, cwd, answer, tail)
        accuracy = (answer.get("results") or {}).get("accuracy")
        attempt = Attempt(
            person=person.name,
            exercise=exercise,
            ok=code == 0,
            after=round(after, 1),
            accuracy=float(accuracy) if isinstance(accuracy, int | float) else None,
            cause=cause,
            fix=fix,
        )
        with self._lock:
            self.attempts.append(attempt)
        return attempt.ok

    def _cause(
        self, person: Person, cwd: Path, answer: dict[str, Any], tail: str
    ) -> tuple[str, str]:
        """Return why a command failed and what to do, by explain if there is a run."""
        if "run" in answer:
            _, explained, _ = self._call(person, cwd, ("explain", "--json", str(answer["run"])))
            match = explained.get("match") or {}
            fix = (match.get("fix") or [""])[0]
            cause = match.get("cause") or explained.get("first") or answer.get("message") or tail
            return one_line(str(cause)), one_line(str(fix))
        findings = [
            finding
            for finding in answer.get("findings") or ()
            if finding.get("outcome", "FAIL") == "FAIL"
        ]
        causes = [str(each.get("cause") or each.get("detail") or "") for each in findings]
        steps = [str(each.get("next_step") or "") for each in findings]
        return one_line("; ".join(causes) or tail), one_line("; ".join(filter(None, steps)))

    def _call(
        self, person: Person, cwd: Path, words: tuple[str, ...]
    ) -> tuple[int, dict[str, Any], str]:
        """Run `toolkit` as a participant; return its exit code, its JSON and its last line."""
        with self._lock:
            if self._stopped:
                return 130, {}, "stopped"
            process = shell.start(self._argv(person, cwd, words), cwd="/", new_session=True)
            self._running.add(process)
        try:
            stdout, stderr = process.communicate(timeout=self._limit)
        except subprocess.TimeoutExpired:
            _kill(process)
            stdout, stderr = process.communicate()
            stderr += f"\nended after {self._limit:.0f} s"
        finally:
            with self._lock:
                self._running.discard(process)
        lines = [line for line in stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("error:")]
        return process.returncode, _json(stdout), (errors or lines or [""])[-1]

    def stop(self) -> None:
        """End all commands of the participants."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _json(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def rehearse(folder: Path, options: Options, progress: Progress) -> Report:
    """Rehearse on a local cluster with real users; nothing of it is left afterwards.

    Raises:
        ForbiddenError: this user is not root.
        UsageError: no exercise of the workshop has a job.
    """
    workshop = load(folder)
    exercises = _exercises(folder, workshop, options)
    with (
        interrupted_by_signals(),
        temporary_place(Path("/var/tmp")) as place,
        accounts.users(options.people, place / "home") as people,
    ):
        tool = accounts.provide_tool(people[0], place / "tool")
        results.open_directory(place / "results")
        source = _packed(folder, place, options.only, str(place / "results"), progress)
        with stage(workshop, options.nodes, place, progress) as cluster:
            env = {
                **tool.env,
                "TOOLKIT_ETC": str(place / "etc"),
                "TOOLKIT_SITE": cluster.site,
                "SLURM_CONF": str(cluster.paths.conf),
                "PATH": _PATH,
                "LANG": "C.UTF-8",
            }

            def argv(person: Person, cwd: Path, words: tuple[str, ...]) -> tuple[str, ...]:
                own = {"HOME": str(person.home), "USER": person.name, "LOGNAME": person.name}
                settings = (f"{name}={value}" for name, value in {**env, **own}.items())
                change = (*cluster.words(cwd), *person.become, "env", "-i", *settings)
                return (*change, tool.python, "-m", "toolkit", *words)

            crew = _Crew(exercises, argv, options.limit)
            with measuring(cluster.controller()) as measures:
                _run(crew, people, source, ("--share-results",), options.people, progress)
            return _report(folder, crew, people, source, cluster.about, measures, cluster)


def rehearse_on_site(folder: Path, options: Options, progress: Progress) -> Report:
    """Rehearse on the workshop's site as this user, with as many jobs as the reservation holds.

    Raises:
        SlurmUnreachableError: the site's Slurm cannot be reached.
        UsageError: no exercise of the workshop has a job.
    """
    import sys

    workshop = load(folder)
    exercises = _exercises(folder, workshop, options)
    client = Client(find_cluster(workshop.site or "auto").access)
    at_once = _at_once(folder, workshop, client)
    with temporary_place(Path.cwd()) as place:
        source = _packed(folder, place, options.only, "", progress)
        people = [
            Person(f"{number:02d}", place / f"{number:02d}")
            for number in range(1, options.people + 1)
        ]
        for person in people:
            person.home.mkdir()

        def argv(person: Person, cwd: Path, words: tuple[str, ...]) -> tuple[str, ...]:
            del person
            return ("env", "-C", str(cwd), sys.executable, "-m", "toolkit", *words)

        crew = _Crew(exercises, argv, options.limit)
        with measuring(None) as measures:
            _run(crew, people, source, ("--no-share-results",), at_once, progress)
        about = f"site {workshop.site or 'auto'}, {at_once} at once"
        return _report(folder, crew, people, source, about, measures, None)


def _at_once(folder: Path, workshop: Workshop, client: Client) -> int:
    """Return how many jobs of the largest exercise the reservation holds; 1 without one."""
    if not workshop.reservation:
        return 1
    answer = client.ask("scontrol", "show", "--oneliner", "reservation", workshop.reservation)
    match = re.search(r"\bNodeCnt=(\d{1,6})\b", answer.stdout)
    jobs = (job_of(source_of(folder, each)) or Job() for each in workshop.exercises)
    largest = max(_nodes(job) for job in jobs)
    return max(1, int(match[1]) // largest) if match else 1


def _nodes(job: Job) -> int:
    return int(re.split("[:-]", str(job.nodes or 1))[-1])


def _exercises(folder: Path, workshop: Workshop, options: Options) -> tuple[str, ...]:
    names = [
        each.name for each in workshop.exercises if job_of(source_of(folder, each)) is not None
    ]
    wrong = next((name for name in options.only if name not in names), None)
    if wrong is not None or not names:
        raise UsageError(
            f"no exercise with a job is called {wrong}" if wrong else "no exercise has a job",
            place="--only",
            choices=names,
            value=wrong or "",
        )
    return tuple(name for name in names if name in options.only or not options.only)


def _packed(
    folder: Path, place: Path, only: tuple[str, ...], drop: str, progress: Progress
) -> Path:
    """Pack the workshop and unpack it again, as for the real one."""
    packed, unpacked = place / "workshop.tar", place / "workshop"
    pack.pack(folder, packed, pack.Options(results=drop, only=only), progress)
    progress.begin("unpack", packed.name)
    archive.unpack(packed, unpacked)
    progress.end()
    packed.unlink()
    return unpacked


def _run(
    crew: _Crew,
    people: list[Person],
    source: Path,
    join_options: tuple[str, ...],
    at_once: int,
    progress: Progress,
) -> None:
    """Let all participants work; an interrupt ends their commands."""
    progress.begin("rehearsal", f"{len(people)} participants, {', '.join(crew.exercises)}")
    crew.began = time.monotonic()
    with ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(crew.participate, each, source, join_options) for each in people]
        try:
            for future in futures:
                future.result()
        except BaseException:
            crew.stop()
            raise
    progress.end()


def _report(
    folder: Path,
    crew: _Crew,
    people: list[Person],
    source: Path,
    about: str,
    measures: Measures,
    cluster: Stage | None,
) -> Report:
    queued = _queued(cluster) if cluster else {}
    attempts = [
        replace(each, queued=queued.get((each.person, each.exercise)))
        for each in sorted(crew.attempts, key=lambda each: each.after)
    ]
    return Report(
        workshop=folder.resolve().name,
        people=len(people),
        exercises=crew.exercises,
        cluster=about,
        seconds=round(time.monotonic() - crew.began, 1),
        attempts=tuple(attempts),
        controller_cpu=measures.controller_cpu,
        controller_memory=measures.controller_memory,
        memory=measures.memory,
        disk=tuple(size_of(person.home) for person in people),
        shared=size_of(source),
    )


def _queued(cluster: Stage) -> dict[tuple[str, str], float]:
    """Return how long each job waited, by user and exercise."""
    answer = shell.run(
        [*cluster.words(Path("/")), "squeue", "--noheader", "--states=all", f"--format={_FORMAT}"],
        check=False,
    )
    if not answer.ok:
        raise CommandFailedError("squeue failed", details=answer.tail(3))
    waited = {}
    for line in answer.stdout.splitlines():
        user, _, rest = line.partition("|")
        name, submitted, started = rest.rsplit("|", 2)
        with contextlib.suppress(ValueError):  # N/A: it has not started
            passed = datetime.fromisoformat(started) - datetime.fromisoformat(submitted)
            waited[(user, name)] = max(0.0, passed.total_seconds())
    return waited
