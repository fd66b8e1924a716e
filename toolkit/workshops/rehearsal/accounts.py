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
from toolkit.errors import CommandFailedError

_COMMENT = "toolkit rehearsal"
_TRIES, _PAUSE = 40, 0.25  # while another program changes the machine's users
_DISTRIBUTION = "slurm-container-toolkit"
_NOT_NEEDED = shutil.ignore_patterns(
    *("site-packages", "test", "tests", "config-*", "idlelib", "tkinter"),
    *("ensurepip", "lib2to3", "*.opt-?.pyc"),
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


def provide_tool(person: Person, place: Path) -> tuple[str, dict[str, str]]:
    """Return a Python that can run the toolkit, and what it needs in the environment.

    It is this one, or a copy if the participants cannot read it.
    """
    # setpriv itself can start a Python that the user cannot, so another program starts it.
    start = (*person.become, "env", sys.executable, "-m", "toolkit", "--version")
    result = shell.run(start, cwd="/", check=False)
    return (sys.executable, {}) if result.ok else _copy(place)


def _copy(place: Path) -> tuple[str, dict[str, str]]:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (place / "bin").mkdir(parents=True)
    shutil.copy2(Path(sys.base_prefix, "bin", version), place / "bin" / version)
    stdlib = sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix})
    shutil.copytree(stdlib, place / "lib" / version, ignore=_NOT_NEEDED)
    for library in Path(sys.base_prefix, "lib").glob("libpython3*.so*"):
        shutil.copy2(library, place / "lib")
    packages = place / "packages"
    for distribution in _needed(_DISTRIBUTION, {_DISTRIBUTION}):
        for file in distribution.files or ():
            source = Path(str(distribution.locate_file(file)))
            if ".." not in file.parts and source.is_file():  # but for programs
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                # With its time, for which the byte code that is copied with it is valid.
                shutil.copy2(source, packages / file)
    data = packages / "toolkit/data"
    sources = {packages / "toolkit": package_directory("")}
    sources |= {data / kind: shipped(kind) for kind in ("recipes", "containers", "jobs")}
    for target, source in sources.items():
        if not target.exists():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.sif", "tests"))
    for path in (place, place / "bin", place / "lib", packages, *packages.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    env = {"LD_LIBRARY_PATH": str(place / "lib"), "PYTHONPATH": str(packages)}
    return str(place / "bin" / version), {**env, "PYTHONDONTWRITEBYTECODE": "1"}


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
