"""A command that shows does nothing else, whatever another user has put into the directory where it looks.

A second user makes runs that are hostile in every file and field. The victim calls every command that shows,
and those that must refuse, under strace: nothing is written, removed, signalled or sent to Slurm, nothing
private gets into the attacker's directories, and each command ends in time, without a fault of ours.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.cluster.ordinary_user import User
from tests.cluster.ranks import wait_for
from tests.showing import REFUSING, SHOWING
from tests.unit.samples import make_case
from toolkit.model.run import Submission
from toolkit.planning.plan import decide

ATTACKER = "61234"  # a user without a name
LIMIT = 200  # seconds of one command; `ps --all` derives the outcome of each of 240 runs
# Calls the commands one after the other in processes of its own, so that Python starts once.
DRIVER = """\
import json, os, signal, sys, time
from toolkit.cli.main import cli, main
for words in json.load(sys.stdin):
    began = time.monotonic()
    child = os.fork()
    if not child:
        signal.alarm(int(sys.argv[1]))
        os.dup2(1, 2)
        if words[0] == "complete":
            os.environ.update(_TOOLKIT_COMPLETE="bash_complete", COMP_WORDS=words[1], COMP_CWORD="2")
            words = []
        sys.argv = ["toolkit", *words]
        try:
            main()
        except SystemExit as done:
            sys.stdout.flush()
            os._exit(done.code if isinstance(done.code, int) else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print("\\x1e" + json.dumps([words, status, time.monotonic() - began]) + "\\x1e", flush=True)
"""
TRACED = (
    "open,openat,openat2,creat,truncate,mkdir,mkdirat,rmdir,unlink,unlinkat,rename,renameat,renameat2,"
    "link,linkat,symlink,symlinkat,mknod,mknodat,chmod,fchmod,fchmodat,chown,lchown,fchown,fchownat,"
    "utime,utimes,utimensat,futimesat,setxattr,lsetxattr,fsetxattr,mount,kill,tkill,tgkill,pidfd_send_signal,"
    "execve,execveat"
)
_OPENED = re.compile(r"O_(?:WRONLY|RDWR|CREAT|TRUNC|APPEND)")
# What any program may write to.
_HARMLESS = re.compile(r'"/dev/(?:null|tty|pts/\d+)"')
_ACTS = re.compile(
    r'execve\("[^"]*/(?:sbatch|scancel|salloc)"|"(?:update|requeue|hold|release|suspend)"'
)


class Done(NamedTuple):
    """How one command came out."""

    words: tuple[str, ...]
    status: int
    seconds: float
    text: str


class Victim(NamedTuple):
    """A user with a cluster, a job that runs, one that has ended, and something private."""

    user: User
    env: dict[str, str]
    runs: Path
    secret: Path
    thesis: Path
    word: str

    def submission(self, name: str) -> dict[str, Any]:
        """What run.json says."""
        text = (self.runs / name / "run.json").read_text()
        return dict(msgspec.to_builtins(msgspec.json.decode(text, type=Submission)))


@pytest.fixture(scope="module")
def victim(user: User) -> Iterator[Victim]:
    if os.geteuid() != 0:
        pytest.skip("only root can make users")
    word = f"private-{secrets.token_hex(8)}"
    private = {"secret": user.home / "secret.json", "thesis": user.home / "thesis"}
    for path in private.values():
        path.write_text(json.dumps({"private": word}) + "\n")
        path.chmod(0o600)
        shutil.chown(path, user.name, user.name)
    env = {
        "TOOLKIT_CLUSTER_DIR": str(user.home / "c"),
        "TOOLKIT_CLUSTER": "mine",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(user.home / "tmp"),
    }
    user.run("mkdir", str(user.home / "tmp"))
    user.run(
        "sh",
        "-c",
        "echo 'import time; print(1); time.sleep(900)' > long.py; echo 'exit(3)' > short.py",
    )
    up = user.toolkit("cluster", "up", "--nodes", "2", env=env)
    assert up.returncode == 0, up.stderr
    try:
        run = ("run", "--runtime", "none", "--launcher", "none", "--time", "30")
        for code, more in ((3, ("short.py",)), (0, ("--detach", "long.py"))):
            done = user.toolkit(*run, *more, env=env)
            assert done.returncode == code, done.stderr
        logs = user.home / "runs/long-0001/logs"
        wait_for(
            lambda: any(path.stat().st_size for path in logs.glob("*-0-*.log")), "the job to run"
        )
        yield Victim(user, env, user.home / "runs", private["secret"], private["thesis"], word)
    finally:
        user.toolkit("cluster", "down", env=env)


@pytest.fixture(scope="module")
def course(victim: Victim) -> Iterator[Path]:
    """The attacker's directory."""
    with tempfile.TemporaryDirectory(prefix="tk", dir="/var/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        shutil.chown(place, int(ATTACKER), int(ATTACKER))
        given = {
            "directory": name,
            "plan": msgspec.to_builtins(decide(make_case())),
            "running": victim.submission("long-0001"),
            "ended": victim.submission("short-0001"),
            "secret": str(victim.secret),
            "thesis": str(victim.thesis),
            "writable": str(victim.runs / "short-0001"),
        }
        become = ("setpriv", "--reuid", ATTACKER, "--regid", ATTACKER, "--clear-groups")
        script = Path(__file__).with_name("hostile_runs.py").read_text()
        subprocess.run(
            (*become, "/usr/bin/python3", "-I", "-c", script),
            input=json.dumps(given),
            text=True,
            check=True,
            cwd="/",
        )
        yield place


def called(
    victim: Victim, course: Path, words: Sequence[Sequence[str]], trace: Path | None = None
) -> list[Done]:
    """Call commands as the victim in the attacker's directory, maybe under strace."""
    # With a filter in the kernel a call that is not traced costs nothing.
    options = f"-f --seccomp-bpf -z -y -qq -s 300 -e trace={TRACED} -o".split()
    strace = ("strace", *options, str(trace))
    become = (*strace, "-u", victim.user.name) if trace else victim.user.become
    there = replace(victim.user, become=(*become, "env", "-C", str(course)))
    names = {**victim.env, "TOOLKIT_IMAGES": str(course / "images")}
    env = {**there.env, **names}
    home = {"HOME": str(victim.user.home), "USER": victim.user.name, "LOGNAME": victim.user.name}
    done = subprocess.run(
        (*there.become, victim.user.python, "-c", DRIVER, str(LIMIT)),
        input=json.dumps([list(some) for some in words]),
        env={**home, "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", **env},
        cwd=victim.user.home,
        timeout=1500,
        text=True,
        errors="replace",
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    parts = done.stdout.split("\x1e")
    ended = [json.loads(part) for part in parts[1::2]]
    assert len(ended) == len(words), done.stderr
    return [
        Done(tuple(given), status, seconds, text)
        for given, (_, status, seconds), text in zip(words, ended, parts[::2], strict=False)
    ]


def all_words(course: Path) -> list[list[str]]:
    """Every command; those of one run take turns over a part of the hostile runs, of which `ps --all` reads each."""
    names = sorted(path.name for path in (course / "runs").iterdir())
    words = [["complete", "toolkit logs "], ["complete", "toolkit image show "]]
    for table in (SHOWING, REFUSING):
        given = [[*name.split(), *more.split()] for name, ways in table.items() for more in ways]
        words += [some for some in given if "RUN" not in some]
        turns = cycle([some for some in given if "RUN" in some])
        words += [
            [f"runs/{name}" if word == "RUN" else word for word in next(turns)]
            for name in names[len(table) % 2 :: 9]
        ]
    return [[word.replace("DIR", str(course)) for word in some] for some in words]


def state_of(directory: Path) -> dict[str, tuple[int, ...]]:
    """Everything that a change of a tree would change, but the times of reading."""
    paths = [directory, *directory.rglob("*")]
    return {
        str(path): (
            status.st_ino,
            status.st_mode,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )
        for path in paths
        for status in [path.lstat()]
    }


def acts(trace: Path) -> list[str]:
    """The calls of a trace that did more than read, start programs that only ask, or write to terminals."""
    kills = re.compile(r"\b(?:kill|tkill|tgkill|pidfd_send_signal)\(")
    lines = trace.read_text(errors="replace").splitlines()
    return [
        line
        for line in lines
        if not _HARMLESS.search(line)
        and not line.endswith("+++")
        and not ("SIGALRM" in line or "---" in line)
        and ("exec" not in line or _ACTS.search(line))
        and (not re.search(r"\bopen\w*\(", line) or _OPENED.search(line))
        and not (kills.search(line) and re.search(r"(?:, 0\)|SIG_0)", line))
    ]


@pytest.mark.slow("hundreds of commands under strace, for hundreds of hostile runs")
def test_commands_that_show_only_read_and_others_refuse(victim, course, tmp_path):
    before, private = state_of(course), state_of(victim.user.home / "runs")
    words = all_words(course)
    trace = tmp_path / "trace"
    ended = called(victim, course, words, trace)
    assert state_of(course) == before
    assert acts(trace) == []
    bad = [
        done
        for done in ended
        if done.status < 0 or re.search("Traceback \\(most|has a bug", done.text)
    ]
    assert not bad, "\n".join(
        f"{done.words} {done.status} {done.seconds:.0f} s {done.text[-1500:]}" for done in bad[:5]
    )
    assert state_of(victim.user.home / "runs") == private
    refused = [done for done in ended if " ".join(done.words[:1]) in ("cancel", "rm")]
    assert {done.status for done in refused} <= {77, 78}, refused
    for path in course.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 30:
            assert victim.word not in path.read_text(errors="replace"), path
    jobs = victim.user.toolkit("cluster", "exec", "--", "squeue", "-h", "-o", "%T", env=victim.env)
    assert jobs.stdout.split() == ["RUNNING"], jobs
