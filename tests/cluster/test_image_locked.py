"""A small image of real Debian and real Python packages: built, locked, and built by its lock on what might be other machines."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.cluster.image_fixtures import copy_cache, outcomes
from tests.cluster.ordinary_user import becoming
from tests.progress import Silent
from toolkit.images.builder.build import BuildOptions, build
from toolkit.images.lockfile import make as locking
from toolkit.images.lockfile.files import read_lock
from toolkit.images.recipe.block import BUILD_PACKAGES, WHEELS, Block, Step
from toolkit.images.recipe.blocks import BLOCKS
from toolkit.images.recipe.lock import format_lock
from toolkit.images.sif import header as sif
from toolkit.images.store import store
from toolkit.images.store.settings import run_in_image
from toolkit.images.store.sif_files import read_object
from toolkit.model.image import Manifest

DEBIAN = """\
summary = "Debian, and what is put on it"
[base]
kind = "debootstrap"
release = "bookworm"
[space]
image = 200
build = 1000
"""
RECIPE = f"""{DEBIAN}
[[steps]]
block = "apt"
packages = ["less", "man-db"]
[[steps]]
block = "python"
[[steps]]
block = "pip"
packages = ["cloudpickle"]
imports = ["cloudpickle"]
"""
EXTENSION = """\
summary = "small, and something on it"
extends = "small.toml"
[[steps]]
block = "run"
name = "changed"
commands = [
    "sed -i '$ a CHANGED = 1' /opt/venv/lib/python3*/site-packages/cloudpickle/__init__.py",
    "pip uninstall -q -y setuptools",
]
"""
# Prints what is not as it should be: sources without their byte code, and byte code without source.
BYTE_CODE = """\
import importlib.util, pathlib, cloudpickle
files = {*pathlib.Path("/opt/venv/lib").rglob("*")}
sources = {p: p.read_bytes() for p in files if p.suffix == ".py" and not {"test", "tests"} & {*p.parts}}
for path, text in sources.items():
    compiled = pathlib.Path(importlib.util.cache_from_source(path))
    head = b"\\x01\\0\\0\\0" + importlib.util.source_hash(text)  # 1: not compared with the source
    if compiled not in files or compiled.read_bytes()[4:16] != head:
        print(path)
print(*{p for p in files if p.suffix == ".pyc"} - {pathlib.Path(importlib.util.cache_from_source(p)) for p in files})
assert cloudpickle.CHANGED and len(sources) > 100
"""
UNEQUAL = f"""{DEBIAN}
[[steps]]
block = "run"
name = "random"
commands = ["cat /proc/sys/kernel/random/uuid > /random"]
"""


class Machines:
    """Stores that share nothing but recipes and their locks."""

    def __init__(self, place: Path, user: str) -> None:
        self.place, self.user = place, user
        self.recipe, self.extension = place / "small.toml", place / "ext.toml"
        self.recipe.write_text(RECIPE)
        self.extension.write_text(EXTENSION)

    def images(self, machine: str) -> Path:
        return self.place / machine

    def run(
        self,
        machine: str,
        *arguments: object,
        before: tuple[str, ...] = (),
        code: int = 0,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        command = (*before, sys.executable, "-m", "toolkit", "image", *map(str, arguments))
        own = {"TOOLKIT_IMAGES": str(self.images(machine)), "PYTHONDONTWRITEBYTECODE": "1"}
        environment = {**os.environ, **own, **(env or {})}
        done = subprocess.run(
            command, env=environment, cwd=self.place, capture_output=True, text=True, timeout=1200
        )
        assert done.returncode == code, done.stderr
        return done

    def build(
        self,
        machine: str,
        *options: str,
        before: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Build the image by its lock; the hash of its file."""
        words = ("build", self.recipe, "--locked", *options)
        done = self.run(machine, *words, before=before, env=env)
        assert not re.search("^differs", done.stderr, re.MULTILINE), done.stderr
        return self.digest(machine)

    def give_base(self, machine: str, other: str) -> None:
        """Have the base of one store in another one, so that only steps run there."""
        shutil.copytree(self.images(machine) / ".cache/bases", self.images(other) / ".cache/bases")

    def as_user(self, machine: str) -> tuple[tuple[str, ...], dict[str, str]]:
        """What makes a build one of an ordinary user, who may also read everything: the checkout may be where only root can enter."""
        self.images(machine).mkdir(exist_ok=True)
        if os.geteuid() != 0:
            return (), {}
        shutil.chown(self.images(machine), self.user, self.user)
        return becoming(self.user), {"HOME": pwd.getpwnam(self.user).pw_dir}

    def manifest(self, machine: str) -> Manifest:
        known = store.manifest_of(self.images(machine) / "small.sif")
        assert known is not None
        return known

    def digest(self, machine: str, name: str = "small") -> str:
        return hashlib.sha256((self.images(machine) / f"{name}.sif").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def machines(image_user: str, pytorch_image: Path) -> Iterator[Machines]:
    """An image that was built from what there is, and its lock."""
    with tempfile.TemporaryDirectory(prefix="toolkit-test-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        made = Machines(Path(name), image_user)
        # The packages of this base were unpacked for another image already.
        copy_cache(pytorch_image.parent, made.images("first"), "bases")
        made.run("first", "build", made.recipe)
        made.run("first", "lock", made.recipe)
        yield made


@contextmanager
def load() -> Iterator[None]:
    """Keep every core busy."""
    words = ["sh", "-c", "while :; do :; done"]
    busy = [subprocess.Popen(words) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_the_manifest_says_what_is_in_the_image_and_where_it_comes_from(machines: Machines) -> None:
    manifest = machines.manifest("first")
    assert manifest.base is not None
    assert manifest.base.reference == "debian bookworm"
    assert {"libc6", "less", "python3", "mawk"} <= set(manifest.packages.apt)
    assert {"cloudpickle", "pip"} <= set(manifest.packages.pip)
    assert manifest.system.startswith("Debian GNU/Linux 12")
    assert manifest.command == f"toolkit image build {machines.recipe}"
    assert {"toolkit", "apptainer", "debootstrap", "squashfs-tools"} <= set(manifest.tools)
    assert manifest.locked == ""


def test_a_bill_of_materials_is_in_the_image(machines: Machines) -> None:
    # It takes two seconds, and each worker imports each file.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    document = read_object(machines.images("first") / "small.sif", sif.BILL).decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(document) is None
    names = {one["name"] for one in json.loads(document)["components"]}
    assert {"libc6", "less", "cloudpickle"} <= names
    assert machines.run("first", "sbom", "small").stdout == document


def test_a_lock_names_every_package_and_every_file(machines: Machines) -> None:
    lock = read_lock(machines.place / "small.lock")
    manifest = machines.manifest("first")
    assert lock.apt == manifest.packages.apt
    pinned = {one.name: one.version for one in lock.pip}
    assert pinned | lock.brought == manifest.packages.pip
    assert (list(pinned), set(lock.brought)) == (["cloudpickle"], {"pip", "setuptools"})
    # Others can use it without the toolkit.
    words = ("-m", "pip", "download", "-q", "--no-deps", "--require-hashes", "-d", "files", "-r")
    subprocess.run([sys.executable, *words, "small.lock"], cwd=machines.place, check=True)
    (brought,) = (machines.place / "files").iterdir()
    assert brought.name == f"cloudpickle-{pinned['cloudpickle']}-py3-none-any.whl"


def test_byte_code_is_that_of_the_sources_also_after_a_step_that_changes_or_removes_them(
    machines: Machines,
) -> None:
    done = machines.run("first", "build", machines.extension)
    kept = [name for name, outcome in outcomes(done.stderr).items() if outcome == "kept"]
    assert kept == ["base", "apt", "python", "pip"]
    image = str(machines.images("first") / "ext.sif")
    faults = run_in_image(image, ["/opt/venv/bin/python3", "-c", BYTE_CODE], timeout=60)
    assert (faults.stdout.strip(), faults.returncode) == ("", 0), faults


@pytest.mark.long
@pytest.mark.timeout(2400)  # five builds, one of them on one busy core
def test_locked_builds_are_the_same_to_the_last_byte(machines: Machines) -> None:
    """From nothing, from what is kept, by force, by an ordinary user; on one core and on all, under load, on another file system."""
    found = {"kept": machines.build("first")}
    with load(), tempfile.TemporaryDirectory(prefix="toolkit-test-", dir="/dev/shm") as memory:
        other = {"TOOLKIT_BUILD_TMP": memory, "LANG": "tr_TR.UTF-8", "TZ": "Asia/Seoul"}
        one_core = ("taskset", "-c", "0")
        found["in memory, under load"] = machines.build("second", before=one_core, env=other)
    become, env = machines.as_user("third")
    found["an ordinary user"] = machines.build("third", before=become, env=env)
    machines.give_base("second", "fourth")
    found["steps only"] = machines.build("fourth", before=("nice",))
    found["by force"] = machines.build("first", "--force")
    assert set(found.values()) == {found["kept"]}, found
    second, third = machines.manifest("second"), machines.manifest("third")
    assert second.locked
    assert second.partition == third.partition != ""
    assert second.packages == machines.manifest("first").packages
    two = [machines.images(machine) / "small.sif" for machine in ("second", "third")]
    assert "identical contents" in machines.run("second", "diff", *two).stdout
    again = machines.run("second", "build", machines.recipe, "--locked", "--json")
    assert json.loads(again.stdout)["kept"] is True


def test_a_step_that_gives_other_bytes_is_named(machines: Machines) -> None:
    """No lock can hold what a step takes from chance."""
    recipe = machines.place / "unequal.toml"
    recipe.write_text(UNEQUAL)
    machines.run("first", "build", recipe)
    machines.run("first", "lock", recipe)
    differs = r"(?m)^differs +not the locked bytes: random$"
    kept = machines.run("first", "build", recipe, "--locked")
    assert not re.search(differs, kept.stderr), kept.stderr
    machines.give_base("first", "elsewhere")
    elsewhere = machines.run("elsewhere", "build", recipe, "--locked")
    assert re.search(differs, elsewhere.stderr)
    assert machines.digest("elsewhere", "unequal") != machines.digest("first", "unequal")
    # What it has built itself it uses again, and still says so.
    (machines.images("elsewhere") / "unequal.sif").unlink()
    again = machines.run("elsewhere", "build", recipe, "--locked")
    assert outcomes(again.stderr)["random"] == "kept"
    assert re.search(differs, again.stderr), again.stderr


def test_a_version_that_the_mirror_no_longer_has_is_named(machines: Machines) -> None:
    """The image's own apt asks the real mirror, as it does in a locked build after each update."""
    lock = read_lock(machines.place / "small.lock")
    apt = {**lock.apt, "less": "1:0.1-1"}
    gone = msgspec.structs.replace(lock, apt=apt, layers=lock.layers[:1])
    (machines.place / "gone.lock").write_text(format_lock(gone))
    done = machines.run("first", "build", machines.recipe, "--lock-file", "gone.lock", code=74)
    assert "the mirror no longer has 1 package of small" in done.stderr
    assert "less 1:0.1-1 (there is " in done.stderr


class Tool(Block, frozen=True, kw_only=True):
    """Something that is compiled by packages which need others."""

    def output(self) -> Step:
        return Step(
            name="tool",
            build_packages=("make",),
            build_lines=("pip install --no-compile build==1.2.2", f"make -v > {WHEELS}/made"),
            lines=(f"cp {WHEELS}/made /made",),
        )


@pytest.mark.slow("packages of Debian, from the mirror")
def test_a_locked_build_stage_has_the_same_packages(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that its packages need, which pip finds nowhere but among the files of the lock."""
    monkeypatch.setitem(BLOCKS, "tool", Tool)
    monkeypatch.setenv("TOOLKIT_IMAGES", str(machines.images("first")))
    recipe, locked = machines.place / "tool.toml", machines.place / "tool.lock"
    recipe.write_text('summary = "x"\nextends = "small.toml"\n[[steps]]\nblock = "tool"\n')
    image = build(str(recipe), Silent()).path
    listed = run_in_image(image, ["cat", BUILD_PACKAGES], timeout=60).stdout
    lock = locking.make(str(recipe), 1700000000)
    assert {pinned.name for pinned in lock.pip_build} == {"build", "packaging", "pyproject-hooks"}
    assert lock.apt_build.keys() >= {"make"}
    assert not lock.apt_build.keys() & lock.apt.keys()
    # The layer of the tool is made again, and so is the tool.
    locked.write_text(format_lock(msgspec.structs.replace(lock, layers=lock.layers[:4])))
    again = build(str(recipe), Silent(), BuildOptions(lock=str(locked)))
    assert not again.is_current
    assert "tool-build" in (machines.images("first") / "tool.log").read_text()
    assert run_in_image(image, ["cat", BUILD_PACKAGES], timeout=60).stdout == listed
