"""Rehearse a workshop: all participants join and run every exercise at the same time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from toolkit import shell
from toolkit.errors import ForbiddenError, UsageError
from toolkit.shell import Progress, interrupted_by_signals
from toolkit.text import one_line
from toolkit.units import counted
from toolkit.workshops import archive, pack, results
from toolkit.workshops.model import WORKSHOP, Workshop
from toolkit.workshops.reading import job_of, load, source_of
from toolkit.workshops.rehearsal import accounts
from toolkit.workshops.rehearsal.accounts import Person, Tool
from toolkit.workshops.rehearsal.report import JOIN, Attempt, Report
from toolkit.workshops.rehearsal.stage import HOME, Stage, clean, stage, temporary_place

_FORMAT = "%u|%j|%V|%S"
_EVERY = 1.0  # seconds between two measurements of memory
_PARENT = Path("/var/tmp")  # of rehearsals with users
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


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


def rehearse(folder: Path, options: Options, progress: Progress) -> Report:
    """Rehearse on a local cluster with real users; nothing of it is left afterwards.

    Raises:
        ForbiddenError: this user is not root.
        UsageError: no exercise of the workshop has a job.
    """
    workshop = load(folder)
    exercises = _exercises(folder, workshop, options, progress)
    if os.geteuid() != 0:
        raise ForbiddenError(
            "only root can create the users of a rehearsal",
            place="toolkit workshop rehearse",
            next_step="run it as root, on a machine of your own",
        )
    clean(_PARENT, progress)
    with (
        interrupted_by_signals(),
        temporary_place(_PARENT) as place,
        accounts.users(options.people, place / HOME) as people,
    ):
        tool = accounts.provide_tool(people[0], place / "tool")
        results.open_directory(place / "results")
        # Packed and unpacked again, as the real one.
        source, packed = place / "workshop", place / "workshop.tar"
        options_of_pack = pack.Options(results=str(place / "results"), only=options.only)
        pack.pack(folder, packed, options_of_pack, progress)
        progress.begin("unpack", packed.name)
        archive.unpack(packed, source)
        packed.unlink()
        progress.end()
        with stage(workshop, options.nodes, place, progress) as cluster:
            crew = Crew(exercises, _commands(tool, place, cluster), options.limit)
            busy = _busy()
            memory = _run(crew, people, source, progress)
            seconds = round(time.monotonic() - crew.began, 1)
            return Report(
                workshop=folder.resolve().name,
                people=len(people),
                interrupted=crew.stopped,
                exercises=exercises,
                cluster=cluster.about,
                seconds=seconds,
                attempts=_attempts(crew, cluster),
                cpus=os.cpu_count() or 1,
                cpu_seconds=round(_busy() - busy, 1),
                memory=memory,
                disk=tuple(_size_of(person.home) for person in people),
                shared=_size_of(source),
            )


def _commands(tool: Tool, place: Path, cluster: Stage) -> Callable[..., tuple[str, ...]]:
    """Return a function that makes a command of the toolkit one of a participant."""
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

    return argv


def clean_up(progress: Progress) -> list[Path]:
    """Remove what killed rehearsals have left here; return their directories."""
    return clean(_PARENT, progress) if os.geteuid() == 0 else []


def _exercises(
    folder: Path, workshop: Workshop, options: Options, progress: Progress
) -> tuple[str, ...]:
    """Return the exercises to run, which are those with a job."""
    jobs = {each.name: job_of(source_of(folder, each)) is not None for each in workshop.exercises}
    names = [name for name, has_job in jobs.items() if has_job]
    if not names:
        raise UsageError(
            "no exercise can run: all are notebooks",
            place=f"{WORKSHOP}, table exercises",
            next_step="add an exercise with a job.toml",
        )
    wrong = next((name for name in options.only if name not in names), None)
    if wrong is not None:
        raise UsageError(
            f"no exercise that can run is called {wrong}",
            place="--only",
            choices=names,
            value=wrong,
            next_step=f"--only with one of: {', '.join(names)}",
        )
    notebooks = sorted(jobs.keys() - set(names))
    if notebooks and not options.only:
        progress.say("left out", f"{', '.join(notebooks)}: notebooks")
    return tuple(name for name in names if name in options.only or not options.only)


def _run(crew: Crew, people: list[Person], source: Path, progress: Progress) -> int:
    """Let all participants work; an interrupt ends their commands.

    Returns:
        The most bytes of memory that they took, measured every second.
    """
    number = counted(len(people), "participant")
    progress.begin("rehearsal", f"{number}, {', '.join(crew.exercises)}")
    crew.began = time.monotonic()
    before, most = _available(), 0
    with ThreadPoolExecutor(len(people)) as pool:
        left = {pool.submit(crew.participate, each, source) for each in people}
        try:
            while left:
                done, left = wait(left, timeout=_EVERY)
                for future in done:
                    future.result()
                most = max(most, before - _available())
        except KeyboardInterrupt:  # what has been done so far is reported
            crew.stop()
        except BaseException:
            crew.stop()
            raise
    progress.end("interrupted" if crew.stopped else "done")
    return most


def _attempts(crew: Crew, cluster: Stage) -> tuple[Attempt, ...]:
    """Return the attempts in the order of their ends, with how long each job waited."""
    question = ("squeue", "--noheader", "--states=all", f"--format={_FORMAT}")
    answer = shell.run((*cluster.words(Path("/")), *question))
    waited = {}
    for line in answer.stdout.splitlines():
        user, _, rest = line.partition("|")
        name, submitted, started = rest.rsplit("|", 2)
        with contextlib.suppress(ValueError):  # N/A: it has not started
            passed = datetime.fromisoformat(started) - datetime.fromisoformat(submitted)
            waited[(user, name)] = max(0.0, passed.total_seconds())
    ordered = sorted(crew.attempts, key=lambda each: each.after)
    return tuple(replace(each, queued=waited.get((each.person, each.exercise))) for each in ordered)


def _available() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def _busy() -> float:
    """Return the seconds that all CPUs together were busy since the machine started."""
    words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    user, nice, system, _idle, _wait, irq, softirq = map(int, words[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _size_of(directory: Path) -> int:
    """Return the bytes that the files below a directory take on the disk."""
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total


MINE = "mine"  # the directory of a participant


class Crew:
    """The participants, their commands, and what they have done.

    Attributes:
        attempts: what they have done.
        stopped: their commands were ended early.
        began: when the first command began.
    """

    def __init__(
        self, exercises: tuple[str, ...], argv: Callable[..., tuple[str, ...]], limit: float
    ) -> None:
        self.exercises, self._argv, self._limit = exercises, argv, limit
        self.attempts: list[Attempt] = []
        self._running: set[subprocess.Popen[str]] = set()
        self._lock, self.stopped = threading.Lock(), False
        self.began = time.monotonic()

    def participate(self, person: Person, source: Path) -> None:
        """Join as one participant, and run every exercise."""
        mine = person.home / MINE
        join = ("workshop", "join", str(source), str(mine), "--json", "--share-results")
        commands: dict[str, tuple[str, ...]] = {JOIN: join}
        commands |= {name: ("run", "--json", name) for name in self.exercises}
        for name, words in commands.items():
            began = time.monotonic() - self.began
            directory = person.home if name == JOIN else mine
            code, answer, tail = self._call(person, directory, words)
            after = time.monotonic() - self.began
            if self.stopped:
                return
            if code == -signal.SIGKILL:
                tail = f"it was ended after {self._limit:.0f} s"
                # Others wait for the nodes of its job.
                newest = max((mine / "runs").glob(f"{name}-*"), default=None)
                if newest is not None:
                    self._call(person, mine, ("cancel", newest.name))
            cause, fix = ("", "") if code == 0 else self._cause(person, answer, tail)
            accuracy = (answer.get("results") or {}).get("accuracy")
            attempt = Attempt(
                person=person.name,
                exercise=name,
                ok=code == 0,
                began=round(began, 1),
                after=round(after, 1),
                accuracy=float(accuracy) if isinstance(accuracy, int | float) else None,
                cause=one_line(cause),
                fix=one_line(fix),
            )
            with self._lock:
                self.attempts.append(attempt)
            if name == JOIN and code != 0:
                return

    def _cause(self, person: Person, answer: dict[str, Any], tail: str) -> tuple[str, str]:
        """Return why a command failed and what to do, by explain if there is a run."""
        if "run" in answer:
            words = ("explain", "--json", str(answer["run"]))
            _, explained, _ = self._call(person, person.home / MINE, words)
            match = explained.get("match") or {}
            cause = match.get("cause") or explained.get("first") or answer.get("message") or tail
            return str(cause), str((match.get("fix") or [""])[0])
        findings = [
            finding
            for finding in answer.get("findings") or ()
            if finding.get("outcome", "FAIL") == "FAIL"
        ]
        causes = [str(each.get("cause") or each.get("detail") or "") for each in findings]
        steps = [str(each["next_step"]) for each in findings if each.get("next_step")]
        return "; ".join(causes) or tail, "; ".join(steps)

    def _call(
        self, person: Person, cwd: Path, words: tuple[str, ...]
    ) -> tuple[int, dict[str, Any], str]:
        """Run `toolkit` as a participant; return its exit code, its JSON and the line of its error.

        After the limit the whole group of its processes is killed.
        """
        with self._lock:
            if self.stopped:
                return 130, {}, "stopped"
            process = shell.start(self._argv(person, cwd, words), cwd="/", new_session=True)
            self._running.add(process)
        try:
            stdout, stderr = process.communicate(timeout=self._limit)
        except subprocess.TimeoutExpired:
            _kill(process)
            stdout, stderr = process.communicate()
        finally:
            with self._lock:
                self._running.discard(process)
        try:
            data = json.loads(stdout)
        except (ValueError, RecursionError):
            data = {}
        lines = [line for line in stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("error:")]
        last = (errors or lines or [""])[-1]
        return process.returncode, data if isinstance(data, dict) else {}, last

    def stop(self) -> None:
        """End all commands of the participants."""
        with self._lock:
            self.stopped = True
            for process in self._running:
                _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
