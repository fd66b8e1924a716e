"""Users that exist for the time of a rehearsal, and how they reach the toolkit."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from toolkit import shell
from toolkit.config import package_directory
from toolkit.errors import CommandFailedError
from toolkit.quoting import shell_words

_COMMENT = "toolkit rehearsal"
_TRIES, _PAUSE = 40, 0.25  # while another program changes the machine's users


class Person(NamedTuple):
    """A participant of a rehearsal.

    Attributes:
        name: of the user; of a directory if all participants are one user.
        home: their home directory.
        become: words before a command that make it one of this user.
    """

    name: str
    home: Path
    become: tuple[str, ...] = ()


@contextlib.contextmanager
def users(count: int, homes: Path) -> Iterator[list[Person]]:
    """Create users with homes that only they can enter; remove them in any case afterwards.

    Args:
        count: the number of users.
        homes: the directory of their homes, which does not exist yet.

    Raises:
        CommandFailedError: a user or a home could not be created.
    """
    homes.mkdir(mode=0o755)
    names = [f"tkw{os.getpid()}-{number:02d}" for number in range(1, count + 1)]
    drop = ("setpriv", "--inh-caps=-all", "--init-groups")
    people = [
        Person(name, homes / name, (*drop, "--reuid", name, "--regid", name)) for name in names
    ]
    try:
        for person in people:
            options = ("--home-dir", person.home, "--no-create-home", "--shell", "/bin/bash")
            _change("useradd", "--comment", _COMMENT, *options, person.name)
            person.home.mkdir(mode=0o700)
            shutil.chown(person.home, person.name, person.name)
        yield people
    finally:
        remove_users(homes)


def _change(*argv: str | Path, check: bool = True) -> None:
    """Run a program that changes the machine's users; wait while another one does."""
    for _ in range(_TRIES):
        result = shell.run(argv, check=False)
        if result.ok or "lock" not in result.stderr:
            break
        time.sleep(_PAUSE)
    if check and not result.ok:
        raise CommandFailedError(
            f"{argv[0]} failed with exit code {result.returncode}", details=result.tail(3)
        )


def remove_users(homes: Path) -> None:
    """Remove the users of a rehearsal by the directory of their homes, with what runs as them.

    Those whose directory was removed by hand are of no rehearsal that runs.
    """
    for entry in pwd.getpwall():
        parent = Path(entry.pw_dir).parent
        if entry.pw_gecos == _COMMENT and (parent == homes or not parent.exists()):
            _end_processes(entry.pw_uid)
            _change("userdel", "--force", entry.pw_name, check=False)


def _end_processes(uid: int) -> None:
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and process.stat().st_uid == uid != 0:
                os.kill(int(process.name), signal.SIGKILL)


def reach(person: Person, place: Path) -> tuple[str, ...]:
    """Return the words before a command of root by which it, and what it becomes, can use the tool.

    There are none if the participants can read it. Else the command has a mount namespace: in it an
    empty directory covers each one that only root can enter, and the toolkit and its Python are at
    their places below.

    Args:
        person: a participant.
        place: a directory that does not exist yet, for the time between two mounts.

    Raises:
        CommandFailedError: the participants cannot read the tool in this way, either.
    """
    # setpriv itself can start a Python that the user cannot, so another program starts it.
    start = (*person.become, "env", sys.executable, "-m", "toolkit", "--version")
    if shell.run(start, cwd="/", check=False).ok:
        return ()
    aside, back = list[str](), list[str]()
    closed = set[Path]()
    for directory in {Path(sys.prefix), Path(sys.base_prefix), package_directory("").parent}:
        if (above := _closed_above(directory)) is not None:
            closed.add(above)
            between = place / str(len(aside))
            between.mkdir(parents=True)
            aside.append(shell_words(("mount", "--bind", directory, between)))
            back.append(shell_words(("mkdir", "-p", directory)))
            back.append(shell_words(("mount", "--move", between, directory)))
    empty = ("mount", "-t", "tmpfs", "-o", "mode=755", "none")
    cover = [shell_words((*empty, directory)) for directory in closed]
    script = "\n".join((*aside, *cover, *back, 'exec "$@"'))
    words = ("unshare", "--mount", "bash", "-e", "-c", script, "reach")
    shell.run((*words, *start), cwd="/")
    return words


def _closed_above(directory: Path) -> Path | None:
    """Return the topmost directory above one that not every user can enter, if there is one."""
    closed = (each for each in directory.parents if not each.stat().st_mode & stat.S_IXOTH)
    return min(closed, default=None)
