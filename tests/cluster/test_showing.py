"""A command that shows does nothing else, whatever another user has put into the directory where it looks.

A second user makes runs that are hostile in every file and field. The victim calls every command that shows,
and those that must refuse, under strace: nothing is written, removed, signalled or sent to Slurm, nothing
private gets into the attacker's directories, and each command ends in time, without a fault of ours.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.cluster.ordinary_user import User
from tests.cluster.ranks import logs_of, wait_for
from tests.showing import REFUSING, SHOWING
from tests.unit.samples import make_case
from toolkit.planning.plan import decide

ATTACKER = "61234"  # a user without a name
LIMIT = 200  # seconds of one command; `ps --all` derives the outcome of each of 210 runs
# Calls the commands one after the other in processes of its own, so that Python starts once.
DRIVER = """\
import json, os, signal, sys
from toolkit.cli.main import main
for words in json.load(sys.stdin):
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
    print(f"\\x1e{status}\\x1e", flush=True)
"""
TRACED = (
    "open,openat,openat2,creat,truncate,mkdir,mkdirat,rmdir,unlink,unlinkat,rename,renameat,renameat2,"
    "link,linkat,symlink,symlinkat,mknod,mknodat,chmod,fchmod,fchmodat,chown,lchown,fchown,fchownat,"
    "utime,utimes,utimensat,futimesat,setxattr,lsetxattr,fsetxattr,mount,kill,tkill,tgkill,pidfd_send_signal,"
    "execve,execveat"
)
_OPENS = re.compile(r"\bopen\w*\(")
_OPENED = re.compile(r"O_(?:WRONLY|RDWR|CREAT|TRUNC|APPEND)")
# What any program may write to, and ends of processes and their signals.
_HARMLESS = re.compile(r'"/dev/(?:null|tty|pts/\d+)"|SIGALRM|---|\+\+\+$')
_ACTS = re.compile(
    r'execve\("[^"]*/(?:sbatch|scancel|salloc)"|"(?:update|requeue|hold|release|suspend)"'
)
# Whether a process is there.
_ASKS = re.compile(
    r"\b(?:kill|tkill|tgkill)\(.*, (?:0|SIG_0)\)|pidfd_send_signal\(\S+, (?:0|SIG_0),"
)


class Done(NamedTuple):
    """How one command came out."""

    words: tuple[str, ...]
    status: int
    text: str


class Victim(NamedTuple):
    """A user with a cluster, a job that runs, one that has ended, and a private file with a word of its own."""

    user: User
    env: dict[str, str]
    runs: Path
    secret: Path
    word: str

    def submission(self, name: str) -> Any:
        return json.loads((self.runs / name / "run.json").read_text())


@pytest.fixture(scope="module")
def victim(user: User) -> Iterator[Victim]:
    if os.geteuid() != 0:
        pytest.skip("only root can make users")
    word = f"private-{secrets.token_hex(8)}"
    secret = user.home / "secret.json"
    secret.write_text(json.dumps({"private": word}) + "\n")
    secret.chmod(0o600)
    shutil.chown(secret, user.name, user.name)
    env = {
        "TOOLKIT_CLUSTER_DIR": str(user.home / "c"),
        "TOOLKIT_CLUSTER": "mine",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(user.home / "tmp"),
    }
    scripts = "echo 'import time; print(1); time.sleep(900)' > long.py; echo 'exit(3)' > short.py"
    user.run("sh", "-c", f"mkdir tmp; {scripts}")
    up = user.toolkit("cluster", "up", "--nodes", "2", env=env)
    assert up.returncode == 0, up.stderr
    try:
        run = ("run", "--runtime", "none", "--launcher", "none", "--time", "30")
        for code, more in ((3, ("short.py",)), (0, ("--detach", "long.py"))):
            done = user.toolkit(*run, *more, env=env)
            assert done.returncode == code, done.stderr
        wait_for(lambda: "1" in logs_of(user.home, "long-0001"), "the job to run")
        yield Victim(user, env, user.home / "runs", secret, word)
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
            "writable": str(victim.runs / "short-0001"),
        }
        become = ("setpriv", "--reuid", ATTACKER, "--regid", ATTACKER, "--clear-groups")
        script = Path(__file__).with_name("hostile_runs.py").read_text()
        argv = (*become, "/usr/bin/python3", "-I", "-c", script)
        subprocess.run(argv, input=json.dumps(given), text=True, check=True, cwd="/")
        yield place


def called(victim: Victim, course: Path, words: list[list[str]], trace: Path) -> list[Done]:
    """Call commands as the victim in the attacker's directory under strace."""
    # With a filter in the kernel a call that is not traced costs nothing.
    options = f"-f --seccomp-bpf -z -y -qq -s 300 -e trace={TRACED} -o".split()
    user = victim.user
    # Not by -u: strace 6.13 then stops the program by a call that its own filter holds up.
    group = str(pwd.getpwnam(user.name).pw_gid)
    become = ("setpriv", "--reuid", user.name, "--regid", group, "--init-groups")
    strace = (*user.reach, "strace", *options, str(trace))
    names = {"HOME": str(user.home), "USER": user.name, "LOGNAME": user.name, "LANG": "C.UTF-8"}
    names |= {"PATH": "/usr/local/bin:/usr/bin:/bin", "TOOLKIT_IMAGES": str(course / "images")}
    done = subprocess.run(
        (*strace, *become, "env", "-C", str(course), user.python, "-c", DRIVER, str(LIMIT)),
        input=json.dumps(words),
        env={**names, **victim.env},
        cwd=user.home,
        timeout=1500,
        text=True,
        errors="replace",
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    parts = done.stdout.split("\x1e")
    assert len(parts[1::2]) == len(words), done.stderr
    return [
        Done(tuple(given), int(status), text)
        for given, status, text in zip(words, parts[1::2], parts[::2], strict=False)
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
    names = ("st_ino", "st_mode", "st_size", "st_mtime_ns", "st_ctime_ns")
    paths = [directory, *directory.rglob("*")]
    return {str(path): tuple(getattr(path.lstat(), name) for name in names) for path in paths}


def acts(trace: Path) -> list[str]:
    """The calls of a trace that did more than read, start programs that only ask, or write to terminals."""
    return [
        line
        for line in trace.read_text(errors="replace").splitlines()
        if not _HARMLESS.search(line)
        and ("exec" not in line or _ACTS.search(line))
        and (not _OPENS.search(line) or _OPENED.search(line))
        and not _ASKS.search(line)
    ]


@pytest.mark.slow("hundreds of commands under strace, for hundreds of hostile runs")
def test_commands_that_show_only_read_and_others_refuse(victim, course, tmp_path):
    before, private = state_of(course), state_of(victim.runs)
    trace = tmp_path / "trace"
    ended = called(victim, course, all_words(course), trace)
    assert state_of(course) == before
    assert state_of(victim.runs) == private
    assert acts(trace) == []
    faults = re.compile(r"Traceback \(most|has a bug")
    bad = [
        f"{done.words} {done.status} {done.text[-1500:]}"
        for done in ended
        if done.status < 0 or faults.search(done.text)
    ]
    assert not bad, "\n".join(bad[:5])
    refused = [done for done in ended if done.words[0] in ("cancel", "rm")]
    assert {done.status for done in refused} <= {77, 78}, refused
    for path in course.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 30:
            assert victim.word not in path.read_text(errors="replace"), path
    jobs = victim.user.toolkit("cluster", "exec", "--", "squeue", "-h", "-o", "%T", env=victim.env)
    assert jobs.stdout.split() == ["RUNNING"], jobs
