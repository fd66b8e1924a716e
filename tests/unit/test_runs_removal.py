"""Runs that have ended are removed, and nothing else is: not what runs, and not what links lead to."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.samples import make_case
from toolkit import scripts
from toolkit.cli.cleanup import prune, rm
from toolkit.errors import BusyError, ForbiddenError, SlurmUnreachableError, UsageError
from toolkit.files import write_atomically
from toolkit.images.store import usage
from toolkit.images.store.prune import remove as remove_image
from toolkit.model.base import to_json
from toolkit.model.run import JobState, Outcome, Submission, SubmissionAttempt
from toolkit.planning.plan import decide
from toolkit.runs import once, removal, status, store
from toolkit.slurm.queue import Snapshot

WHEN = "2026-11-22T00:00:00+00:00"


class Slurm:
    """A Slurm with some jobs; ``cancel`` ends them."""

    def __init__(self) -> None:
        self.states: dict[int, str] = {}
        self.is_silent = False
        self.cancelled: list[int] = []

    def _job(self, number: int) -> JobState:
        command = "" if number < 100 else "/other/job.sbatch"
        return JobState(job_id=number, state=self.states[number], command=command)

    def snapshot(self, _: Sequence[int] = ()) -> Snapshot:
        if self.is_silent:
            raise SlurmUnreachableError("no Slurm controller answers")
        return Snapshot({number: self._job(number) for number in self.states})

    def jobs(self, ids: Sequence[int]) -> dict[int, JobState]:
        return {number: job for number, job in self.snapshot().states.items() if number in ids}

    def find(self, *_: object) -> None:
        self.snapshot()

    def unhealthy_nodes(self, *_: object) -> dict[str, str]:
        return {}

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)
        self.states[number] = "CANCELLED"


@pytest.fixture(autouse=True)
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    found = Slurm()
    monkeypatch.setattr(status, "client_of", lambda _: found)
    monkeypatch.setattr(removal, "_PATIENCE", 0.2)
    monkeypatch.setattr(removal, "_PAUSE", 0.01)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return found


def new_run(
    job_id: int = 0, *, ended: bool = False, image: str = "/i/x.sif", cluster: str | None = None
) -> store.Paths:
    directory = store.next_directory(Path("runs").absolute(), "train")
    assert store.create(directory)
    decided = decide(make_case(image=image, run=str(directory)))
    paths = store.write(directory, decided, make_case().job, scripts.script(decided))
    if job_id:
        job = Submission(job_id=job_id, site="x", submitted=WHEN, cluster=cluster)
        write_atomically(paths.submission, to_json(job))
    if ended:
        came_out = Outcome(state="COMPLETED", exit_code=0, seconds=1.0)
        write_atomically(paths.outcome, to_json(came_out))
    os.utime(paths.plan, (1, 1))
    return paths


def code(command: object, *words: str) -> int:
    done = CliRunner().invoke(command, list(words))  # type: ignore[arg-type]
    return getattr(done.exception, "exit_code", done.exit_code)


def test_an_ended_run_is_removed() -> None:
    paths, other = new_run(7, ended=True), new_run(8, ended=True)
    assert code(rm, "train-0001") == 0
    assert [path.name for path in Path("runs").iterdir()] == [other.name]
    assert not paths.directory.exists()


def test_an_end_that_nobody_watched_is_looked_up(slurm: Slurm) -> None:
    new_run(7)
    slurm.states[7] = "COMPLETED"
    assert code(rm, "7") == 0


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED"])
def test_what_has_not_ended_stays_and_so_do_all_others(slurm: Slurm, state: str) -> None:
    first, second = new_run(7, ended=True), new_run(8)
    slurm.states[8] = state
    with pytest.raises(BusyError, match="a run has not ended") as caught:
        removal.remove([first, second])
    assert "--cancel" in (caught.value.next_step or "")
    with pytest.raises(BusyError):
        removal.remove([first, second], force=True)
    assert first.plan.exists()
    assert second.plan.exists()
    assert slurm.cancelled == []


def test_cancel_ends_it_first(slurm: Slurm) -> None:
    paths = new_run(7)
    slurm.states[7] = "RUNNING"
    assert code(rm, "--cancel", paths.name) == 0
    assert slurm.cancelled == [7]
    assert not paths.directory.exists()


def test_a_job_that_does_not_end_keeps_its_run(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = new_run(7)
    slurm.states[7] = "RUNNING"
    monkeypatch.setattr(slurm, "cancel", lambda _: None)
    with pytest.raises(BusyError):
        removal.remove([paths], cancel=True, force=True)
    assert paths.plan.exists()


def test_a_silent_slurm_removes_nothing_unless_the_user_knows_better(slurm: Slurm) -> None:
    paths = new_run(7)
    slurm.is_silent = True
    with pytest.raises(BusyError) as caught:
        removal.remove([paths], cancel=True)
    assert "no Slurm controller answers" in caught.value.details[0]
    assert "--force" in (caught.value.next_step or "")
    removal.remove([paths], force=True)
    assert not paths.directory.exists()


def test_a_job_that_slurm_does_not_know_may_be_another_clusters() -> None:
    real, local = new_run(7), new_run(8, cluster="local")
    with pytest.raises(BusyError, match="not ended"):
        removal.remove([real, local])
    removal.remove([local])
    assert real.plan.exists()


def test_a_submission_under_way_stays() -> None:
    paths = new_run()
    with once.begun(paths, "x", None), pytest.raises(BusyError, match="a run"):
        removal.remove([paths], cancel=True, force=True)
    with pytest.raises(BusyError) as caught:
        removal.remove([paths])
    assert "not known whether Slurm has its job" in caught.value.details[0]
    paths.attempt.unlink()
    os.utime(paths.plan)
    with pytest.raises(BusyError, match="a run"):
        removal.remove([paths])
    os.utime(paths.plan, (1, 1))
    removal.remove([paths])


def test_a_submission_that_never_came_out_does_not_keep_its_run() -> None:
    paths = new_run()
    attempt = SubmissionAttempt(site="x", submitted=WHEN)
    write_atomically(paths.attempt, to_json(attempt))
    removal.remove([paths])
    assert not paths.directory.exists()


def test_links_are_removed_and_what_they_lead_to_stays(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    (precious / "deep").mkdir(parents=True)
    (precious / "deep" / "file").touch()
    paths = new_run(7, ended=True)
    (paths.directory / "data").symlink_to(precious)
    (paths.logs / "file").symlink_to(precious / "deep" / "file")
    (paths.directory / "loop").symlink_to(".")
    removal.remove([paths])
    assert (precious / "deep" / "file").exists()
    assert list(Path("runs").iterdir()) == []


@pytest.mark.parametrize("name", ["runs/link", "link", "outside"])
def test_a_run_that_is_named_by_a_link_stays(name: str) -> None:
    paths = new_run(7, ended=True)
    Path("runs/link").symlink_to(paths.directory)
    Path("outside").symlink_to(paths.directory)
    assert code(rm, name) == 77
    assert paths.plan.exists()


def test_runs_may_be_a_link() -> None:
    paths = new_run(7, ended=True)
    Path("runs").rename("scratch")
    Path("runs").symlink_to("scratch")
    assert code(rm, paths.name) == 0
    assert list(Path("scratch").iterdir()) == []


def test_what_is_no_run_stays() -> None:
    Path("project").mkdir()
    Path("project/plan.json").write_text('{"mine": 1}')
    assert code(rm, "project") == 78
    assert code(rm, "--force", "project") == 78
    assert Path("project/plan.json").exists()


def test_nobody_removes_the_ground_below_the_feet() -> None:
    paths = new_run(7, ended=True)
    os.chdir(paths.logs)
    with pytest.raises(ForbiddenError, match="current directory"):
        removal.remove([paths])


def test_a_removal_that_was_interrupted_leaves_no_half_of_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = new_run(7, ended=True), new_run(8, ended=True)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            removal.remove([first])
    assert [paths.name for paths in store.all_runs(Path("runs"))] == [second.name]
    removal.remove([second])
    assert list(Path("runs").iterdir()) == [], "what was left is removed with the next"


def test_prune_lists_first_and_removes_with_yes(slurm: Slurm) -> None:
    runs = [new_run(number, ended=number != 3) for number in (1, 2, 3, 4)]
    slurm.states[3] = "RUNNING"
    for age, paths in zip((4, 3, 2, 1), runs, strict=True):
        when = time.time() - age * 86400 - 60
        os.utime(paths.plan, (when, when))
        if paths.outcome.exists():
            os.utime(paths.outcome, (when, when))
    done = CliRunner().invoke(prune, ["--older-than", "2d", "--json"])
    assert [(one["run"], bool(one.get("kept"))) for one in json.loads(done.stdout)["runs"]] == [
        ("train-0003", True),
        ("train-0002", False),
        ("train-0001", False),
    ]
    assert len(store.all_runs(Path("runs"))) == 4
    assert "--yes" in CliRunner().invoke(prune, ["--keep", "3"]).output
    assert code(prune, "--keep", "3", "--yes") == 0
    assert [
        paths.name for paths in store.all_runs(Path("runs"))
    ] == "train-0004 train-0003 train-0002".split()
    assert code(prune, "--keep", "0", "--yes", "--all-directories") == 0
    assert [paths.name for paths in store.all_runs(Path("runs"))] == ["train-0003"]
    assert isinstance(CliRunner().invoke(prune, []).exception, UsageError)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "x.sif"
    path.touch()
    return path


def test_a_removed_run_holds_no_image(slurm: Slurm, image: Path) -> None:
    paths = new_run(7, ended=True, image=str(image))
    paths.outcome.unlink()
    usage.note(image, usage.Use(paths.directory, 7, None))
    slurm.states[7] = "RUNNING"
    with pytest.raises(BusyError):
        remove_image(image, holds=removal.holds_image)
    removal.remove([paths], cancel=True)
    assert usage.unfinished(image) == ()
    assert usage.last_used(image) > 0


@pytest.mark.parametrize("way", ["deleted", "ended unwatched"])
def test_an_ended_run_holds_no_image_whatever_became_of_its_directory(
    slurm: Slurm, image: Path, way: str
) -> None:
    paths = new_run(7, image=str(image))
    usage.note(image, usage.Use(paths.directory, 7, None))
    if way == "deleted":
        paths.directory.rename("elsewhere")
    slurm.states[7] = "RUNNING"
    assert usage.unfinished(image, removal.holds_image) == (paths.directory,)
    slurm.is_silent = True
    assert usage.unfinished(image, removal.holds_image) == (paths.directory,)
    slurm.is_silent = False
    slurm.states[7] = "COMPLETED"
    assert usage.unfinished(image, removal.holds_image) == ()


def test_a_job_of_the_same_number_is_not_this_runs(slurm: Slurm, image: Path) -> None:
    usage.note(image, usage.Use(Path("/gone"), 107, None))
    slurm.states[107] = "RUNNING"
    assert usage.unfinished(image, removal.holds_image) == ()


def test_notes_of_before_are_read(image: Path) -> None:
    usage.note(image, usage.Use(Path("/gone")))
    (note,) = (image.parent / ".used" / "x").glob("*")
    note.write_text("/gone")
    assert usage.unfinished(image) == (Path("/gone"),), "within the first hour"
    assert usage.unfinished(image, removal.holds_image) == ()


def test_two_removals_at_once_are_both_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one sweeps away what this one is removing."""
    paths = new_run(7, ended=True)
    real = shutil.rmtree

    def swept(path: Path, **options: Any) -> None:
        real(path, **options)
        if not options:
            raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr(shutil, "rmtree", swept)
    removal.remove([paths])
    assert list(Path("runs").iterdir()) == []


def test_prune_leaves_runs_of_others_and_goes_on_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second, third = (new_run(number, ended=True) for number in (1, 2, 3))
    monkeypatch.setattr(store.Paths, "is_own", property(lambda paths: paths.name != first.name))
    real = removal._remove

    def fails(paths: store.Paths) -> int:
        if paths.name == second.name:
            raise ForbiddenError("it could not be removed as a whole")
        return real(paths)

    monkeypatch.setattr(removal, "_remove", fails)
    done = CliRunner().invoke(prune, ["--keep", "0", "--yes"])
    assert done.exit_code == 0
    assert "kept: it belongs to another user" in done.stdout
    assert "kept: it could not be removed" in done.stdout
    assert [paths.directory.exists() for paths in (first, second, third)] == [True, True, False]
