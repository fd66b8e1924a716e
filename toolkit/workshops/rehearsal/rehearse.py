"""Rehearse a workshop: all participants join and run every exercise at the same time."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from toolkit import shell
from toolkit.errors import CommandFailedError, UsageError
from toolkit.shell import Progress, interrupted_by_signals
from toolkit.units import counted
from toolkit.workshops import archive, pack, results
from toolkit.workshops.model import WORKSHOP, Workshop
from toolkit.workshops.reading import job_of, load, source_of
from toolkit.workshops.rehearsal import accounts
from toolkit.workshops.rehearsal.accounts import Person
from toolkit.workshops.rehearsal.crew import Crew
from toolkit.workshops.rehearsal.report import Report
from toolkit.workshops.rehearsal.stage import HOME, Stage, clean, stage, temporary_place

_FORMAT = "%u|%j|%V|%S"
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
    accounts.require_root()
    clean(_PARENT, progress)
    with (
        interrupted_by_signals(),
        temporary_place(_PARENT) as place,
        accounts.users(options.people, place / HOME) as people,
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

            crew = Crew(exercises, argv, options.limit)
            with measuring() as measures:
                _run(crew, people, source, progress)
            return _report(folder, crew, people, source, measures, cluster)


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


def _run(crew: Crew, people: list[Person], source: Path, progress: Progress) -> None:
    """Let all participants work; an interrupt ends their commands."""
    progress.begin(
        "rehearsal", f"{counted(len(people), 'participant')}, {', '.join(crew.exercises)}"
    )
    crew.began = time.monotonic()
    with ThreadPoolExecutor(len(people)) as pool:
        futures = [pool.submit(crew.participate, each, source) for each in people]
        try:
            for future in futures:
                future.result()
        except KeyboardInterrupt:  # what has been done so far is reported
            crew.stop()
        except BaseException:
            crew.stop()
            raise
    progress.end("interrupted" if crew.stopped else "done")


def _report(
    folder: Path,
    crew: Crew,
    people: list[Person],
    source: Path,
    measures: Measures,
    cluster: Stage,
) -> Report:
    queued = _queued(cluster)
    attempts = [
        replace(each, queued=queued.get((each.person, each.exercise)))
        for each in sorted(crew.attempts, key=lambda each: each.after)
    ]
    return Report(
        workshop=folder.resolve().name,
        people=len(people),
        interrupted=crew.stopped,
        exercises=crew.exercises,
        cluster=cluster.about,
        seconds=round(time.monotonic() - crew.began, 1),
        attempts=tuple(attempts),
        cpus=os.cpu_count() or 1,
        cpu_seconds=measures.cpu,
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


_EVERY = 1.0  # seconds


class Measures:
    """Measured values so far.

    Attributes:
        memory: the most bytes of memory that were taken since the beginning.
        cpu: seconds that the CPUs of this machine were busy.
    """

    def __init__(self) -> None:
        self._available, self._busy = _available(), _busy()
        self.memory, self.cpu = 0, 0.0

    def take(self) -> None:
        """Take a measurement."""
        self.memory = max(self.memory, self._available - _available())
        self.cpu = round(_busy() - self._busy, 1)


@contextlib.contextmanager
def measuring() -> Iterator[Measures]:
    """Measure until the block ends."""
    measures, stop = Measures(), threading.Event()

    def sample() -> None:
        while not stop.wait(_EVERY):
            measures.take()

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield measures
    finally:
        stop.set()
        thread.join()
        measures.take()


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


def size_of(directory: Path) -> int:
    """Return the bytes that the files below a directory take on the disk."""
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total
