"""Rehearse a workshop: all participants join and run every exercise at the same time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from toolkit import shell, sites
from toolkit.errors import ForbiddenError, UsageError
from toolkit.files import read_json, read_text, remove_left, temporary_directory
from toolkit.localcluster import access
from toolkit.localcluster.imitation import adapt_site
from toolkit.localcluster.paths import Paths, paths_in
from toolkit.localcluster.shape import Plan, summary
from toolkit.shell import Progress, interrupted_by_signals
from toolkit.text import one_line
from toolkit.units import counted
from toolkit.workshops import archive, pack, results
from toolkit.workshops.exercises import job_of, load, source_of
from toolkit.workshops.join import to_toml
from toolkit.workshops.model import WORKSHOP, Workshop
from toolkit.workshops.rehearsal import accounts
from toolkit.workshops.rehearsal.accounts import Person
from toolkit.workshops.rehearsal.report import JOIN, Attempt, Report

NAME = "rehearsal"
HOME = "home"  # the participants' homes
_PARENT, _PREFIX = Path("/var/tmp"), "toolkit-rehearsal-"  # of this machine only
_LOCAL = ("", "auto", "local", "generic")  # sites of which nothing is imitated
_EVERY = 1.0  # seconds between two measurements of memory
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
_COMMANDS = Path(__file__).with_name("participant.sh").read_text(encoding="utf-8")


def rehearse(
    folder: Path, progress: Progress, *, people: int, nodes: int, only: Sequence[str] = ()
) -> Report:
    """Rehearse on a local cluster with real users; nothing of it is left afterwards.

    Args:
        folder: of the workshop.
        progress: shows the steps.
        people: the number of participants.
        nodes: of each partition of the local cluster.
        only: the exercises to run; empty: all that have a job.

    Raises:
        ForbiddenError: this user is not root.
        UsageError: there is no such exercise with a job.
    """
    workshop = load(folder)
    jobs = [each.name for each in workshop.exercises if job_of(source_of(folder, each)) is not None]
    exercises = tuple(name for name in jobs if name in (only or jobs))
    if not exercises or {*only} - {*jobs}:
        raise UsageError(
            f"the exercises with a job.toml are: {', '.join(jobs) or 'none'}",
            place="--only" if only else f"{WORKSHOP}, table exercises",
            next_step="notebooks are not rehearsed",
        )
    if notebooks := {each.name for each in workshop.exercises} - {*jobs}:
        progress.say("left out", f"{', '.join(sorted(notebooks))}: notebooks")
    if os.geteuid() != 0:
        raise ForbiddenError(
            "only root can create the users of a rehearsal",
            place="toolkit workshop rehearse",
            next_step="run it as root, on a machine of your own",
        )
    with (
        interrupted_by_signals(),
        temporary_place(progress) as place,
        accounts.users(people, place / HOME) as persons,
    ):
        reach = accounts.reach(persons[0], place / "tool")
        results.open_directory(place / "results")
        # Packed and unpacked again, as the real one.
        source, packed = place / "workshop", place / "workshop.tar"
        pack.pack(folder, packed, progress, results=str(place / "results"))
        progress.begin("unpack", packed.name)
        archive.unpack(packed, source)
        packed.unlink()
        progress.end()
        with stage(workshop, nodes, place, progress) as cluster:
            what = f"{counted(people, 'participant')}, {', '.join(exercises)}"
            progress.begin("rehearsal", what)
            words = (str(source), sys.executable, *exercises)
            began = time.time()
            memory, stopped = run_all(
                [_participant(reach, place, cluster, person, words) for person in persons]
            )
            progress.end("interrupted" if stopped else "done")
            return Report(
                workshop=folder.resolve().name,
                people=people,
                interrupted=stopped,
                exercises=exercises,
                cluster=cluster.about,
                seconds=round(time.time() - began, 1),
                attempts=attempts(
                    persons, () if stopped else (JOIN, *exercises), began, _waiting(cluster)
                ),
                memory=memory,
            )


def _participant(
    reach: Sequence[str], place: Path, cluster: Stage, person: Person, words: Sequence[str]
) -> tuple[str, ...]:
    """Return the command that makes a participant join, and run every exercise."""
    env = {
        "TOOLKIT_ETC": str(place / "etc"),
        "TOOLKIT_SITE": cluster.site,
        "SLURM_CONF": str(cluster.paths.conf),
        "PATH": _PATH,
        "LANG": "C.UTF-8",
        "HOME": str(person.home),
        "USER": person.name,
        "LOGNAME": person.name,
    }
    settings = (f"{name}={value}" for name, value in env.items())
    change = (*cluster.words(Path("/")), *reach, *person.become, "env", "-i", *settings)
    return (*change, "bash", "-c", _COMMANDS, "participant", *words)


def run_all(commands: Sequence[Sequence[str]]) -> tuple[int, bool]:
    """Run all commands at once; an interrupt ends them.

    Returns:
        The most bytes of memory that they took, measured every second, and whether they were ended.
    """
    before, most, is_stopped = _available(), 0, False
    processes: list[subprocess.Popen[str]] = []
    try:
        for command in commands:
            processes.append(shell.start(command, cwd="/", new_session=True))
        while any(process.poll() is None for process in processes):
            most = max(most, before - _available())
            time.sleep(_EVERY)
    except KeyboardInterrupt:  # what has been done so far is reported
        is_stopped = True
    finally:
        for process in processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return most, is_stopped


def attempts(
    people: Sequence[Person],
    expected: Sequence[str],
    began: float,
    waited: Mapping[tuple[str, str], float],
) -> tuple[Attempt, ...]:
    """Return what the participants did, in the order of their ends.

    Args:
        people: the participants, whose homes have what their commands left.
        expected: what each of them was to do: a participant who could not go on has failed.
        began: when the first command began, in seconds since 1970.
        waited: person and exercise -> seconds in the queue.
    """
    done: list[Attempt] = []
    for person in people:
        own: dict[str, Attempt] = {}
        for line in _text(person.home / "times").splitlines():
            with contextlib.suppress(ValueError):  # a line of a job
                name, code, end = line.rsplit(" ", 2)
                own[name] = _attempt(person, name, int(code), float(end) - began)
        lost = next((name for name in expected if name not in own), None)
        if lost is not None and (JOIN not in own or own[JOIN].ok):
            own[lost] = _attempt(person, lost, 1, time.time() - began)
        done += own.values()
    done = [replace(each, queued=waited.get((each.person, each.exercise))) for each in done]
    return tuple(sorted(done, key=lambda each: each.after))


def _attempt(person: Person, name: str, code: int, after: float) -> Attempt:
    accuracy = (_data(person.home / f"{name}.json").get("results") or {}).get("accuracy")
    cause, fix = _cause(person.home, name) if code else ("", "")
    return Attempt(
        person=person.name,
        exercise=name,
        ok=code == 0,
        after=round(after, 1),
        accuracy=float(accuracy) if isinstance(accuracy, int | float) else None,
        cause=one_line(cause),
        fix=one_line(fix),
    )


def _cause(home: Path, name: str) -> tuple[str, str]:
    """Return why a command failed and what to do: by explain, by its findings, by its messages."""
    answer, explained = _data(home / f"{name}.json"), _data(home / f"{name}.explain")
    match = explained.get("match") or {}
    if "run" in answer and (cause := match.get("cause") or explained.get("first")):
        return str(cause), str((match.get("fix") or [""])[0])
    wrong = [each for each in answer.get("findings") or () if each.get("outcome", "FAIL") == "FAIL"]
    causes = [str(each.get("cause") or each.get("detail") or "") for each in wrong]
    steps = [str(each["next_step"]) for each in wrong if each.get("next_step")]
    text = _text(home / f"{name}.messages")
    lines = [line for line in text.splitlines() if line.startswith("error:")] or text.splitlines()
    last = (lines or ["it left no message: the disk may be full"])[-1]
    return "; ".join(causes) or last, "; ".join(steps)


def _data(path: Path) -> dict[str, Any]:
    """Return the object of JSON in a participant's file; an empty one if it has none."""
    with contextlib.suppress(ValueError, RecursionError):
        data = json.loads(_text(path))
        return data if isinstance(data, dict) else {}
    return {}


def _text(path: Path) -> str:
    """Return the text of a participant's file, of which a job could have made a link."""
    with contextlib.suppress(OSError):
        return read_text(path, errors="replace", below=path.parent)
    return ""


def _waiting(cluster: Stage) -> dict[tuple[str, str], float]:
    """Return how long each job waited, by its user and name."""
    question = ("squeue", "--noheader", "--states=all", "--format=%u|%j|%V|%S")
    waited: dict[tuple[str, str], float] = {}
    for line in shell.run((*cluster.words(Path("/")), *question)).stdout.splitlines():
        user, _, rest = line.partition("|")
        name, *times = rest.rsplit("|", 2)
        with contextlib.suppress(ValueError):  # N/A: it has not started
            submitted, started = map(datetime.fromisoformat, times)
            waited[user, name] = max(0.0, (started - submitted).total_seconds())
    return waited


def _available() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


class Stage(NamedTuple):
    """A cluster that is up.

    Attributes:
        paths: its files.
        pid: its first process.
        site: the site that participants name.
        about: the cluster as text.
    """

    paths: Paths
    pid: int
    site: str
    about: str

    def words(self, directory: Path) -> tuple[str, ...]:
        """Return the words before a command that bring it to the login side of the cluster."""
        return access.prefix(self.paths, self.pid, str(directory))


@contextlib.contextmanager
def stage(workshop: Workshop, nodes: int, place: Path, progress: Progress) -> Iterator[Stage]:
    """Bring up a cluster like the workshop's site; take it down in any case afterwards.

    Args:
        workshop: with the site that is imitated.
        nodes: of each partition.
        place: a directory of root that all users can enter.
        progress: shows the steps.

    Raises:
        NeedsInstallError: a program is missing.
        CommandFailedError: the cluster did not start.
    """
    name = "local" if (workshop.site or "") in _LOCAL else str(workshop.site)
    gpus = ("--gpus-per-node", str(workshop.most_gpus))
    like = ("--cpus-per-node", "8", "--mem-per-node", "16G", *gpus)
    options = ["--nodes", str(nodes), *(("--like", name) if name != "local" else like)]
    options += ["--partition", workshop.partition] if workshop.partition else []
    try:
        progress.begin("cluster", f"{nodes} nodes of each partition, {name}")
        _cluster(place, "up", *options)
        progress.end()
        paths = paths_in(place / "c" / NAME)
        # Other users reach the configuration and the sockets, and nothing else.
        for private in (paths.logs, paths.directory / "state", paths.directory / "munge"):
            private.chmod(0o700)
        paths.directory.chmod(0o711)
        _write_site(name, place / "etc")
        about = summary(read_json(paths.plan, Plan).shape)
        yield Stage(paths, access.must_run(paths).pid, name, about)
    finally:
        _cluster(place, "down")


def _cluster(place: Path, verb: str, *options: str) -> None:
    """Run `toolkit cluster` for the cluster in the directory of a rehearsal."""
    words = (sys.executable, "-m", "toolkit", "--on", "", "cluster", verb, "--name", NAME)
    env = {**os.environ, "TOOLKIT_CLUSTER_DIR": str(place / "c")}
    shell.run((*words, *options), env=env)


def _write_site(name: str, etc: Path) -> None:
    """Write the site as participants see it: this machine's directories, Slurm on PATH."""
    local = sites.load("local")
    site = local if name == "local" else adapt_site(sites.load(name), local, os.path.expandvars)
    table = msgspec.to_builtins(replace(site, access="path", extends=None))
    (etc / "sites").mkdir(parents=True, mode=0o755)
    (etc / "sites" / f"{name}.toml").write_text(to_toml(table), encoding="utf-8")


@contextlib.contextmanager
def temporary_place(progress: Progress) -> Iterator[Path]:
    """Create a directory that all users can enter; remove it in any case afterwards."""
    with temporary_directory(_PARENT, _PREFIX, partial(_clear, progress=progress)) as place:
        place.chmod(0o755)
        yield place


def clean(progress: Progress) -> list[Path]:
    """Remove all that killed rehearsals of this user have left; return their directories.

    Raises:
        ToolkitError: a part cannot be removed.
    """
    return remove_left(_PARENT, _PREFIX, partial(_clear, progress=progress))


def _clear(place: Path, progress: Progress) -> None:
    """Remove the cluster and the users of a killed rehearsal."""
    progress.begin("clean up", f"{place.name}, of a rehearsal that was killed")
    if (place / "c").is_dir():
        _cluster(place, "down")  # all processes in it end
    accounts.remove_users(place / HOME)
    progress.end()
