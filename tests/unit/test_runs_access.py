"""What is read of a run that another user may have made, and what is kept in it."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import click
import pytest

from tests.unit.samples import make_case
from toolkit.cli.main import cli
from toolkit.cli.run import _failed_points as failed_points
from toolkit.cli.shared import complete_runs
from toolkit.errors import ConfigError, ForbiddenError, UntrustedError
from toolkit.launchers.failures import of_step
from toolkit.model.base import to_json
from toolkit.model.run import JobState, Submission
from toolkit.planning.plan import decide
from toolkit.runs import (
    attempts,
    dependencies,
    finish,
    forward,
    logs,
    notebook,
    parts,
    removal,
    secrets,
    status,
)
from toolkit.runs.store import Paths
from toolkit.slurm import hostlist, queue

SUBMISSION = Submission(job_id=7, site="local", submitted="2026-11-22T00:00:00Z")
PRIVATE = '{"private": "what only the caller may read"}\n'
Make = Callable[[Path, Path], object]
NO_FILES: dict[str, Make] = {
    "link": lambda path, private: path.symlink_to(private),
    "relative link": lambda path, private: path.symlink_to(os.path.relpath(private, path.parent)),
    "fifo": lambda path, _: os.mkfifo(path),
    "folder": lambda path, _: path.mkdir(),
    "dangling": lambda path, _: path.symlink_to("none"),
}


@pytest.fixture
def run(tmp_path: Path) -> Paths:
    """A run with a job and the log of a rank."""
    paths = Paths(tmp_path / "runs" / "x-0001")
    paths.logs.mkdir(parents=True)
    paths.reports.mkdir()
    paths.plan.write_text(to_json(decide(make_case())))
    paths.submission.write_text(to_json(SUBMISSION))
    (paths.logs / "7-1-nid001.log").write_text('{"accuracy": 1}\n')
    (tmp_path / "private").write_text(PRIVATE)
    return paths


def came_out(paths: Paths, state: str = "FAILED") -> Any:
    ended = JobState(job_id=7, state=state, exit_code=1)
    return finish.finish(cast(Any, None), paths, paths.read_plan(), ended)


@pytest.mark.parametrize("kind", NO_FILES)
def test_a_log_that_is_no_file_is_refused_in_one_line_and_the_others_are_read(
    kind: str, run: Paths, tmp_path: Path
) -> None:
    NO_FILES[kind](run.logs / "7-0-nid001.log", tmp_path / "private")
    tail = logs.Tail(run, 7)
    lines = [text for last in (False, True, True) for _, text in tail.read(last=last)]
    assert lines.count('{"accuracy": 1}') == 1
    assert len([line for line in lines if "7-0-nid001.log is not read" in line]) == 1
    assert "private" not in to_json(came_out(run)) + "".join(lines)


@pytest.mark.parametrize("kind", [kind for kind in NO_FILES if kind != "dangling"])
@pytest.mark.parametrize("name", ["plan", "submission", "outcome"])
def test_a_file_that_is_none_costs_its_run_a_row_and_no_other(
    name: str, kind: str, run: Paths, tmp_path: Path
) -> None:
    other = Paths(run.directory.with_name("y-0001"))
    other.directory.mkdir()
    other.plan.write_text(to_json(decide(make_case())))
    getattr(run, name).unlink(missing_ok=True)
    NO_FILES[kind](getattr(run, name), tmp_path / "private")
    rows = status.of_all([run, other])
    assert [row.state for row in rows] == ["UNREADABLE", "NOT SUBMITTED"]
    assert "private" not in rows[0].message.replace(str(tmp_path), "")


@pytest.mark.parametrize(
    "changed",
    [
        *({"job_id": value} for value in (-1, 0, 1 << 40, "7", [7])),
        *({"cluster": value} for value in ("../../evil", "", "x" * 21, "A", "a\n")),
    ],
)
def test_numbers_and_names_are_checked_where_they_are_read(
    changed: dict[str, Any], run: Paths
) -> None:
    import json

    data = {"job_id": 7, "site": "local", "submitted": "x", "cluster": "local"}
    run.submission.write_text(json.dumps(data))
    assert run.read_submission() is not None
    run.submission.write_text(json.dumps(data | changed))
    with pytest.raises(ConfigError, match="expected"):
        run.read_submission()


def test_in_a_run_of_another_user_nothing_is_kept_and_nothing_ended(
    run: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run.directory / secrets.NAME).write_text("export X_TOKEN='accuracy'\n")
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    before = sorted(run.directory.rglob("*"))
    outcome = came_out(run)
    assert (outcome.state, outcome.results) == ("FAILED", {"accuracy": 1})
    assert sorted(run.directory.rglob("*")) == before
    with pytest.raises(ForbiddenError, match="belongs to another user"):
        run.require_own()


@pytest.mark.parametrize("writable", [".", "..", "../.."])
def test_a_run_that_others_can_exchange_counts_as_theirs(writable: str, run: Paths) -> None:
    """Else what was read of another user's files is kept, or removed, where they lead it meanwhile."""
    (run.directory / writable).chmod(0o777)
    assert came_out(run).state == "FAILED"
    assert not run.outcome.exists()
    assert not run.is_own
    for act in (
        run.require_own,
        lambda: removal.remove([run], force=True),
        lambda: forward.locate(run, "6006"),
        lambda: notebook.server(run),
        lambda: failed_points(str(run.directory)),
    ):
        with pytest.raises(UntrustedError, match="every user of this machine can write"):
            act()
    (finding,) = dependencies.dependencies([run.name], run.directory.parent, None)[1]
    assert isinstance(finding, UntrustedError)


def test_what_is_learned_goes_through_no_link(run: Paths, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    run.points.symlink_to(tmp_path / "elsewhere")
    assert not run.keep(run.points / "0" / "outcome.json", SUBMISSION)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    run.points.unlink()
    assert run.keep(run.points / "0" / "outcome.json", SUBMISSION)
    assert (run.points / "0" / "outcome.json").read_text() == to_json(SUBMISSION)


@pytest.mark.parametrize(
    ("target", "is_read"),
    [
        ("../holder/run.json", True),
        ("../../runs/holder/run.json", False),
        ("../holder/plan.json", False),
        ("../../run.json", False),
        ("../link/run.json", True),  # to a directory of the same owner, as users move them
        ("../holder/../holder/run.json", False),
    ],
)
def test_a_part_has_the_job_of_a_run_beside_it_and_of_no_other(
    target: str, is_read: bool, run: Paths, tmp_path: Path
) -> None:
    holder = run.directory.with_name("holder")
    run.directory.rename(holder)
    (tmp_path / "run.json").write_text(to_json(SUBMISSION))
    (holder.parent / "link").symlink_to(tmp_path)
    part = Paths(holder.with_name("part"))
    part.directory.mkdir()
    part.submission.symlink_to(target)
    if is_read:
        assert part.read_submission() == SUBMISSION
    else:
        with pytest.raises(ConfigError, match="symbolic link"):
            part.read_submission()


def test_no_line_and_no_field_makes_a_reader_huge_slow_or_fail(run: Paths) -> None:
    began = time.monotonic()
    nines = "9" * 60_000
    run.submission.unlink()
    run.submission.symlink_to("../holder/run.json")
    run.part.write_text('{"start": 1, "nodes": "nid[001-002]"}')
    assert parts.read_times(run) is not None
    for hosts in ("n[0-999999999]", "n" + "[0-999]" * 9, f"n[1-{nines}]", f"n[{nines}]"):
        with pytest.raises(ValueError, match=r"host|limit|range"):
            hostlist.expand(hosts)
        run.part.write_text(f'{{"start": 1, "nodes": "{hosts}"}}')
        assert parts.read_times(run) is None
    assert len(queue.task_ids("0-999999999,0-999999999:0,5-1")) <= 4_000_003
    assert queue.task_ids(f"{nines}-1") == set()
    line = f"srun: error: nid001: task {nines},0-{nines}: Exited with exit code {nines}"
    assert of_step([("", [line])]) is not None
    mark = "toolkit: attempt 1 of at most 2 begins 2026-99-99T99:99:99Z"
    assert attempts.read_attempts([logs.Line(mark, "", None)]) == ()
    assert time.monotonic() - began < 10


def test_a_circle_of_reruns_ends(run: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "elements", lambda _: ())
    for name in (run.name, "../..", "/etc", "none"):
        run.job.write_text(f'{{"rerun_of": "{name}"}}')
        assert status.elements_with_earlier(run) == []


def test_no_name_of_a_run_is_obeyed_by_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bash gets a completion as it is, and users paste the next step."""
    monkeypatch.chdir(tmp_path)
    names = (
        "x-0001",
        "x-$(id)",
        "x;id",
        "x\nplain,id",
        "x y",
        "--force",
        "x\x1b[2J",
        os.fsdecode(b"x\xff"),
    )
    for name in names:
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "plan.json").write_text(to_json(decide(make_case())))
    assert complete_runs(click.Context(cli), click.Argument(["run"]), "x") == ["x-0001"]
    for name in names:
        (word,) = shlex.split(Paths(tmp_path / "runs" / name).word)
        assert word in (name, f"runs/{name}")
        assert not word.startswith("-")
