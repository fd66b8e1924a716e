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
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ordinary_user import becoming, change_accounts
from tests.cluster.ranks import wait_for
from toolkit.images.sif.header import PARTITION
from toolkit.images.store.diff import parse_listing
from toolkit.images.store.sif_files import read_descriptors
from toolkit.images.store.store import manifest_of
from toolkit.model.base import to_json

# The tests' own store, never the user's. It stays, so that the second run need not build.
IMAGES = Path(os.environ.get("TOOLKIT_TEST_IMAGES") or Path.home() / ".cache/toolkit-tests/images")
USER = f"tk-image-{os.getpid()}"  # two runs of the tests on one machine do not meet
_PROGRAMS = "sh cat grep id mkdir sleep env find rm ls chown printf test true date xargs nproc"
_DIRECTORIES = "bin etc/dpkg/dpkg.cfg.d etc/apt proc sys dev tmp root home mnt opt var/tmp var/log"
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
        for directory in _DIRECTORIES.split():
            (base / directory).mkdir(parents=True)
        for program in _PROGRAMS.split():
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
    copy_libraries(found, base)


def copy_libraries(program: str | Path, base: Path) -> None:
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    for library in re.findall(r"(/\S+)", said):
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

    @property
    def sif(self) -> Path:
        return self.images / "tiny.sif"

    @property
    def manifest(self) -> dict[str, Any]:
        return manifest_in(self.sif)

    def begins(self) -> str:
        """What a recipe says of its base."""
        return f'kind = "localimage"\npath = "{self.base}"'

    def recipe(
        self, *commands: str, checks: str = "", more: str = "", name: str = "tiny", base: str = ""
    ) -> Path:
        """Write a recipe with one step, called `act`."""
        path = self.place / f"{name}.toml"
        lines = json.dumps(commands, ensure_ascii=False)
        path.write_text(
            f'summary = "tiny"\n[base]\n{base or self.begins()}\n[space]\nimage = 10\nbuild = 50\n'
            f'[[steps]]\nblock = "run"\nname = "act"\ncommands = {lines}\nchecks = {{{checks}}}\n{more}'
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
        words = "apptainer --silent exec --containall".split()
        command = [*self.become, *words, str(self.sif), *argv]
        return subprocess.run(command, cwd="/", capture_output=True, text=True, check=True).stdout

    def built(self, recipe: Path, *options: str) -> dict[str, str]:
        """Build, and return what became of each step."""
        done = self.run("build", recipe, *options)
        assert done.returncode == 0, done.stderr
        return outcomes(done.stderr)

    def files(self) -> dict[str, str]:
        """Mode, owner, size and link of everything in the image, as no container shows it."""
        return {
            path: entry.facts for path, entry in parse_listing(unsquashfs(self.sif, "-lln")).items()
        }

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
        place, found = str(self.place).encode(), {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                line = (entry / "cmdline").read_bytes()
                known = line + (entry / "environ").read_bytes()
                # Steps of a build in layers know nothing of the store but what is mounted for them
                # alone.
                if (entry / "ns/mnt").readlink() != Path("/proc/self/ns/mnt").readlink():
                    known += (entry / "mountinfo").read_bytes()
            except OSError:
                continue  # it has ended meanwhile
            if place in known and int(entry.name) != os.getpid():
                found[int(entry.name)] = line.replace(b"\0", b" ").decode(errors="replace")
        return found

    def idle(self) -> None:
        """Wait until nothing works for this store; nothing is mounted in it then."""
        wait_for(lambda: not self.processes(), f"the end of {self.processes()}")
        assert str(self.place) not in Path("/proc/self/mounts").read_text()

    def left(self) -> list[str]:
        """What a store holds that is no lock and no cache."""
        names = (path.name for path in self.images.iterdir())
        return sorted(name for name in names if not name.endswith((".lock", ".cache")))


def steps(*named: tuple[str, str]) -> str:
    """Further steps of a recipe: a name and a command each."""
    step = '[[steps]]\nblock = "run"\nname = "{}"\ncommands = [{}]\n'
    return "".join(step.format(name, json.dumps(command)) for name, command in named)


def outcomes(stderr: str) -> dict[str, str]:
    """What became of each step: done, kept, failed."""
    rows = re.finditer(r"^(\S+) .* (done|kept|failed|stopped) +\d+:\d\d$", stderr, re.MULTILINE)
    return {found[1]: found[2] for found in rows}


def unsquashfs(image: Path, *options: str, name: str = "") -> str:
    """What `unsquashfs` says of the file system of an image, or of a file in it."""
    (system,) = (one for one in read_descriptors(image) if one.data_type == PARTITION)
    words = ["unsquashfs", *options, "-offset", str(system.offset), str(image)]
    words += [name] if name else []
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def key(directory: Path, kind: str, *guard: str) -> Path:
    """Make a private key, and its public part beside it if it is not guarded."""
    made = {"ec": "-algorithm EC -pkeyopt ec_paramgen_curve:P-256", "ed": "-algorithm ed25519"}
    private, public = directory / f"{kind}.pem", directory / f"{kind}.pub"
    words = ["openssl", "genpkey", *made[kind].split(), *guard, "-out", str(private)]
    subprocess.run(words, check=True, capture_output=True)
    if not guard:
        words = ["openssl", "pkey", "-in", str(private), "-pubout", "-out", str(public)]
        subprocess.run(words, check=True)
    return private


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[None]:
    """Mount a file system of this size on an empty directory; root can."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root")
    options = ("-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs")
    subprocess.run(["mount", *options, place], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


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
        commands = ("echo hello > /hello", "echo old > /greeting")
        store.built(store.recipe(*commands, checks='greeting = "true"'))
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
            with suppress(OSError):
                is_its = str(store.place).encode() in (entry / "environ").read_bytes()
                if is_its and int(entry.name) != os.getpid():
                    os.kill(int(entry.name), signal.SIGKILL)


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
