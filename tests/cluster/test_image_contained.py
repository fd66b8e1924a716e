"""Build steps cannot leave the image: a malicious package tries, as root and as an ordinary user, by the real kernel."""

from __future__ import annotations

import ctypes
import json
import os
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
from tests.cluster.image_fixtures import Tiny, copy_program
from toolkit.images.builder.apptainer.sandbox import Lower, SandboxStep
from toolkit.images.host.kernel import Bind

ATTEMPTS = {name for name in vars(Attack) if not name.startswith("_")}
_NOT_NEEDED = (
    *"site-packages test tests __pycache__ config-* idlelib tkinter ensurepip lib2to3".split(),
)


@pytest.fixture(scope="session")
def python_base(tiny_base: str) -> Iterator[str]:
    """The tiny base with this machine's Python in it, for attacks that need more than a shell."""
    with tempfile.TemporaryDirectory(prefix="toolkit-test-base-", dir="/var/tmp") as name:
        base = Path(name) / "base"
        shutil.copytree(tiny_base, base, symlinks=True)
        Path(name).chmod(0o755)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        shutil.copytree(
            sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}),
            base / "usr/lib" / version,
            ignore=shutil.ignore_patterns(*_NOT_NEEDED),
        )
        (base / "usr/bin").mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(sys.base_prefix, "bin", version), base / "usr/bin/python3.real")
        for library in Path(sys.base_prefix, "lib").glob("libpython3*.so*"):
            shutil.copy(library, base / "usr/lib")
        for program in (
            base / "usr/bin/python3.real",
            *(base / "usr/lib" / version).glob("lib-dynload/_ctypes*.so"),
        ):
            _copy_libraries(program, base)
        (base / "bin/python3").write_text(
            '#!/bin/sh\nexport PYTHONHOME=/usr LD_LIBRARY_PATH=/usr/lib\nexec /usr/bin/python3.real "$@"\n'
        )
        copy_program("ln", base)
        shutil.copy(Path(__file__).with_name("attack.py"), base / "attack.py")
        yield str(base)


def _copy_libraries(program: Path, base: Path) -> None:
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    for library in re.findall(r"(/\S+)", said):
        target = base / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy(Path(library).resolve(), target)


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
    done = store.run(
        "build", store.recipe(f"python3 /attack.py {canary} {victim.pid}"), seconds=200
    )
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


def _linked_base(tiny_base: str, target: Path, links: tuple[str, ...], start: str) -> Path:
    """Copy the base with symbolic links to the host in these places; `start` begins each link."""
    base = target / "base"
    shutil.copytree(tiny_base, base, symlinks=True)
    for name in links:
        place = base / name
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
        place.symlink_to(f"{start}{target}/host/{name.replace('/', '-')}")
    return base


def _state(directory: Path) -> dict[str, tuple[object, ...]]:
    """Return everything in a directory, with what a write would change."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted((directory, *directory.rglob("*"))):
        state = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path)] = (
            state.st_mode,
            state.st_uid,
            state.st_size,
            state.st_mtime_ns,
            state.st_ctime_ns,
            content,
        )
    return found


def _host(store: Tiny, *, there: bool) -> Path:
    """Make what the links lead to: files and directories that the builder may change, or only the directory that would hold them."""
    host = store.place / "host"
    host.mkdir()
    for name in FURNISHED if there else ():
        place = host / name.replace("/", "-")
        if name.startswith("etc/"):
            place.write_text("canary")
            continue
        (place / "apt").mkdir(parents=True)
        for inner in ("wheels", "dpkg.log", "apt/history.log", "canary"):
            (place / inner).write_text("canary")
    if store.become:
        subprocess.run(["chown", "-R", "--reference", str(store.place), str(host)], check=True)
    return host


RELATIVE = "../../../../../../../../.."
COMBINED = [(start, there, FURNISHED[:-1]) for start in ("", RELATIVE) for there in (True, False)]
# All links at once find what one of them does, but for the last place; and of whole builds one of
# each kind does: a file, a mount, a directory of logs, a link that Apptainer itself refuses.
ALONE = [("", there, FURNISHED[-1:]) for there in (True, False)]
WHOLE_BUILDS = [
    *(("", True, name) for name in ("etc/hosts", "mnt", "var/log")),
    ("", False, "etc/hosts"),
    (RELATIVE, True, "mnt"),
]


def _told(case: object) -> str | None:
    return (
        "relative"
        if case == RELATIVE
        else "absolute"
        if case == ""
        else "all"
        if isinstance(case, tuple) and len(case) > 1
        else None
    )


@pytest.mark.parametrize(
    ("start", "there", "links"),
    [*COMBINED, *ALONE],
    ids=_told,
)
def test_a_step_is_furnished_within_its_root(store, tiny_base, start, there, links):
    """The sandbox alone, on a root with links where it mounts, makes and removes things."""
    host = _host(store, there=there)
    _linked_base(tiny_base, store.place, links, start)
    work, lent = store.place / "work", store.place / "lent"
    for directory in (work, lent / "steps"):
        directory.mkdir(parents=True)
    (lent / "steps/0").write_text(
        "mkdir -p /opt/wheels; echo x > /opt/wheels/made.whl; cat /etc/hosts >&2; echo lent: $(ls /mnt)\n"
    )
    (store.place / "products").mkdir()
    before = _state(host)
    done = _sandboxed(
        store,
        ("/bin/sh", "-e", "/mnt/steps/0"),
        binds=(
            Bind(source="/etc/hosts", target="/etc/hosts"),
            Bind(source=str(lent), target="/mnt"),
        ),
        passing_binds=(Bind(source=str(lent), target="/opt/only-here"),),
        products=str(store.place / "products"),
        product_source="/opt/wheels",
    )
    assert _state(host) == before
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lent: steps" in done.stdout
    assert (store.place / "products/made.whl").read_text() == "x\n"


@pytest.mark.parametrize("name", ["dev", "sys"])
def test_a_link_through_proc_makes_nothing_on_the_host(store, tiny_base, name):
    """A mounted /proc has links to the root in which bubblewrap prepares a step."""
    base, made = store.place / "base", store.place / "made"
    shutil.copytree(tiny_base, base, symlinks=True)
    (base / name).rmdir()
    (base / name).symlink_to(f"proc/self/root/oldroot{made}")
    (store.place / "work").mkdir()
    done = _sandboxed(store, ("/bin/sh", "-c", "true"))
    assert not made.exists()
    assert "leads into its /proc" in done.stdout


def _sandboxed(
    store: Tiny, command: tuple[str, ...], **fields: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command in the sandbox alone, on ``base`` and in ``work`` of the store's place."""
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
        users, groups = store.ids()
        step = step._replace(users=users, groups=groups)
    file = store.place / "step.json"
    file.write_text(json.dumps(step._asdict()))
    if store.become:
        names = [path for path in store.place.iterdir() if path.name != "host"]
        subprocess.run(["chown", "-R", "--reference", store.place, *names], check=True)
    module = "toolkit.images.builder.apptainer.sandbox"
    return subprocess.run(
        [*store.become, sys.executable, "-m", module, str(file)],
        env={**store.environment(), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("start", "there", "name"),
    WHOLE_BUILDS,
    ids=_told,
)
def test_links_of_a_base_lead_to_nothing_of_the_host(store, tiny_base, start, there, name):
    """A whole build. Apptainer, which packs the base, refuses some of these; it must not write through any."""
    host = _host(store, there=there)
    store.base = str(_linked_base(tiny_base, store.place, (name,), start))
    before = _state(host)
    done = store.run("build", store.recipe("echo made > /made"))
    assert _state(host) == before
    refused = "the step base failed" in done.stderr or (
        name in ("dev", "proc", "var/tmp", "mnt") and done.returncode == 74
    )
    assert done.returncode == 0 or refused, done.stderr
    assert done.returncode == 0 or start or name not in ("opt", "var/log"), done.stderr


def test_what_a_step_links_to_the_host_is_not_followed_afterwards(store):
    """A step replaces directories that the builder tidies, and takes products from, by links to the host."""
    host = store.place / "host"
    for name in ("log", "wheels"):
        (host / name).mkdir(parents=True)
        for inner in ("dpkg.log", "canary.whl"):
            (host / name / inner).write_text("canary")
    if store.become:
        subprocess.run(["chown", "-R", "--reference", str(store.place), str(host)], check=True)
    before = _state(host)
    commands = (
        f"rm -rf /var/log /opt && ln -s {host}/log /var/log && mkdir /opt && ln -s {host}/wheels /opt/wheels",
        f"mkdir /links && ln -s {host}/log /links/__pycache__ && ln -s {host}/log/dpkg.log /links/x.pyc",
    )
    done = store.run("build", store.recipe(*commands))
    assert done.returncode == 0, done.stderr
    assert _state(host) == before
    assert store.inside("/bin/ls", "/links").split() == ["__pycache__", "x.pyc"]
