"""Byte code of an earlier build is taken over where nothing since can have changed it, and nowhere else."""

from __future__ import annotations

import compileall
import os
import py_compile
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.images.builder.apptainer import seeds
from toolkit.images.builder.apptainer.protocol import Task
from toolkit.images.recipe.chain import Link
from toolkit.images.store.cache import CacheEntry, Note

SITE = "opt/venv/lib/python3.11/site-packages"
TIME = 315619200


class Layers:
    """The layers of an image in directories, as the sandbox sees them."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def write(self, layer: str, path: str, text: str = "x = 1\n") -> Path:
        target = self.place / layer / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        os.utime(target, (TIME, TIME))
        return target

    def compile(self, layer: str, source: Path, inner: str) -> None:
        target = self.place / layer / inner
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(source), str(target), dfile=f"/{inner}", invalidation_mode=mode)

    def hide(self, layer: str, path: str) -> None:
        target = self.place / layer / path
        target.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(target, stat.S_IFCHR, 0)


@pytest.fixture
def layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layers:
    """A base with two modules and their byte code, and a later layer that adds a package."""
    made = Layers(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        source = made.write("l0", f"{SITE}/pack/{name}.py")
        made.compile("l2", source, f"{SITE}/pack/__pycache__/{name}.cpython-311.pyc")
    made.write("u0", f"{SITE}/added/__init__.py")
    (tmp_path / "u1").mkdir()
    return made


TASK = Task(
    name="clean", detail="", script="", lowers=("u0", "l0"), upper="u1", seed="l2", seed_below=1
)
ONE, TWO = (f"{SITE}/pack/__pycache__/{name}.cpython-311.pyc" for name in ("one", "two"))


def codes_of(task: Task) -> set[str]:
    return {path for paths in seeds.find(task, "l0").values() for path in paths}


@pytest.mark.usefixtures("layers")
def test_unchanged_sources_keep_their_byte_code() -> None:
    assert codes_of(TASK) == {ONE, TWO}


def test_a_source_that_was_replaced_by_one_of_the_same_size_and_time_is_compiled(
    layers: Layers,
) -> None:
    layers.write("u0", f"{SITE}/pack/one.py", "x = 2\n")
    assert codes_of(TASK) == {TWO}


@pytest.mark.parametrize("hidden", ["pack", "pack/two.py"])
def test_a_source_that_was_removed_has_no_byte_code(hidden: str, layers: Layers) -> None:
    layers.hide("u0", f"{SITE}/{hidden}")
    assert codes_of(TASK) == ({ONE} if hidden.endswith("two.py") else set())


def test_byte_code_that_a_later_step_brought_is_left_alone(layers: Layers) -> None:
    layers.write("u0", TWO, "planted")
    assert codes_of(TASK) == {ONE}


@pytest.mark.parametrize(
    "path", ["usr/bin/python3.11", "usr/lib/python3.11/ast.py", "opt/venv/bin/python3", "etc/x"]
)
def test_nothing_is_taken_over_after_a_step_that_changes_more_than_packages(
    path: str, layers: Layers
) -> None:
    layers.write("u0", path)
    assert codes_of(TASK) == set()


def test_byte_code_of_a_source_that_the_step_itself_changed_is_not_taken_over(
    layers: Layers,
) -> None:
    layers.write("l2", f"{SITE}/pack/one.py", "changed = 1\n")
    assert codes_of(TASK) == {TWO}


def test_a_link_instead_of_a_source_is_not_followed(layers: Layers) -> None:
    one = layers.place / "l0" / SITE / "pack/one.py"
    one.unlink()
    one.symlink_to(f"/{SITE}/added/__init__.py")
    assert codes_of(TASK) == {TWO}


def test_compileall_passes_over_the_sources_and_compiles_the_others(layers: Layers) -> None:
    shutil.copytree(layers.place / "u0", layers.place / "l0", dirs_exist_ok=True)
    passing = layers.place / "passing"
    passing.mkdir()
    (passing / "compileall.py").write_text(seeds.COMPILEALL)
    root = layers.place / "l0"
    names = (os.fsencode(root / path) for path in seeds.find(TASK, "l0"))
    (passing / "skipped").write_bytes(b"".join(name + b"\0" for name in names))
    for workers in ("1", "2"):
        argv = [sys.executable, "-m", "compileall", "-qq", "-f", "-j", workers, str(root)]
        subprocess.run(argv, env={"PYTHONPATH": str(passing)}, check=True)
        compiled = {path.name.partition(".")[0] for path in root.rglob("*.pyc")}
        assert compiled == {"__init__"}
    compileall.compile_dir(root, quiet=2)
    assert len(list(root.rglob("*.pyc"))) == 3


def test_whole_directories_are_mounted_and_what_the_step_made_stays(layers: Layers) -> None:
    seeded = seeds.find(TASK, "l0")
    cache = layers.place / "u1" / SITE / "pack/__pycache__"
    cache.parent.mkdir(parents=True)
    seeds.make_directories("u1", seeded)
    assert seeds.copy("u1", seeded, "l2") == [f"{SITE}/pack/__pycache__"]
    assert list(cache.iterdir()) == []
    (layers.place / "u1" / TWO).write_bytes(b"compiled by the step")
    assert seeds.copy("u1", seeded, "l2") == []
    assert (layers.place / "u1" / ONE).read_bytes() == (layers.place / "l2" / ONE).read_bytes()
    assert (layers.place / "u1" / ONE).stat().st_mode == (layers.place / "l2" / ONE).stat().st_mode
    assert (layers.place / "u1" / TWO).read_bytes() == b"compiled by the step"


@pytest.mark.parametrize(
    ("path", "is_untouched"),
    [
        (f"{SITE}/pack/one.py", False),
        (f"{SITE}/pack", False),
        (f"{SITE}/pack/other.py", True),
        ("etc/one.py", True),
    ],
)
def test_a_source_that_the_step_changes_or_hides_is_noticed(
    path: str, is_untouched: bool, layers: Layers
) -> None:
    layers.hide("u1", path)
    assert seeds.is_untouched("u1", seeds.find(TASK, "l0")) == is_untouched


def test_a_link_that_the_step_left_leads_nowhere(layers: Layers) -> None:
    seeded = seeds.find(TASK, "l0")
    outside = layers.place / "outside/pack/__pycache__"
    outside.mkdir(parents=True)
    (layers.place / "u1" / SITE).parent.mkdir(parents=True)
    (layers.place / "u1" / SITE).symlink_to(layers.place / "outside")
    seeds.make_directories("u1", seeded)
    assert seeds.copy("u1", seeded, "l2") == []
    assert list(outside.iterdir()) == []


LINK = Link(name="clean", detail="", script="compile\n", key="k")


def entry(digest: str, **facts: str) -> CacheEntry:
    note = Note(about="clean", size=1, time=0, digest=digest, facts=facts)
    return CacheEntry(kind="layers", key=digest, path=digest, note=note, used=0.0)


def test_the_layer_with_the_most_layers_in_common_is_chosen() -> None:
    used = [entry(digest) for digest in ("base", "torch", "pip")]
    few = entry("few", **seeds.facts_of(LINK, used[:2]))
    most = entry("most", **seeds.facts_of(LINK, used))
    other_base = entry("other", **seeds.facts_of(LINK, [entry("other-base"), *used[1:]]))
    more = entry("more", **seeds.facts_of(LINK, [*used, entry("since")]))
    other_script = entry(
        "script", **seeds.facts_of(Link(name="clean", detail="", script="-O\n", key=""), used)
    )
    assert seeds.choose([few, most, other_base, more, other_script], LINK, used) == (most, 3)
    assert seeds.choose([other_base, more, other_script, entry("old")], LINK, used) is None
