"""What a build is made of, each part alone: its log, its directories, its privileges, its programs, its layers and their cache."""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import shutil
import sys
import tempfile
import time
from collections import namedtuple
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.faults.steps import kill_at_each
from tests.progress import Silent
from toolkit import shell
from toolkit.checks import failed
from toolkit.errors import BusyError, ForbiddenError, ImageMissingError, NoSpaceError
from toolkit.images.builder import build as building
from toolkit.images.builder.apptainer import apptainer, layered, programs
from toolkit.images.builder.apptainer.apptainer import BuildOutcome
from toolkit.images.builder.apptainer.sandbox import Lower
from toolkit.images.builder.follow import Follower, Reader
from toolkit.images.builder.remote_base import BuildTask
from toolkit.images.host import host_config as host
from toolkit.images.host import privilege, workspace
from toolkit.images.host.host_config import HostConfig
from toolkit.images.recipe import library
from toolkit.images.recipe.bases import LocalImage
from toolkit.images.recipe.lock import Lock
from toolkit.images.recipe.plan import Plan, Step, with_keys
from toolkit.images.recipe.recipe import Space
from toolkit.images.store.cache import LAYERS, WHEELS, Cache, CacheEntry, Note
from toolkit.images.store.provenance import base_state
from toolkit.images.verify.own_checks import Results
from toolkit.model.image import BaseImage, Layer

CHECKS = """\
toolkit-check: imports passed: torch 2.13.0+cpu
toolkit-fact: framework torch 2.13.0+cpu
toolkit-fact: mpi pmix
toolkit-check: ranks-gloo failed: [0]<stdout>:the sum is wrong: 1
"""


@pytest.fixture(autouse=True)
def no_other_disk(monkeypatch):
    monkeypatch.delenv(workspace.TMP_VARIABLE, raising=False)


def fed(step, text):
    """Feed a log to a reader in this step."""
    reader = Reader()
    reader.enter(step)
    for line in text.splitlines():
        reader.feed(line)
    return reader


def test_a_log_tells_the_steps_and_only_the_next_one_is_believed():
    reader = Reader(["apt", "pip", "pack"], "base")
    begun = []
    for line in ("==> apt: zip", "==> pack: a lie", "==> pip: x", "INFO:    Creating SIF file..."):
        begun += [reader.step] if reader.feed(line) == "step" else []
    assert begun == ["apt", "pip", "pack"]


def test_a_log_tells_the_command_and_the_end():
    reader = fed("pip", "+ pip install x\nERROR: no x\ncp: error: No space left on device\n")
    assert (reader.command, reader.no_space) == ("pip install x", True)
    assert list(reader.tail)[1] == "ERROR: no x"


@pytest.mark.parametrize(
    ("said", "conflict"),
    [
        ("ERROR: No matching distribution found for x==9", ""),
        ("    The user requested (constraint) torch==2.13.0", "x==9"),
    ],
)
def test_only_what_pip_cannot_install_beside_a_constraint_is_a_conflict(said, conflict):
    assert fed("pip", f"{said}\ntoolkit-conflict: x==9\n").conflict == conflict


def test_only_what_checks_print_is_a_result():
    results = fed("checks", CHECKS).results
    assert (results.frameworks, results.mpi) == ({"torch": "2.13.0+cpu"}, ["pmix"])
    assert results.failed == [failed("the sum is wrong: 1", name="ranks-gloo")]
    assert fed("run", CHECKS).results == Results()


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_log_is_a_new_file_whatever_others_put_there(kind, tmp_path):
    log, precious = tmp_path / "x.failed.log", tmp_path / "precious"
    precious.write_text("precious")
    log.symlink_to(precious) if kind == "link" else os.mkfifo(log)
    follower = Follower("x", log, Silent())
    follower.announce("step")
    follower.end()
    assert (log.read_text(), precious.read_text()) == ("==> step: \n", "precious")


def test_a_line_without_end_is_kept_short_and_no_half_of_a_secret_stays(tmp_path):
    follower = Follower("tiny", tmp_path / "log", Silent())
    follower.secrets = ("hunter2",)
    line = "('x' * ((1 << 18) - 3) + 'hunter2') * 5 + 'said\\n'"
    script = f"import sys; sys.stdout.write({line} + 'y\\n')"
    assert follower.follow([sys.executable, "-c", script], {}) == 0
    log = (tmp_path / "log").read_text()
    assert log.endswith("x****said\ny\n")
    assert max(map(len, log.splitlines())) < 1 << 18
    assert set(log) == set("x*said\ny")


def test_a_password_renames_no_package(tmp_path):
    follower = Follower("tiny", tmp_path / "log", Silent())
    follower.secrets = ("numpy",)
    follower.begin("checks")
    listed = 'toolkit-contents: pip {"name": "numpy"}'
    assert follower.follow(["printf", "%s\\n", listed, "by numpy"], {}) == 0
    assert follower.reader.results.listed == [listed]
    assert (tmp_path / "log").read_text() == "by ****\n"


class Said(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, subject: str, text: str) -> None:
        self.lines.append(f"{subject} {text}")


def test_without_bubblewrap_a_build_is_flat_which_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(shell, "which", lambda name: None if name == "bwrap" else f"/bin/{name}")
    monkeypatch.setattr(apptainer, "build", lambda *_: BuildOutcome("flat"))
    said = Said()
    with workspace.workspace(tmp_path) as place:
        follower = Follower("x", tmp_path / "log", said)
        task = BuildTask(library.load("pytorch_cpu"), None, None, place, follower)
        assert building._run(task, said, "apptainer", flat=False).builder == "flat"
    (line,) = said.lines
    assert line.startswith(
        "flat bubblewrap is not installed (toolkit setup installs it): Apptainer"
    )


@pytest.mark.parametrize("times", [1, 2])
def test_a_build_that_is_stopped_while_it_asks_a_registry_has_made_no_image(
    times, monkeypatch, tmp_path
):
    """It needs room for two images where the layers of one stay in the cache."""

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("TOOLKIT_IMAGES", str(tmp_path / "images"))
    monkeypatch.setattr(building, "resolve_base", stopped)
    spaces: list[Space] = []
    monkeypatch.setattr(building, "require_space", lambda _, space: spaces.append(space))
    said = Said()
    with pytest.raises(KeyboardInterrupt):
        building.build("pytorch_cpu", said, building.BuildOptions(flat=times == 1))
    assert said.lines == ["stopped no process of the build is left"]
    assert spaces[0].image == times * library.load("pytorch_cpu").space.image


def test_apptainer_reads_behind_its_fence_what_a_link_in_tmp_leads_to(tmp_path, monkeypatch):
    monkeypatch.setattr(shell, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(shell, "run", lambda words, **_: shell.Result(tuple(words), 0, "", ""))
    with tempfile.TemporaryDirectory(dir="/tmp") as place, workspace.workspace(tmp_path) as space:
        link = Path(place, "link")
        link.symlink_to("/opt")
        follower = Follower("tiny", tmp_path / "log", Silent())
        words = programs.fence_command(space, follower, (str(link),), "/")
    assert f"--ro-bind {link} {link}" in " ".join(words)


def test_debootstrap_always_verifies(monkeypatch):
    monkeypatch.setattr(shell, "which", lambda program: f"/usr/sbin/{program}")
    assert host.debootstrap_command() == ("/usr/sbin/debootstrap", "--force-check-gpg")


Usage = namedtuple("Usage", "total used free")


def test_space_on_one_disk_is_added_up(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 3_000_000_000))
    workspace.require_space(tmp_path, Space(image=1000, build=2000))
    with pytest.raises(NoSpaceError, match=r"needs 3.0 GB in .*; 3.0 GB are free"):
        workspace.require_space(tmp_path, Space(image=1001, build=2000))


def test_a_workspace_is_private_and_goes(tmp_path, monkeypatch):
    images, scratch = tmp_path / "images", tmp_path / "scratch"
    monkeypatch.setenv(workspace.TMP_VARIABLE, str(scratch))
    with workspace.workspace(images) as place:
        assert (place.output.parent, place.scratch.parent) == (images, scratch)
        assert {path.stat().st_mode & 0o777 for path in place.directories} == {0o700}
        (place.scratch / "deep/er").mkdir(parents=True)
        (place.scratch / "deep").chmod(0o500)
    assert [*scratch.iterdir(), *images.iterdir()] == []


def test_what_dead_builds_left_goes_and_what_living_ones_have_stays(tmp_path):
    images, precious = tmp_path / "images", tmp_path / "precious"
    precious.mkdir()
    dead, unmarked = (images / f"{workspace.own_prefix()}{name}" for name in ("dead", "unmarked"))
    foreign = images / f"{workspace.PREFIX}nid007-dead"
    longer = images / f"{workspace.own_prefix()}gpu-dead"  # of a machine whose name begins so
    for directory in (dead, unmarked, foreign, longer):
        (directory / "rootfs").mkdir(parents=True)
    for directory in (dead, foreign, longer):
        (directory / workspace.MARKER).touch()
    (images / f"{workspace.own_prefix()}link").symlink_to(precious)
    with workspace.workspace(images) as first:
        assert not dead.exists()
        with workspace.workspace(images) as second:
            assert first.output.exists()
            assert first.output != second.output
    assert all(directory.exists() for directory in (unmarked, foreign, longer))
    long_ago = time.time() - 8 * 86400
    os.utime(foreign, (long_ago, long_ago))
    os.utime(longer, (long_ago, long_ago))
    (unmarked / "rootfs").rmdir()  # what a kill before the marker leaves is empty
    workspace.sweep(images)
    assert [path.name for path in images.iterdir()] == [f"{workspace.own_prefix()}link"]
    assert precious.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_the_directories_of_another_user_stay(tmp_path):
    directory = tmp_path / f"{workspace.own_prefix()}others"
    directory.mkdir()
    (directory / workspace.MARKER).touch()
    os.chown(directory, 65534, 65534)
    workspace.sweep(tmp_path)
    assert directory.exists()


def test_a_build_takes_another_directory_where_its_new_one_is_taken_for_abandoned(
    tmp_path, monkeypatch
):
    """Another build searches before the directory has a lock."""
    make, made = tempfile.mkdtemp, list[str]()

    def make_and_search(*, prefix: str, dir: Path) -> str:
        made.append(make(prefix=prefix, dir=dir))
        if len(made) < 3:
            workspace.sweep(tmp_path)
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_search)
    with workspace.workspace(tmp_path) as place:
        assert [str(place.output)] == made[2:]


def test_a_build_without_locks_is_left_alone(tmp_path, monkeypatch):
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with workspace.workspace(tmp_path) as first, workspace.workspace(tmp_path):
        assert first.output.exists()


def test_what_cannot_be_removed_now_is_removed_by_a_later_build(tmp_path, monkeypatch):
    monkeypatch.setattr(  # all but one goes
        workspace, "remove", lambda *paths: any(p.unlink() for p in paths if p.name != "held")
    )
    with workspace.workspace(tmp_path) as place:
        (place.output / "held").touch()
    monkeypatch.undo()
    workspace.sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("user", "mask", "options"),
    [
        (0, "000001ffffffffff", ()),
        (0, "000003ffffffffff", ()),
        (0, "000001fffeffffff", ("--fakeroot",)),
        (1000, "000001ffffffffff", ("--fakeroot",)),
    ],
)
def test_root_with_all_that_the_kernel_knows_builds_directly_and_others_in_a_namespace(
    user, mask, options, tmp_path, monkeypatch
):
    ids = f"{os.getuid()}:100000:65536\n"
    texts = {"_STATUS": f"CapInh:\t0\nCapEff:\t{mask}\n", "_LAST_CAPABILITY": "40\n"}
    for name, text in {**texts, "_SUBUID": ids, "_SUBGID": ids}.items():
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(privilege, name, tmp_path / name)
    monkeypatch.setattr(shell, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert privilege.build_options() == options


def test_without_subordinate_ids_the_administrator_is_asked(monkeypatch, tmp_path):
    monkeypatch.setattr(privilege, "_SUBUID", tmp_path / "missing")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shell, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(ForbiddenError, match="is not set up here") as caught:
        privilege.build_options()
    assert "apptainer config fakeroot --add " in str(caught.value.next_step)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{uid}:100000:65536\n", (100000, 65536)),
        ("other:1:2\n# a comment\n\n{name}:3:4:5\n{name}:100000:65536\n", (100000, 65536)),
        ("other:100000:65536\n", None),
    ],
)
def test_subordinate_ids_are_by_name_or_number(tmp_path, text, expected):
    file = tmp_path / "subuid"
    file.write_text(text.format(uid=os.getuid(), name=pwd.getpwuid(os.getuid()).pw_name))
    assert privilege.subordinate_range(file) == expected


def keys(
    common: str = "a b", final: str = "take last", prelude: str = "umask 022", state: str = ""
) -> dict[str, str]:
    """The keys of a plan whose build stage has one step, whose product `take` takes."""

    def steps(names: str) -> tuple[Step, ...]:
        return tuple(
            Step(name=name, lines=(f"echo {name}",), products=name == "take")
            for name in names.split()
        )

    plan = Plan(
        name="x",
        base=LocalImage(path="/base"),
        prelude=(prelude,),
        common=steps(common),
        build=steps("compile"),
        final=steps(final),
    )
    made = with_keys(plan, state)
    return {step.name: step.key for step in (*made.steps, *made.build)}


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ({}, ""),
        ({"final": "take other"}, "other"),
        ({"common": "a x"}, "x compile take last"),
        ({"state": "another base"}, "a b compile take last"),
        ({"prelude": "umask 077"}, "a b compile take last"),
    ],
)
def test_a_key_changes_with_the_step_and_all_before_it(change, changed):
    before = keys()
    found = {name for name, key in keys(**change).items() if before.get(name) != key}
    assert found == {*changed.split()}


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path)


def made(cache: Cache, text: str = "contents") -> Path:
    path = cache.directory.parent / "made"
    path.write_text(text)
    return path


def test_what_is_kept_is_found(cache):
    one = cache.keep(LAYERS, "k", made(cache), about="pip", facts={"a": "b"})
    assert cache.find(LAYERS, "k") == one
    assert Path(one.path).read_text() == "contents"
    assert (one.note.size, one.note.about, one.note.facts) == (8, "pip", {"a": "b"})
    assert cache.entries() == (one,)
    Path(one.path).write_text("another length")
    assert cache.find(LAYERS, "k") is None


@pytest.mark.parametrize("damage", ["", '{"size": "x"}', "\0\xff"])
def test_a_note_that_is_broken_counts_as_none(cache, damage):
    path = Path(cache.keep(LAYERS, "k", made(cache)).path)
    path.with_name("k.json").write_bytes(damage.encode("latin-1"))
    assert cache.find(LAYERS, "k") is None
    assert cache.entries() == ()


def test_clearing_removes_entries_and_what_killed_builds_left(cache):
    kept = Path(cache.keep(LAYERS, "k", made(cache)).path)
    kept.with_name("left.sqfs").write_text("half")
    (kept.parent / "half").mkdir()
    with cache.used(), cache.used(), pytest.raises(BusyError, match="a build is using"):
        cache.clear()
    assert cache.find(LAYERS, "k")
    cache.clear()
    assert list(kept.parent.iterdir()) == []


KEEP = """\
from pathlib import Path
from toolkit.images.store.cache import Cache
Cache(Path(place)).keep({kind!r}, "key", Path(place) / "new", replace={anew})
"""


def write(path: Path, kind: str) -> Path:
    """Write a directory of two files, or a file, that holds its own name."""
    if kind == WHEELS:
        path.mkdir()
        (path / "a.whl").write_text(path.name)
    (path / "b.whl" if kind == WHEELS else path).write_text(path.name * 1000)
    return path


def texts(path: Path) -> list[str]:
    return [each.read_text() for each in (sorted(path.iterdir()) if path.is_dir() else [path])]


@pytest.mark.parametrize(
    ("kind", "with_old", "anew"),
    [(LAYERS, False, False), (LAYERS, True, True), (WHEELS, True, False), (WHEELS, True, True)],
)
def test_a_killed_keep_leaves_a_whole_entry_or_none(kind, with_old, anew, tmp_path):
    whole = {name: texts(write(tmp_path / name, kind)) for name in ("old", "new", "next")}

    def prepare(place: Path) -> None:
        if with_old:
            Cache(place).keep(kind, "key", write(place / "old", kind))
        write(place / "new", kind)

    for killed in kill_at_each(prepare, KEEP.format(kind=kind, anew=anew), tmp_path):
        found = Cache(killed.place).find(kind, "key")
        left = texts(Path(found.path)) if found else None
        assert killed.unsynced == ()
        assert left in (None, whole["old"], whole["new"]), killed
        if killed.ended:
            assert left == whole["new" if anew or not with_old else "old"]
        # The next build keeps it, whatever was left.
        again = Cache(killed.place).keep(
            kind, "key", write(killed.place / "next", kind), replace=True
        )
        assert texts(Path(again.path)) == whole["next"]


LOCK = Lock(
    name="x",
    recipe_hash="ab" * 32,
    epoch=1700000000,
    base=BaseImage(reference="debian bookworm"),
    layers=(Layer(name="base", sha256="cd" * 32),),
)


@pytest.fixture
def built(tmp_path, monkeypatch):
    """Build ``nccl-tests`` on a base with a digest, which each layer holds; return its layers."""

    def run_step(run: layered._LayeredBuild, *_: object) -> str:
        upper = f"u{len(run.used)}"
        (run.place.output / f"{upper}.sqfs").write_text(run.used[0].note.digest)
        return upper

    def build(lock: Lock | None, base: str) -> list[CacheEntry]:
        with workspace.workspace(tmp_path) as place:
            follower = Follower("x", tmp_path / "log", Silent())
            task = BuildTask(library.load("nccl-tests"), None, lock, place, follower)
            run = layered._LayeredBuild(task, HostConfig())
            run.copy = lambda _: Future()
            note = Note(size=1, digest=base)
            run.used.append(CacheEntry(kind="bases", key="k", path="base", note=note, used=0.0))
            run.run_steps()
        return run.used[1:]

    monkeypatch.setattr(layered._LayeredBuild, "_run_step", run_step)
    monkeypatch.setattr(layered, "_lower", lambda entry: Lower(path=entry.path))
    return build


def test_what_compiles_on_a_base_with_compilers_does_it_in_its_own_step(built):
    """Nothing comes from a build stage, which such a recipe does not have."""
    assert len(built(None, "aa" * 32)) == 2


def test_what_a_lock_made_on_another_base_is_not_taken(built, tmp_path):
    first, second = built(LOCK, "aa" * 32), built(LOCK, "bb" * 32)
    assert {entry.note.digest for entry in first} != {entry.note.digest for entry in second}
    assert built(LOCK, "aa" * 32) == first
    assert len([entry for entry in Cache(tmp_path).entries() if entry.kind == LAYERS]) == 4


@pytest.mark.parametrize("kind", ["missing", "a pipe"])
def test_a_base_that_is_no_file_is_refused_before_anything_runs(kind, tmp_path):
    base = tmp_path / "base.sif"
    plan = Plan(name="x", base=LocalImage(path=str(base)))
    if kind == "a pipe":
        os.mkfifo(base)
    with pytest.raises(ImageMissingError, match="the base of x cannot be read"):
        base_state(plan)
    base.unlink(missing_ok=True)
    base.touch()
    assert base_state(plan)
