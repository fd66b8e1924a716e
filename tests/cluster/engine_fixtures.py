"""A real Docker engine and real registries for tests: started as root when the first test asks for them, ended by their process ids.

Everything of theirs is below one directory in /var/tmp. The engine has mounts of its own, which end
with it, and no networks of its own: what it runs sees the machine's, so no bridge and no rule of a
firewall is left behind.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.ranks import wait_for

_PREFIX = "toolkit-engine-"
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
REGISTRY_USER, REGISTRY_PASSWORD = "reader", "stand-in password"
# What `htpasswd -B` writes for it; fixed, so that no test needs the program.
_HTPASSWD = "reader:$2y$05$abcdefghijklmnopqrstuuKAexcJ0UOk3kdOZlGua9Pmrp63f/gdm\n"


@dataclass(frozen=True)
class Daemon:
    """A program that serves until it is ended."""

    process: subprocess.Popen[bytes]

    def end(self, *, seconds: float = 30) -> None:
        """Ask it to end, and make it end when it does not."""
        self.process.terminate()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True)
class TestEngine:
    """An engine of Docker's, which builds images and runs containers.

    Attributes:
        address: for ``DOCKER_HOST``.
        directory: where it keeps everything.
        daemon: the process.
    """

    __test__ = False

    address: str
    directory: Path
    daemon: Daemon

    @property
    def environment(self) -> dict[str, str]:
        return {"DOCKER_HOST": self.address}

    def end(self) -> None:
        """End it, and what it leaves behind: steps of builds, and containers, which go on without it."""
        self.daemon.end()
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if str(self.directory) in (entry / "mountinfo").read_text().split("\n", 1)[0]:
                    os.kill(int(entry.name), signal.SIGKILL)

    def client(self, *words: str, input: bytes | None = None, check: bool = True) -> str:
        """What the client that came with the engine says; another may be before it on the PATH."""
        program = shutil.which("docker", path="/usr/bin:/usr/local/bin")
        assert program, "docker is missing: toolkit setup --with tests"
        env = {**os.environ, **self.environment, "DOCKER_BUILDKIT": "1"}
        done = subprocess.run([program, *words], env=env, input=input, capture_output=True)
        assert not check or done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def containers(self) -> list[str]:
        """The names of all containers that there are."""
        return self.client("ps", "--all", "--format", "{{.Names}}").split()


@dataclass(frozen=True)
class TestRegistry:
    """A registry on a port of the loopback address."""

    __test__ = False

    name: str

    def login(self, home: Path) -> None:
        """Put the right login into the Docker configuration of a home directory."""
        secret = base64.b64encode(f"{REGISTRY_USER}:{REGISTRY_PASSWORD}".encode()).decode()
        (home / ".docker").mkdir(exist_ok=True)
        (home / ".docker/config.json").write_text(
            json.dumps({"auths": {self.name: {"auth": secret}}})
        )


def start(argv: list[str], directory: Path, name: str, answers: Callable[[], object]) -> Daemon:
    """Start a daemon that ends with us, whatever ends us, and wait until it answers."""
    log = directory / f"{name}.log"
    with log.open("ab") as stream:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *argv],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env={"PATH": _PATH, "HOME": str(directory), "TMPDIR": str(directory)},
            start_new_session=True,
        )
    wait_for(lambda: process.poll() is not None or answers(), f"{name} to answer")
    assert process.poll() is None, log.read_text()[-3000:]
    return Daemon(process)


def start_engine(directory: Path) -> TestEngine:
    """An engine with its data in ``directory``."""
    sock = directory / "docker.sock"
    places = {"--data-root": "data", "--exec-root": "exec", "--pidfile": "docker.pid"}
    options = [word for option, name in places.items() for word in (option, str(directory / name))]
    options += ["-H", f"unix://{sock}"]
    options += ["--storage-driver", "overlay2" if overlays(directory) else "vfs"]
    options += "--exec-opt native.cgroupdriver=cgroupfs --bridge=none --iptables=false".split()
    options += "--ip6tables=false --ip-forward=false --ip-masq=false --log-level warn".split()
    # The data is mounted on itself, privately: what containers mount there is gone with the last
    # process of it.
    apart = "unshare --mount --propagation private dockerd".split()
    daemon = start([*apart, *options], directory, "dockerd", lambda: answers(sock))
    return TestEngine(f"unix://{sock}", directory, daemon)


def overlays(directory: Path) -> bool:
    """Whether an overlay can be mounted there; where not, there is ``vfs``, which works everywhere."""
    with tempfile.TemporaryDirectory(dir=directory) as name:
        for part in ("lower", "upper", "work", "at"):
            Path(name, part).mkdir()
        options = f"lowerdir={name}/lower,upperdir={name}/upper,workdir={name}/work"
        words = "unshare --mount mount -t overlay overlay -o".split()
        tried = subprocess.run([*words, options, f"{name}/at"], capture_output=True)
    return tried.returncode == 0


def answers(sock: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
        connection.settimeout(3)
        connection.connect(str(sock))
        connection.sendall(b"GET /_ping HTTP/1.0\r\nHost: d\r\n\r\n")
        return b"OK" in connection.recv(4096)
    return False


@pytest.fixture(scope="session")
def engine_directory() -> Iterator[Path]:
    """A directory for all of them, gone at the end; those of test runs that were killed go now."""
    for old in Path("/var/tmp").glob(f"{_PREFIX}[0-9]*"):
        if not Path("/proc", old.name.split("-")[2]).exists():
            shutil.rmtree(old, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir="/var/tmp"))
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)
    assert str(directory) not in Path("/proc/self/mounts").read_text()


@pytest.fixture(scope="session")
def cgroups() -> Iterator[None]:
    """Control groups, which a machine without an init may not have mounted."""
    if "cgroup" in Path("/proc/mounts").read_text():
        yield
        return
    root = Path("/sys/fs/cgroup")
    subprocess.run(["mount", "-t", "tmpfs", "cgroup", root], check=True)
    rows = [line.split() for line in Path("/proc/cgroups").read_text().splitlines()[1:]]
    for name in (name for name, _, _, is_enabled in rows if is_enabled == "1"):
        (root / name).mkdir()
        subprocess.run(["mount", "-t", "cgroup", "-o", name, "cgroup", root / name], check=False)
    yield
    subprocess.run(["umount", "--recursive", root], check=False)


@pytest.fixture(scope="session")
def docker_engine(engine_directory: Path, cgroups: None) -> Iterator[TestEngine]:
    """An engine of the tests' own, empty at first."""
    del cgroups
    if os.geteuid() != 0:
        pytest.skip("an engine is started by root")
    directory = engine_directory / "engine"
    directory.mkdir()
    engine = start_engine(directory)
    yield engine
    engine.end()


def _registry(directory: Path, *, guarded: bool) -> Iterator[TestRegistry]:
    directory.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (directory / "htpasswd").write_text(_HTPASSWD)
    guard = f"auth: {{htpasswd: {{realm: tests, path: {directory}/htpasswd}}}}\n" if guarded else ""
    (directory / "registry.yml").write_text(
        f"version: 0.1\nlog: {{level: warn}}\nstorage: {{filesystem: {{rootdirectory: {directory}/data}}}}\n"
        f'http: {{addr: "127.0.0.1:{port}"}}\n{guard}'
    )
    name = f"localhost:{port}"
    words = ["docker-registry", "serve", str(directory / "registry.yml")]
    daemon = start(words, directory, "registry", lambda: _serves(name))
    yield TestRegistry(name)
    daemon.end()


def _serves(registry: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(f"http://{registry}/v2/", timeout=3).close()
    except urllib.error.HTTPError as error:
        return error.code == 401
    except OSError:
        return False
    return True


@pytest.fixture(scope="session")
def registry(engine_directory: Path) -> Iterator[TestRegistry]:
    """A registry that everybody may read and write."""
    yield from _registry(engine_directory / "registry", guarded=False)


@pytest.fixture(scope="session")
def guarded_registry(engine_directory: Path) -> Iterator[TestRegistry]:
    """A registry that wants a login: ``REGISTRY_USER`` and ``REGISTRY_PASSWORD``."""
    yield from _registry(engine_directory / "guarded", guarded=True)


@pytest.fixture(scope="session")
def tiny_reference(docker_engine: TestEngine, registry: TestRegistry, tiny_base: str) -> str:
    """A handful of programs as an image in the registry, under the name of another registry that stands for it: a recipe's base."""
    put_tiny(docker_engine, tiny_base, f"{registry.name}/stand-in/tiny:22.03-py3")
    return "registry.example.org/stand-in/tiny:22.03-py3"


def put_tiny(engine: TestEngine, tiny_base: str, name: str) -> None:
    """Make an image of the directory ``tiny_base``, and push it."""
    argv = ["tar", "-C", tiny_base, "-c", "."]
    packed = subprocess.run(argv, capture_output=True, check=True).stdout
    said = 'org.opencontainers.image.description="stand-in: a handful of programs for tests"'
    engine.client(
        "import", "--change", f"LABEL {said}", "--change", "ENV PATH=/bin", "-", name, input=packed
    )
    engine.client("push", name)
