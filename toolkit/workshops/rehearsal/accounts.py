"""Users that exist for the time of a rehearsal, and a copy of the toolkit that they can run."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import re
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from toolkit import shell
from toolkit.errors import CommandFailedError, ForbiddenError
from toolkit.resources import package_directory, shipped

_COMMENT = "toolkit rehearsal"
_TRIES, _PAUSE = 40, 0.25  # while another program changes the machine's users
_PACKAGES = ("click", "msgspec", "jinja2", "markupsafe", "spython", "packaging", "tomli")
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


@contextlib.contextmanager
def users(count: int, homes: Path) -> Iterator[list[Person]]:
    """Create users with homes of their own; remove them in any case afterwards.

    Raises:
        ForbiddenError: this user is not root.
        CommandFailedError: a user could not be created.
    """
    if os.geteuid() != 0:
        raise ForbiddenError(
            "only root can create the users of a rehearsal",
            place="toolkit workshop rehearse",
            next_step="run it as root, or on a cluster as one user: --on-site",
        )
    _remove_stale()
    homes.mkdir(mode=0o755)
    people: list[Person] = []
    try:
        for number in range(1, count + 1):
            name = f"tkw{os.getpid()}-{number:02d}"
            become = (
                "setpriv",
                "--reuid",
                name,
                "--regid",
                name,
                "--init-groups",
                "--inh-caps=-all",
            )
            people.append(Person(name, homes / name, become))
            options = ("--create-home", "--home-dir", homes / name, "--shell", "/bin/bash")
            _change("useradd", "--comment", _COMMENT, *options, name)
            (homes / name).chmod(0o700)
        yield people
    finally:
        for person in people:
            _remove(person.name)


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
        if pwd.getpwnam(name).pw_gecos == _COMMENT:
            _change("userdel", "--force", name, check=False)


def _remove_stale() -> None:
    """Remove users of rehearsals that were killed."""
    for name in [entry.pw_name for entry in pwd.getpwall()]:
        match = re.match(r"tkw(?P<pid>\d{1,10})-\d\d\Z", name)
        own = match and match["pid"] == str(os.getpid())  # of an earlier process of this id
        if match and (own or not Path("/proc", match["pid"]).exists()):
            _remove(name)


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
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        for directory in (spec.submodule_search_locations or ()) if spec else ():
            _copy_tree(Path(directory), packages / name)
    _copy_tree(package_directory(""), packages / "toolkit")
    for kind in ("recipes", "containers", "jobs"):
        if not (packages / "toolkit/data" / kind).exists():
            _copy_tree(shipped(kind), packages / "toolkit/data" / kind)
    env = {"LD_LIBRARY_PATH": str(place / "lib"), "PYTHONPATH": str(packages)}
    return Tool(str(place / "bin" / version), {**env, "PYTHONDONTWRITEBYTECODE": "1"})


def _copy_tree(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.sif", "tests"))
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
