"""An ordinary user who can run the toolkit, also where the checkout and its Python are in directories that only root can enter."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import getpass
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tests.cluster.ranks import ran, wait_for
from toolkit.workshops.rehearsal.accounts import Person, reach

_CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class User:
    """A user, and how the toolkit is run as this one.

    `become` are the words before a command; the first of them are those of `reach`.
    """

    name: str
    home: Path
    become: tuple[str, ...]
    python: str
    reach: tuple[str, ...] = ()

    def run(
        self, *words: str, timeout: float = 120, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Any command, in the user's home, with an environment as after a login."""
        own = {"HOME": str(self.home), "USER": self.name, "LOGNAME": self.name, "LANG": "C.UTF-8"}
        env = {**own, "PATH": "/usr/local/bin:/usr/bin:/bin", **(env or {})}
        return ran(*self.become, *words, cwd=self.home, env=env, timeout=timeout)

    def toolkit(
        self, *arguments: str, timeout: float = 120, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`toolkit ARGUMENTS`."""
        return self.run(self.python, "-m", "toolkit", *arguments, timeout=timeout, env=env)


def change_accounts(*argv: str, check: bool = True) -> None:
    """Run a command that changes the machine's users, alone among the workers of the tests.

    Each of these programs reads a file of /etc and writes it anew. Apptainer's does not take the
    lock of the others (lckpwdf(3)), so it is taken here: a rehearsal changes users, too.
    """
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(Path("/var/tmp/toolkit-tests-accounts.lock").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        if argv[0] == "apptainer":
            fcntl.lockf(stack.enter_context(Path("/etc/.pwd.lock").open("w")), fcntl.LOCK_EX)
        subprocess.run(argv, check=check, capture_output=not check)


@contextlib.contextmanager
def account(name: str, *options: str) -> Iterator[None]:
    """An account that is gone at the end."""
    change_accounts("/usr/sbin/useradd", *options, name)
    try:
        yield
    finally:
        change_accounts("/usr/sbin/userdel", "--remove", name, check=False)


def as_user(name: str, *words: object, cwd: Path | str = "/") -> subprocess.CompletedProcess[str]:
    """Run a command as another user, who has no privileges."""
    become = (
        f"setpriv --reuid {name} --regid {name} --init-groups --inh-caps=-all --bounding-set=-all"
    )
    return ran(*become.split(), *words, cwd=cwd)


def becoming(user: str) -> tuple[str, ...]:
    """Return the words before a command that make it one of another user who may read everything."""
    read = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
    return ("setpriv", "--reuid", user, "--regid", user, "--init-groups", *read, *_importing())


@functools.cache
def _importing() -> tuple[str, ...]:
    """Return what has everybody import a copy of the toolkit where only root can enter the checkout.

    To read everything is not enough: what Apptainer binds is opened without that right.
    """
    if all(directory.stat().st_mode & 0o001 for directory in (_CHECKOUT, *_CHECKOUT.parents)):
        return ()
    place = Path(tempfile.mkdtemp(prefix="toolkit-test-", dir="/var/tmp"))
    place.chmod(0o755)
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    _copy_toolkit(place)
    return ("env", f"PYTHONPATH={place}")


def _copy_toolkit(place: Path) -> None:
    for part in ("toolkit", "recipes", "containers", "jobs"):
        # With its byte code, which is valid for files of the same time.
        shutil.copytree(_CHECKOUT / part, place / part, ignore=shutil.ignore_patterns("*.sif"))


@contextlib.contextmanager
def ordinary_user() -> Iterator[User]:
    """A new user if we are root, gone at the end; else ourselves."""
    if os.geteuid() != 0:
        yield User(getpass.getuser(), Path.home(), (), sys.executable)
        return
    name = f"tk{os.getpid()}"
    home = Path("/home", name)
    options = f"--create-home --home-dir {home} --shell /bin/bash".split()
    change_accounts("/usr/sbin/useradd", *options, name)
    try:
        yield _equipped(User(name, home, ("/usr/sbin/runuser", "-u", name, "--"), sys.executable))
    finally:
        # userdel refuses a user with processes, and those of a container end a moment after their job.
        wait_for(lambda: not _has_processes(name), f"the processes of {name} to end")
        change_accounts("/usr/sbin/userdel", name)
        shutil.rmtree(home)


def _has_processes(user: str) -> bool:
    return subprocess.run(["pgrep", "-u", user], capture_output=True, check=False).returncode == 0


def _equipped(user: User) -> User:
    person = Person(user.name, user.home, user.become)
    words = reach(person, user.home / "tool")
    equipped = replace(user, become=(*words, *user.become), reach=words)
    said = equipped.toolkit("--version")
    assert said.returncode == 0, said.stderr
    return equipped
