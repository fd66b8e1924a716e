"""Fixtures about images: the real one, built once per machine, and tiny ones that are built in a second."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ordinary_user import becoming, change_accounts
from tests.cluster.ranks import wait_for
from toolkit.images.store.store import manifest_of
from toolkit.model.base import to_json

# The tests' own store, never the user's. It stays, so that the second run need not build.
IMAGES = Path(os.environ.get("TOOLKIT_TEST_IMAGES") or Path.home() / ".cache/toolkit-tests/images")
USER = f"tk-image-{os.getpid()}"  # two runs of the tests on one machine do not meet
_PROGRAMS = tuple(
    "sh cat grep id mkdir sleep env find rm ls chown printf test true date xargs nproc".split()
)
# Stand-ins, so that every block can be rendered and run on a base without a distribution; pip tells
# what it was given to install.
_FAKES = {
    "pip": '[ "$1" = list ] || printf "%s\\0" "$@" >> /said',
    "python3": 'echo "stand-in for python3"',
    "apt-get": "true",
    "apt-mark": 'echo "$1"',
}


def real_image(name: str, *options: str) -> Path:
    """Return a real image in the tests' store, built if it is missing or its recipe has changed.

    Of two workers that ask at the same time one builds, and the other waits for it.
    """
    argv = [sys.executable, "-m", "toolkit", "image", "build", name, *options]
    env = {**os.environ, "TOOLKIT_IMAGES": str(IMAGES)}
    built = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=3600)
    if built.returncode != 0:
        pytest.fail(f"toolkit image build {name} ended with {built.returncode}:\n{built.stderr}")
    return Path(built.stdout.strip())


def manifest_in(image: Path) -> dict[str, Any]:
    """What is known of an image, as JSON has it."""
    known = manifest_of(image)
    assert known is not None
    read: dict[str, Any] = json.loads(to_json(known))
    return read


def copy_cache(images: Path, other: Path, kind: str = "") -> None:
    """Copy the caches of a store, or one kind of them, also while another worker writes to them."""
    hidden = shutil.ignore_patterns(".*")  # locks, and notes that are being written
    shutil.copytree(images / ".cache" / kind, other / ".cache" / kind, symlinks=True, ignore=hidden)


@pytest.fixture(scope="session")
def pytorch_image() -> Path:
    """PyTorch and Horovod, which most tests use."""
    return real_image("pytorch_cpu")


@pytest.fixture(scope="session")
def notebook_image(pytorch_image: Path) -> Path:
    """PyTorch with JupyterLab and Matplotlib; 3 minutes where it has to be built."""
    del pytorch_image
    return real_image(str(Path(__file__).with_name("notebook_cpu.toml")))


@pytest.fixture(scope="session")
def tensorflow_image() -> Path:
    """TensorFlow and Horovod; 7 minutes where it has to be built."""
    return real_image("tensorflow_cpu")


@pytest.fixture(scope="session")
def ray_image() -> Path:
    """Ray and PyTorch; 4 minutes where it has to be built."""
    return real_image("ray_cpu")


@pytest.fixture(scope="session")
def tiny_base() -> Iterator[str]:
    """A directory with a handful of this machine's programs: the smallest thing that Apptainer can begin with, readable by every user."""
    with tempfile.TemporaryDirectory(prefix="toolkit-test-base-", dir="/var/tmp") as name:
        base = Path(name)
        base.chmod(0o755)
        for directory in (
            *"bin etc/dpkg/dpkg.cfg.d etc/apt proc sys dev tmp root home mnt opt var/tmp var/log".split(),
        ):
            (base / directory).mkdir(parents=True)
        for program in _PROGRAMS:
            copy_program(program, base)
        for program, script in _FAKES.items():
            (base / "bin" / program).write_text(f"#!/bin/sh\n{script}\n")
            (base / "bin" / program).chmod(0o755)
        (base / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (base / "etc/group").write_text("root:x:0:\n")
        for empty in ("resolv.conf", "hosts"):
            (base / "etc" / empty).touch()
        for path in (base, *base.rglob("*")):
            os.utime(path, (1.6e9, 1.6e9))  # what is as new as a build would count as made by it
        yield name


def copy_program(program: str, base: Path) -> None:
    found = shutil.which(program, path="/usr/bin:/bin:/usr/sbin:/sbin")
    assert found, program
    shutil.copy(found, base / "bin" / program)
    for library in re.findall(
        r"(/\S+)",
        subprocess.run(["ldd", found], capture_output=True, text=True, check=False).stdout,
    ):
        target = base / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy(Path(library).resolve(), target)


@dataclass
class Tiny:
    """Builds tiny images in a store of its own, as this user or another."""

    place: Path
    base: str
    become: tuple[str, ...] = ()
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def images(self) -> Path:
        return self.place / "images"

    def recipe(self, *commands: str, checks: str = "", more: str = "", name: str = "tiny") -> Path:
        """Write a recipe with one step, called `act`."""
        path = self.place / f"{name}.toml"
        lines = "".join(f"    {quoted(command)},\n" for command in commands)
        path.write_text(
            f'summary = "tiny"\n[base]\nkind = "localimage"\npath = "{self.base}"\n[space]\nimage = 10\nbuild = 50\n'
            f'[[steps]]\nblock = "run"\nname = "act"\ncommands = [\n{lines}]\nchecks = {{{checks}}}\n{more}'
        )
        return path

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "TOOLKIT_IMAGES": str(self.images),
            "HOME": str(self.place),
            "PYTHONDONTWRITEBYTECODE": "1",
            **self.extra,
        }

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        """`toolkit image ...` in a session of its own."""
        return subprocess.Popen(
            [*self.become, sys.executable, "-m", "toolkit", "image", *map(str, arguments)],
            env=self.environment(),
            cwd=self.place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: object, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        stdout, stderr = process.communicate(timeout=seconds)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def inside(self, *argv: str) -> str:
        """What a program in the image says."""
        command = [
            *self.become,
            *"apptainer --silent exec --containall".split(),
            str(self.images / "tiny.sif"),
            *argv,
        ]
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("APPTAINER", "SINGULARITY"))
        }
        return subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, check=True
        ).stdout

    def started(self, *arguments: object, until: str) -> subprocess.Popen[str]:
        """A build that has come to where its log says `until`."""
        process = self.start("build", *arguments)
        log = self.images / "tiny.failed.log"
        wait_for(
            lambda: log.exists() and until in log.read_text(errors="replace"),
            f"{until!r} in the log",
        )
        return process

    def processes(self) -> list[str]:
        """The command lines of whatever still works for this store, or in its images."""
        return list(self._running().values())

    def sleeps(self) -> bool:
        """Return whether a step of this store runs `sleep`; its log names a command before it runs."""
        return any(line.startswith("sleep ") for line in self.processes())

    def wake(self) -> None:
        """End the `sleep` of a step, which goes on with the next command if it says `|| true`."""
        wait_for(self.sleeps, "the sleep")
        for pid, line in self._running().items():
            if line.startswith("sleep "):
                os.kill(pid, signal.SIGKILL)

    def _running(self) -> dict[int, str]:
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                line, environment = (
                    (entry / "cmdline").read_bytes(),
                    (entry / "environ").read_bytes(),
                )
                # Steps of a build in layers know nothing of the store but what is mounted for them
                # alone.
                is_apart = (entry / "ns/mnt").readlink() != Path("/proc/self/ns/mnt").readlink()
                mounts = (entry / "mountinfo").read_bytes() if is_apart else b""
            except OSError:
                continue  # it has ended meanwhile
            if (
                str(self.place).encode() in line + environment + mounts
                and int(entry.name) != os.getpid()
            ):
                found[int(entry.name)] = line.replace(b"\0", b" ").decode(errors="replace")
        return found

    def ids(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What ``newuidmap`` and ``newgidmap`` are told for the user of this store."""
        name = (
            self.become[self.become.index("--reuid") + 1]
            if self.become
            else pwd.getpwuid(os.geteuid()).pw_name
        )
        user = pwd.getpwnam(name)
        found = []
        for file, own in (("/etc/subuid", user.pw_uid), ("/etc/subgid", user.pw_gid)):
            rows = [
                line.split(":")
                for line in Path(file).read_text().splitlines()
                if line.startswith(f"{name}:")
            ]
            found.append((0, own, 1, 1, int(rows[0][1]), int(rows[0][2])))
        return found[0], found[1]

    def mounts(self) -> list[str]:
        return [
            line
            for line in Path("/proc/self/mounts").read_text().splitlines()
            if str(self.place) in line
        ]

    def left(self) -> list[str]:
        """What a store holds that is no lock and no cache."""
        return sorted(
            path.name
            for path in self.images.iterdir()
            if path.suffix != ".lock" and path.name != ".cache"
        )


def quoted(text: str) -> str:
    """A basic string of TOML."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def command_lines() -> set[bytes]:
    """Return the command lines of all processes of the machine, some of which end meanwhile."""
    lines = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            lines.add(path.read_bytes())
    return lines


@pytest.fixture
def tiny(tiny_base: str) -> Iterator[Tiny]:
    """A store of its own, as the user who runs the tests."""
    with tempfile.TemporaryDirectory(prefix="toolkit-test-", dir="/var/tmp") as name:
        yield from tidied(Tiny(Path(name), tiny_base))


@pytest.fixture(scope="session")
def built_store(tiny_base: str) -> Iterator[Tiny]:
    """A store in which `tiny` is built, to be copied."""
    with tempfile.TemporaryDirectory(prefix="toolkit-test-", dir="/var/tmp") as name:
        store = Tiny(Path(name), tiny_base)
        store.images.mkdir()
        recipe = store.recipe(
            "echo hello > /hello", "echo old > /greeting", checks='greeting = "true"'
        )
        done = store.run("build", recipe)
        assert done.returncode == 0, done.stderr
        yield store


@pytest.fixture
def built(tiny: Tiny, built_store: Tiny) -> Tiny:
    """A store of its own with one image, `tiny`, whose greeting is `old`, and its caches."""
    shutil.copytree(built_store.images, tiny.images, symlinks=True, dirs_exist_ok=True)
    shutil.copy(built_store.place / "tiny.toml", tiny.place)
    return tiny


def tidied(store: Tiny) -> Iterator[Tiny]:
    store.images.mkdir(parents=True)
    try:
        yield store
    finally:
        for entry in Path("/proc").glob("[0-9]*"):  # nothing of a failed test goes on
            try:
                if (
                    str(store.place).encode() in (entry / "environ").read_bytes()
                    and int(entry.name) != os.getpid()
                ):
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue


@pytest.fixture(scope="session")
def image_user() -> Iterator[str]:
    """The name of an ordinary user who may build images; made for the tests where root runs them."""
    if os.geteuid() != 0:
        yield pwd.getpwuid(os.geteuid()).pw_name
        return
    # Apptainer wants a home.
    change_accounts("useradd", "--create-home", "--home-dir", f"/var/tmp/{USER}", USER)
    try:
        change_accounts("apptainer", "config", "fakeroot", "--add", USER)
        yield USER
    finally:
        change_accounts("apptainer", "config", "fakeroot", "--remove", USER, check=False)
        change_accounts("userdel", "--remove", USER, check=False)


@pytest.fixture
def users_tiny(tiny_base: str, image_user: str) -> Iterator[Tiny]:
    """As `tiny`, for an ordinary user, who may also read everything: the checkout may lie where only root can enter."""
    become: tuple[str, ...] = ()
    with tempfile.TemporaryDirectory(prefix="toolkit-test-", dir="/var/tmp") as name:
        place = Path(name)
        if os.geteuid() == 0:
            become = becoming(image_user)
            shutil.chown(place, image_user, image_user)
        store = Tiny(place, tiny_base, become)
        for made in tidied(store):
            if become:
                shutil.chown(store.images, image_user, image_user)
            yield made


@pytest.fixture(params=["root", "user"])
def store(request: pytest.FixtureRequest) -> Tiny:
    """A store of whoever runs the tests, and one of an ordinary user."""
    found: Tiny = request.getfixturevalue("tiny" if request.param == "root" else "users_tiny")
    return found
