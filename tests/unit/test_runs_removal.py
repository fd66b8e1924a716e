"""Runs that have ended are removed, and nothing else is: not what runs, and not what links lead to."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.run_fixtures import DONE, WHEN, Slurm, put
from tests.unit.run_fixtures import new_run as made_run
from tests.unit.samples import make_case
from toolkit.cli.runs import prune, rm
from toolkit.errors import BusyError, ForbiddenError, UsageError
from toolkit.images.store import usage
from toolkit.images.store.prune import remove as remove_image
from toolkit.model.run import Submission
from toolkit.planning.case import next_directory
from toolkit.planning.plan import decide
from toolkit.runs import removal
from toolkit.runs.run import Run, all_runs, remember
from toolkit.runs.submit import begun


@pytest.fixture(autouse=True)
def slurm(slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setattr(removal, "_PATIENCE", 0.2)
    monkeypatch.setattr(removal, "_PAUSE", 0.01)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return slurm


def new_run(job_id: int | None = None, *, ended: bool = False, **more: Any) -> Run:
    directory = next_directory(Path("runs").absolute(), "train")
    run = made_run(directory, job_id, outcome=DONE if ended else None, **more)
    os.utime(run.directory / "plan.json", (1, 1))
    return run


def code(command: Any, *words: str) -> int:
    done = CliRunner().invoke(command, list(words))
    return getattr(done.exception, "exit_code", done.exit_code)


def names() -> list[str]:
    return sorted(path.name for path in Path("runs").iterdir())


@pytest.mark.parametrize(
    ("state", "words", "stays"),
    [
        ("COMPLETED", ("7",), False),  # an end that nobody watched is looked up
        ("RUNNING", ("--cancel", "train-0001"), False),
        *((state, ("train-0001",), True) for state in ("PENDING", "RUNNING", "COMPLETING")),
        *((state, ("7",), True) for state in ("SUSPENDED", "STOPPED")),
    ],
)
def test_what_has_not_ended_stays_unless_it_is_cancelled(slurm, state, words, stays):
    run, other = new_run(7), new_run(8, ended=True)
    slurm.add(run.script, 7, state)
    assert code(rm, *words) == (75 if stays else 0)
    assert code(rm, *words, other.name) == (75 if stays else 84), "both or none"
    assert names() == ([run.name, other.name] if stays else [other.name])
    assert slurm.cancelled == ([7] if "--cancel" in words else [])


def refused(*runs: Run, told: str = "", step: str, cancel: bool = True) -> None:
    """Check why runs stay, as another command reads them, and what the user is told to do."""
    with pytest.raises(BusyError, match="a run has not ended") as caught:
        removal.remove([Run(run.directory) for run in runs], cancel=cancel)
    assert told in caught.value.details[0]
    assert step in (caught.value.next_step or "")


def test_what_may_go_on_stays(slurm):
    """A job that does not end, a Slurm that is silent, and a job that may be another cluster's."""
    run, local = new_run(7), new_run(8, cluster="local")
    slurm.add(run.script, 7)
    slurm.answers["scancel"] = ""
    refused(run, told="job 7 is running", step="--cancel")
    slurm.silent = 99
    refused(run, told="no Slurm controller answers", step="rm -r")
    slurm.silent = 0
    slurm.jobs_known.clear()
    refused(run, local, told="Slurm does not know job 7", step="rm -r")
    removal.remove([Run(local.directory)])
    assert names() == [run.name], "a local cluster forgets no job that runs"


def test_a_submission_under_way_stays():
    run = new_run()
    with begun(run, None):
        refused(run, step="wait until Slurm answers")
    refused(run, told="not known whether Slurm has its job", step="rm -r", cancel=False)
    (run.directory / "attempt.json").unlink()
    os.utime(run.directory / "plan.json")
    refused(run, step="", cancel=False)
    put(run, "attempt.json", Submission(site="x", submitted=WHEN))
    removal.remove([Run(run.directory)])  # it never came out, and never will
    assert names() == []


def test_only_a_directory_of_runs_may_be_a_link():
    run = new_run(7, ended=True)
    for name in ("runs/link", "outside"):
        Path(name).symlink_to(run.directory)
        assert code(rm, name) == 77
    Path("runs/link").unlink()
    Path("runs").rename("scratch")
    Path("runs").symlink_to("scratch")
    assert code(rm, run.name) == 0
    assert names() == []


def test_what_is_no_run_stays():
    Path("project").mkdir()
    Path("project/plan.json").write_text('{"mine": 1}')
    assert code(rm, "project") == 78
    assert Path("project/plan.json").exists()


def test_a_removal_that_was_interrupted_or_runs_twice_leaves_no_half_of_a_run(monkeypatch):
    first, second = new_run(7, ended=True), new_run(8, ended=True)
    real = shutil.rmtree

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def swept(path: Path, **options: Any) -> None:
        real(path, **options)
        if not options:  # another process sweeps away what this one is removing
            raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        removal.remove([first])
    assert [run.name for run in all_runs(Path("runs"))] == [second.name]
    monkeypatch.setattr(shutil, "rmtree", swept)
    removal.remove([second])
    assert names() == [], "what was left is removed with the next"


def test_prune_lists_first_and_removes_with_yes(slurm):
    runs = [new_run(number, ended=number != 3) for number in (1, 2, 3, 4)]
    slurm.add(runs[2].script, 3)
    for days, run in zip((4, 3, 2, 1), runs, strict=True):
        when = time.time() - days * 86400 - 60
        for file in run.directory.glob("*.json"):
            os.utime(file, (when, when))
    done = CliRunner().invoke(prune, ["--older-than", "2d"])
    listed = [line.split("/runs/")[1] for line in done.stdout.splitlines() if "/runs/" in line]
    assert [line[:10] for line in listed] == "train-0003 train-0002 train-0001".split()
    assert ["kept:" in line for line in listed] == [True, False, False]
    assert len(names()) == 4
    assert "--yes" in CliRunner().invoke(prune, ["--keep", "3"]).output
    assert code(prune, "--keep", "3", "--yes") == 0
    assert names() == "train-0002 train-0003 train-0004".split()
    remember(Path("runs"))
    assert code(prune, "--keep", "0", "--yes", "--all-directories") == 0
    assert names() == ["train-0003"]
    assert isinstance(CliRunner().invoke(prune, []).exception, UsageError)


def test_prune_leaves_runs_of_others_and_goes_on_after_a_failure(monkeypatch):
    first, second, third = (new_run(number, ended=True) for number in (1, 2, 3))
    monkeypatch.setattr(Run, "is_own", property(lambda run: run.name != first.name))
    real = removal._remove

    def fails(run: Run) -> int:
        if run.name == second.name:
            raise ForbiddenError("it could not be removed as a whole")
        return real(run)

    monkeypatch.setattr(removal, "_remove", fails)
    done = CliRunner().invoke(prune, ["--keep", "0", "--yes"])
    assert done.exit_code == 0
    assert "kept: it belongs to another user" in done.stdout
    assert "kept: it could not be removed" in done.stdout
    assert names() == [first.name, second.name]
    assert not third.directory.exists()


@pytest.mark.parametrize("way", ["removed", "ended unwatched"])
def test_an_ended_run_holds_no_image_whatever_became_of_its_directory(slurm, tmp_path, way):
    image, where = tmp_path / "x.sif", str(Path("runs/train-0001").absolute())
    image.touch()
    run = new_run(7, plan=decide(make_case(image=str(image), run=where)))
    usage.note(image, usage.Use(run.directory, 7, None))
    slurm.add(run.script, 7)
    with pytest.raises(BusyError):
        remove_image(image, holds=removal.holds_image)
    slurm.silent = 1
    assert usage.unfinished(image, removal.holds_image) == (run.directory,)
    if way == "removed":
        removal.remove([run], cancel=True)
    slurm.add(run.script, 7, "COMPLETED")
    assert usage.unfinished(image, removal.holds_image) == ()
    assert usage.last_used(image) > 0
