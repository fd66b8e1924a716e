"""Build steps cannot leave the image: a malicious package tries, as root and as an ordinary user, by the real kernel."""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.attack import Attack
from tests.cluster.image_fixtures import Tiny, copy_libraries, copy_program
from toolkit.images.builder.apptainer.sandbox import Lower, SandboxStep
from toolkit.images.host.kernel import Bind

ATTEMPTS = {name for name in vars(Attack) if not name.startswith("_")}
_NOT_NEEDED = "site-packages test tests __pycache__ config-* idlelib tkinter ensurepip lib2to3"


@pytest.fixture(scope="session")
def python_base(tiny_base: str) -> Iterator[str]:
    """The tiny base with this machine's Python in it, for attacks that need more than a shell."""
    with tempfile.TemporaryDirectory(prefix="toolkit-test-base-", dir="/var/tmp") as name:
        base = Path(name) / "base"
        shutil.copytree(tiny_base, base, symlinks=True)
        Path(name).chmod(0o755)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        library = sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix})
        ignored = shutil.ignore_patterns(*_NOT_NEEDED.split())
        shutil.copytree(library, base / "usr/lib" / version, ignore=ignored)
        (base / "usr/bin").mkdir(parents=True, exist_ok=True)
        program = base / "usr/bin/python3.real"
        shutil.copy(Path(sys.base_prefix, "bin", version), program)
        for file in Path(sys.base_prefix, "lib").glob("libpython3*.so*"):
            shutil.copy(file, base / "usr/lib")
        for file in (program, *(base / "usr/lib" / version).glob("lib-dynload/_ctypes*.so")):
            copy_libraries(file, base)
        (base / "bin/python3").write_text(
            '#!/bin/sh\nexport PYTHONHOME=/usr LD_LIBRARY_PATH=/usr/lib\nexec /usr/bin/python3.real "$@"\n'
        )
        copy_program("ln", base)
        shutil.copy(Path(__file__).with_name("attack.py"), base / "attack.py")
        yield str(base)


@pytest.fixture
def plain(store: Tiny, tiny_base: str) -> Tiny:
    """A store whose base has no Python."""
    store.base = tiny_base
    return store


@pytest.fixture
def store(store: Tiny, python_base: str) -> Tiny:
    store.base = python_base
    return store


@pytest.fixture
def canary(store: Tiny) -> Path:
    """A file of the host that the attacker would be allowed to read and write."""
    path = store.place / "canary"
    path.write_text("canary: nobody has touched this\n")
    path.chmod(0o666)
    return path


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def _put_key() -> None:
    """Put a key into a session of our own, which the build inherits."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.uname().machine == "x86_64":
        assert libc.syscall(250, 1, None) > 0
        assert libc.syscall(248, b"user", b"toolkit-canary", b"secret", 6, -3) > 0


def test_a_malicious_package_cannot_leave_the_step(store, canary, victim):
    _put_key()
    before = canary.stat()
    devices = [Path("/dev", name) for name in "null zero full random urandom tty".split()]
    modes = [(path.stat().st_mode, path.stat().st_uid) for path in devices]
    recipe = store.recipe(f"python3 /attack.py {canary} {victim.pid}")
    done = store.run("build", recipe, seconds=200)
    assert done.returncode == 0, done.stderr
    log = (store.images / "tiny.log").read_text()
    results = dict(re.findall(r"^attack (\w+): (.*)$", log, re.MULTILINE))
    assert set(results) == ATTEMPTS
    assert {name: result for name, result in results.items() if result != "held"} == {}
    assert canary.read_text() == "canary: nobody has touched this\n"
    assert canary.stat().st_mtime_ns == before.st_mtime_ns
    assert [(path.stat().st_mode, path.stat().st_uid) for path in devices] == modes
    assert victim.poll() is None


# Every place of the image that a build makes, mounts upon, reads or deletes from outside, and what
# is there else.
FURNISHED = tuple("etc/hosts etc/resolv.conf mnt tmp proc sys dev opt var/log root var/tmp".split())
RELATIVE = "../../../../../../../../.."


@pytest.fixture
def host(store: Tiny) -> Path:
    """A directory of the host that the builder may change."""
    place = store.place / "host"
    place.mkdir()
    return place


def _give(store: Tiny, *paths: Path) -> None:
    """Give files to the user of the store."""
    if store.become:
        subprocess.run(["chown", "-R", "--reference", store.place, *paths], check=True)


def _link(store: Tiny, host: Path, links: tuple[str, ...], start: str, *, is_there: bool) -> Path:
    """Copy the base with symbolic links to the host in these places; `start` begins each link.

    Args:
        is_there: what the links lead to exists; else only the directory that would hold it.
    """
    for name in FURNISHED if is_there else ():
        place = host / name.replace("/", "-")
        if name.startswith("etc/"):
            place.write_text("canary")
            continue
        (place / "apt").mkdir(parents=True)
        for inner in ("wheels", "dpkg.log", "apt/history.log", "canary"):
            (place / inner).write_text("canary")
    _give(store, host)
    base = store.place / "base"
    shutil.copytree(store.base, base, symlinks=True)
    for name in links:
        place = base / name
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
        place.symlink_to(f"{start}{host}/{name.replace('/', '-')}")
    return base


def _state(directory: Path) -> dict[str, tuple[object, ...]]:
    """Return everything in a directory, with what a write would change."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted((directory, *directory.rglob("*"))):
        state = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        times = (state.st_mtime_ns, state.st_ctime_ns)
        found[str(path)] = (state.st_mode, state.st_uid, state.st_size, *times, content)
    return found


# All links at once find what one of them does, but for the last place.
@pytest.mark.parametrize(
    ("start", "is_there", "links"),
    [
        pytest.param("", True, FURNISHED[:-1], id="absolute"),
        pytest.param(RELATIVE, True, FURNISHED[:-1], id="relative"),
        pytest.param("", False, FURNISHED[:-1], id="to nothing"),
        pytest.param("", True, FURNISHED[-1:], id="var/tmp"),
    ],
)
def test_a_step_is_furnished_within_its_root(plain, host, start, is_there, links):
    """The sandbox alone, on a root with links where it mounts, makes and removes things."""
    _link(plain, host, links, start, is_there=is_there)
    lent, products = plain.place / "lent", plain.place / "products"
    for directory in (lent / "steps", products):
        directory.mkdir(parents=True)
    (lent / "steps/0").write_text(
        "mkdir -p /opt/wheels; echo x > /opt/wheels/made.whl; cat /etc/hosts >&2; echo lent: $(ls /mnt)\n"
    )
    before = _state(host)
    done = _sandboxed(
        plain,
        ("/bin/sh", "-e", "/mnt/steps/0"),
        binds=(
            Bind(source="/etc/hosts", target="/etc/hosts"),
            Bind(source=str(lent), target="/mnt"),
        ),
        passing_binds=(Bind(source=str(lent), target="/opt/only-here"),),
        products=str(products),
        product_source="/opt/wheels",
    )
    assert _state(host) == before
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lent: steps" in done.stdout
    assert (products / "made.whl").read_text() == "x\n"


@pytest.mark.parametrize("name", ["dev", "sys"])
def test_a_link_through_proc_makes_nothing_on_the_host(plain, name):
    """A mounted /proc has links to the root in which bubblewrap prepares a step."""
    base, made = plain.place / "base", plain.place / "made"
    shutil.copytree(plain.base, base, symlinks=True)
    (base / name).rmdir()
    (base / name).symlink_to(f"proc/self/root/oldroot{made}")
    done = _sandboxed(plain, ("/bin/sh", "-c", "true"))
    assert not made.exists()
    assert "leads into its /proc" in done.stdout


def _sandboxed(
    store: Tiny, command: tuple[str, ...], **fields: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command in the sandbox alone, on ``base`` and in ``work`` of the store's place."""
    (store.place / "work").mkdir()
    step = SandboxStep(
        bubblewrap=shutil.which("bwrap") or "bwrap",
        directory=str(store.place / "work"),
        lowers=(Lower(path=str(store.place / "base")),),
        upper="u0",
        command=command,
        environment={"PATH": "/bin"},
        **fields,
    )
    if store.become or os.geteuid() != 0:
        step = step._replace(users=_ids(store, "/etc/subuid"), groups=_ids(store, "/etc/subgid"))
    file = store.place / "step.json"
    file.write_text(json.dumps(step._asdict()))
    _give(store, *(path for path in store.place.iterdir() if path.name != "host"))
    module = "toolkit.images.builder.apptainer.sandbox"
    words = [*store.become, sys.executable, "-m", module, str(file)]
    env = {**store.environment(), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False)


def _ids(store: Tiny, file: str) -> tuple[int, ...]:
    """What ``newuidmap`` or ``newgidmap`` is told for the user of a store."""
    user = pwd.getpwuid(store.place.stat().st_uid)
    rows = (line.split(":") for line in Path(file).read_text().splitlines())
    first, count = next(row[1:] for row in rows if row[0] == user.pw_name)
    own = user.pw_uid if file.endswith("uid") else user.pw_gid
    return (0, own, 1, 1, int(first), int(count))


# Of whole builds one of each kind does: a file, a mount, a directory of logs.
@pytest.mark.parametrize(
    ("start", "is_there", "name"),
    [("", False, "etc/hosts"), (RELATIVE, True, "mnt"), ("", True, "var/log")],
)
def test_links_of_a_base_lead_to_nothing_of_the_host(plain, host, start, is_there, name):
    """A whole build. Apptainer, which packs the base, refuses some of these; it must not write through any."""
    plain.base = str(_link(plain, host, (name,), start, is_there=is_there))
    before = _state(host)
    done = plain.run("build", plain.recipe("echo made > /made"))
    assert _state(host) == before
    refused = "the step base failed" in done.stderr or (name == "mnt" and done.returncode == 74)
    assert done.returncode == 0 or (refused and name != "var/log"), done.stderr


def test_what_a_step_links_to_the_host_is_not_followed_afterwards(store, host):
    """A step replaces directories that the builder tidies, and takes products from, by links to the host."""
    for name in ("log", "wheels"):
        (host / name).mkdir()
        for inner in ("dpkg.log", "canary.whl"):
            (host / name / inner).write_text("canary")
    _give(store, host)
    before = _state(host)
    commands = (
        f"rm -rf /var/log /opt && ln -s {host}/log /var/log && mkdir /opt && ln -s {host}/wheels /opt/wheels",
        f"mkdir /links && ln -s {host}/log /links/__pycache__ && ln -s {host}/log/dpkg.log /links/x.pyc",
    )
    store.built(store.recipe(*commands))
    assert _state(host) == before
    assert store.inside("/bin/ls", "/links").split() == ["__pycache__", "x.pyc"]
