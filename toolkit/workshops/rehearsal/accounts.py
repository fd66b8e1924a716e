"""Users that exist for the time of a rehearsal, and a copy of the toolkit that they can run."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import sys
import sysconfig
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from toolkit import shell
from toolkit.config import package_directory, shipped
from toolkit.errors import CommandFailedError, ForbiddenError

_COMMENT = "toolkit rehearsal"
_TRIES, _PAUSE = 40, 0.25  # while another program changes the machine's users
_DISTRIBUTION = "slurm-container-toolkit"
_NOT_NEEDED = shutil.ignore_patterns(
    *("site-packages", "test", "tests", "__pycache__", "config-*", "idlelib", "tkinter"),
    *("ensurepip", "lib2to3"),
)


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


def require_root() -> None:
    """Raise ForbiddenError if this user is not root."""
    if os.geteuid() != 0:
        raise ForbiddenError(
            "only root can create the users of a rehearsal",
            place="toolkit workshop rehearse",
            next_step="run it as root, on a machine of your own",
        )


@contextlib.contextmanager
def users(count: int, homes: Path) -> Iterator[list[Person]]:
    """Create users with homes of their own; remove them in any case afterwards.

    Args:
        count: the number of users.
        homes: the directory of their homes, which does not exist yet.

    Raises:
        CommandFailedError: a user or a home could not be created.
    """
    _remove_stale()
    homes.mkdir(mode=0o755)
    people: list[Person] = []
    try:
        for number in range(1, count + 1):
            name = f"tkw{os.getpid()}-{number:02d}"
            options = ("--inh-caps=-all", "--reuid", name, "--regid", name, "--init-groups")
            person = Person(name, homes / name, ("setpriv", *options))
            people.append(person)
            _create(person)
        yield people
    finally:
        for person in people:
            _remove(person.name)


def _create(person: Person) -> None:
    """Create a user, and a home that only this user can enter."""
    options = ("--home-dir", person.home, "--no-create-home", "--shell", "/bin/bash")
    _change("useradd", "--comment", _COMMENT, *options, person.name)
    person.home.mkdir(mode=0o700)
    shutil.chown(person.home, person.name, person.name)


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


def _remove(name: str) -> None:
    """Remove a user that a rehearsal created, and no other one of this name."""
    with contextlib.suppress(KeyError):
        entry = pwd.getpwnam(name)
        if entry.pw_gecos == _COMMENT:
            _end_processes(entry.pw_uid)
            _change("userdel", "--force", name, check=False)


def _end_processes(uid: int) -> None:
    """End what still runs as a user who is about to be removed."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == uid != 0:
                os.kill(int(entry.name), signal.SIGKILL)


def remove_below(homes: Path) -> None:
    """Remove the users of a rehearsal that was killed, by the directory of their homes."""
    for entry in pwd.getpwall():
        if Path(entry.pw_dir).parent == homes:
            _remove(entry.pw_name)


def _remove_stale() -> None:
    """Remove users of rehearsals whose directory is gone."""
    for entry in pwd.getpwall():
        if entry.pw_gecos == _COMMENT and not Path(entry.pw_dir).parent.exists():
            _remove(entry.pw_name)


class Tool(NamedTuple):
    """A Python that can run the toolkit: its path, and what it needs in the environment."""

    python: str
    env: dict[str, str]


def provide_tool(person: Person, place: Path) -> Tool:
    """Return the toolkit for the participants: this one, or a copy if they cannot read it."""
    # setpriv itself can start a Python that the user cannot, so another program starts it.
    start = (*person.become, "env", sys.executable, "-m", "toolkit", "--version")
    result = shell.run(start, cwd="/", check=False)
    return Tool(sys.executable, {}) if result.ok else _copy(place)


def _copy(place: Path) -> Tool:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (place / "bin").mkdir(parents=True)
    shutil.copy2(Path(sys.base_prefix, "bin", version), place / "bin" / version)
    stdlib = sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix})
    shutil.copytree(stdlib, place / "lib" / version, ignore=_NOT_NEEDED)
    for library in Path(sys.base_prefix, "lib").glob("libpython3*.so*"):
        shutil.copy2(library, place / "lib")
    packages = place / "packages"
    for distribution in _needed(_DISTRIBUTION, {_DISTRIBUTION}):
        _copy_files(distribution, packages)
    _copy_tree(package_directory(""), packages / "toolkit")
    for kind in ("recipes", "containers", "jobs"):
        if not (packages / "toolkit/data" / kind).exists():
            _copy_tree(shipped(kind), packages / "toolkit/data" / kind)
    for path in (place, place / "bin", place / "lib", packages, *packages.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    env = {"LD_LIBRARY_PATH": str(place / "lib"), "PYTHONPATH": str(packages)}
    return Tool(str(place / "bin" / version), {**env, "PYTHONDONTWRITEBYTECODE": "1"})


def _needed(name: str, known: set[str]) -> Iterator[metadata.Distribution]:
    """Yield the installed distributions that one needs, and those that they need."""
    for text in metadata.distribution(name).requires or ():
        requirement = Requirement(text)
        other = canonicalize_name(requirement.name)
        is_used = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if is_used and other not in known:
            known.add(other)
            yield metadata.distribution(other)
            yield from _needed(other, known)


def _copy_files(distribution: metadata.Distribution, target: Path) -> None:
    """Copy what a distribution has installed, but for its programs and compiled modules."""
    for file in distribution.files or ():
        if ".." not in file.parts and file.suffix != ".pyc":
            copy = target / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(distribution.locate_file(file)), copy)


def _copy_tree(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.sif", "tests"))
