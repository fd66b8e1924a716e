"""A run's directory: what is read of it, what is kept in it, how it is found, and `toolkit ps`."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from tests.hostile import HOSTILE
from tests.showing import ACTING, REFUSING, SHOWING, commands
from tests.unit.run_fixtures import DONE, full, new_run, put
from tests.unit.samples import make_case
from toolkit.cli.main import cli
from toolkit.cli.run import _failed_points as failed_points
from toolkit.cli.runs import ps
from toolkit.cli.shared import complete_runs
from toolkit.errors import ConfigError, ForbiddenError, UnknownRunError, UntrustedError
from toolkit.files import read_json
from toolkit.launchers import failures
from toolkit.model.base import to_json
from toolkit.model.run import JobState, Outcome, Submission
from toolkit.planning.case import next_directory
from toolkit.planning.plan import decide
from toolkit.planning.target import resolve
from toolkit.runs import logs, removal, ssh, status
from toolkit.runs import run as run_directories
from toolkit.runs.outcome import finish
from toolkit.runs.run import SECRETS, Run
from toolkit.runs.submit import reserve
from toolkit.slurm import hostlist

PRIVATE = '{"private": "what only the caller may read"}\n'
NO_FILES: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda path, private: path.symlink_to(private),
    "fifo": lambda path, _: os.mkfifo(path),
    "folder": lambda path, _: path.mkdir(),
    "dangling": lambda path, _: path.symlink_to("none"),
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(home: Path) -> Run:
    """A run with a job and the log of a rank."""
    (home / "private").write_text(PRIVATE)
    made = new_run(home / "runs" / "x-0001", 7)
    made.reports.mkdir()
    (made.logs / "7-1-nid001.log").write_text('{"accuracy": 1}\n')
    return made


def ended(run: Run) -> Outcome:
    return finish(run, JobState(job_id=7, state="FAILED", exit_code=1))


@pytest.mark.parametrize("kind", NO_FILES)
def test_a_log_that_is_no_file_is_refused_in_one_line_and_the_others_are_read(kind, run, home):
    NO_FILES[kind](run.logs / "7-0-nid001.log", home / "private")
    tail = logs.Tail(run)
    lines = [line.text for last in (False, True, True) for line in tail.read(last=last)]
    assert lines.count('{"accuracy": 1}') == 1
    assert len([line for line in lines if "7-0-nid001.log is not read" in line]) == 1
    assert "private" not in to_json(ended(run)) + "".join(lines)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("plan.json", "link"), ("run.json", "fifo"), ("outcome.json", "folder")],
)
def test_a_file_that_is_none_costs_its_run_a_row_and_no_other(name, kind, run, home):
    other = new_run(home / "runs" / "y-0001")
    (run.directory / name).unlink(missing_ok=True)
    NO_FILES[kind](run.directory / name, home / "private")
    rows = status.rows([run, other])
    assert [row.state for row in rows] == ["UNREADABLE", "NOT SUBMITTED"]
    assert "private" not in rows[0].message.replace(str(home), "")


@pytest.mark.parametrize(
    "changed",
    [
        *({"job_id": value} for value in (0, 1 << 40, "7")),
        *({"cluster": value} for value in ("../../evil", "", "x" * 21, "a\n")),
    ],
)
def test_numbers_and_names_are_checked_where_they_are_read(changed, run):
    data = {"job_id": 7, "site": "local", "submitted": "x", "cluster": "local", **changed}
    (run.directory / "run.json").write_text(json.dumps(data))
    with pytest.raises(ConfigError, match="expected"):
        _ = run.job


def test_in_a_run_of_another_user_nothing_is_kept_and_nothing_ended(run, monkeypatch):
    (run.directory / SECRETS).write_text("export X_TOKEN='accuracy'\n")
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    before = sorted(run.directory.rglob("*"))
    outcome = ended(run)
    assert (outcome.state, outcome.results) == ("FAILED", {"accuracy": 1})
    assert sorted(run.directory.rglob("*")) == before
    for act in (run.require_own, lambda: removal.cancel(run), lambda: removal.remove([run])):
        with pytest.raises(ForbiddenError, match="belongs to another user"):
            act()


@pytest.mark.parametrize("writable", [".", "..", "../.."])
def test_a_run_that_others_can_exchange_counts_as_theirs(writable, run):
    """Else what was read of another user's files is kept, or removed, where they lead it meanwhile."""
    (run.directory / writable).chmod(0o777)
    assert ended(run).state == "FAILED"
    assert not run.has_ended
    for act in (
        run.require_own,
        lambda: removal.remove([run]),
        lambda: ssh.locate(run, "6006"),
        lambda: ssh.server(run),
        lambda: failed_points(str(run.directory)),
    ):
        with pytest.raises(UntrustedError, match="every user of this machine can write"):
            act()
    (finding,) = status.dependencies([run.name], run.directory.parent, None)[1]
    assert isinstance(finding, UntrustedError)


@pytest.mark.timeout(60)  # what reads each number needs a second
def test_no_line_and_no_field_makes_a_reader_huge_slow_or_fail():
    nines = "9" * 60_000
    for hosts in ("n[0-999999999]", "n" + "[0-999]" * 9, f"n[1-{nines}]", f"n[{nines}]"):
        with pytest.raises(ValueError, match=r"host|limit|range"):
            hostlist.expand(hosts)
    assert len(hostlist.task_ids("0-999999999,0-999999999:0,5-1")) <= 4_000_003
    assert hostlist.task_ids(f"{nines}-1") == set()
    line = f"srun: error: nid001: task {nines},0-{nines}: Exited with exit code {nines}"
    assert failures.of_step([("", [line])]) is not None
    mark = "toolkit: attempt 1 of at most 2 begins 2026-99-99T99:99:99Z"
    assert logs.read([(0, logs.Line(mark, "", None))]).attempts == ()


def test_no_name_of_a_run_is_obeyed_by_the_shell(home):
    """Bash gets a completion as it is, and users paste the next step."""
    names = ("x-0001", "x-$(id)", "x;id", "x\nplain,id", "x y", "--force", "x\x1b[2J")
    for name in (*names, os.fsdecode(b"x\xff")):
        new_run(home / "runs" / name, plan=decide(make_case()))
        (word,) = shlex.split(Run(home / "runs" / name).word)
        assert word in (name, f"runs/{name}")
        assert not word.startswith("-")
    assert complete_runs(click.Context(cli), click.Argument(["run"]), "x") == ["x-0001"]


# Finding runs.


def test_directories_are_numbered_and_never_shared(home):
    first = next_directory(home, "train")
    assert first.name == "train-0001"
    assert reserve(first)
    assert not reserve(first)
    names = {"train": "train-0002", "a b/$(x)": "a-b-x-0001", "...": "run-0001"}
    assert {name: next_directory(home, name).name for name in names} == names


def test_a_run_is_found_by_name_path_job_or_as_the_newest(home):
    here, there = new_run(home / "runs/x-0001", 7), new_run(home / "b/runs/y-0001", 8)
    again = new_run(home / "runs/x-0002", 7)  # a new local cluster counts from 1 again
    run_directories.remember(home / "b/runs")
    os.utime(here.directory / "plan.json", (1, 1))
    assert here.script.stat().st_mode & 0o111
    runs = Path("runs")
    found = {"x-0001": here, str(here.directory): here, None: again}
    found |= {"7": again, "8": there, "8_3": there}
    for name, expected in found.items():
        assert run_directories.find(name, runs).directory.resolve() == expected.directory
    assert (here.word, there.word) == ("x-0001", "b/runs/y-0001")
    for name, close in {"y-0001": "x-0001", "x-001\0": "x-0001", "9": None}.items():
        with pytest.raises(UnknownRunError, match="no run") as caught:
            run_directories.find(name, runs)
        assert caught.value.close == close
        assert "toolkit ps --all-directories" in (caught.value.next_step or "")
    assert "or in another directory of your runs, has job 9" in caught.value.cause


def test_a_run_is_repeated_by_name_or_job_id(home):
    (home / "train.py").touch()
    settings = replace(make_case().job, script=str(home / "train.py"))
    new_run(home / "runs/train-0001", 7, settings=settings)
    for name in ("train-0001", "7", "runs/train-0001"):
        assert resolve(name, home)[1].origin == "train-0001"


def test_runs_of_all_directories_are_listed(home):
    for name, number in (("a", 7), ("b", 8)):
        new_run(home / name / "runs/x-0001", number, outcome=DONE)
        run_directories.remember(home / name / "runs")
    rows = json.loads(CliRunner().invoke(ps, ["--all-directories", "--json"]).stdout)
    assert {(row["job_id"], row["directory"]) for row in rows} == {
        (7, str(home / "a/runs/x-0001")),
        (8, str(home / "b/runs/x-0001")),
    }
    assert "b/runs" in CliRunner().invoke(ps, ["-A"]).stdout
    assert "ps --all-directories" in CliRunner().invoke(ps, []).output
    (home / "a").rename(home / "moved")
    assert CliRunner().invoke(ps, ["--runs", "moved/runs"]).exit_code == 0
    assert run_directories.known_directories() == (home / "b/runs", home / "moved/runs")


@pytest.mark.parametrize("name", [name for name in HOSTILE if "/" not in name and "\0" not in name])
def test_any_name_of_a_directory_is_kept(home, name):
    (home / f"d{name}\n" / "runs").mkdir(parents=True)
    for _ in range(2):
        run_directories.remember(home / f"d{name}\n" / "runs")
    (home / "link").symlink_to(home / f"d{name}\n")
    run_directories.remember(home / "link/runs")
    assert run_directories.known_directories() == (home / f"d{name}\n" / "runs",)
    with run_directories.index_file().open("ab") as index:
        index.write(b'\0\xed{"x": 3}\n"/nowhere"\n3\n"torn')
    assert run_directories.known_directories() in ((), (home / f"d{name}\n" / "runs",))


def test_a_run_does_not_fail_for_the_index(home, monkeypatch):
    monkeypatch.setattr(run_directories, "index_file", full)
    assert reserve(home / "runs" / "train-0001")
    assert run_directories.known_directories() == ()


# States.


def test_ps_asks_once_for_all_runs_and_survives_what_it_cannot_read(home, slurm):
    runs = [new_run(home / f"x-{number}") for number in range(10)]
    for number, run in enumerate(runs):
        job = Submission(site="local", submitted="2026-11-21T00:00:00+00:00")
        put(run, "attempt.json", job)
        known = slurm.add(run.script)
        if number % 2:
            put(run, "run.json", replace(job, job_id=known))
    (home / "x-7/plan.json").write_text("{")
    (home / "x-9/run.json").write_text("not JSON")
    rows = status.rows(runs)
    assert slurm.queries == 1
    assert {row.run: row.state for row in rows if row.state != "RUNNING"} == {
        "x-7": "UNREADABLE",
        "x-9": "UNREADABLE",
    }
    assert "x-7/plan.json" in rows[7].message


def test_the_job_of_another_run_with_the_same_number_is_not_the_run_s(home, slurm):
    """A new local cluster counts its jobs from 1 again. A run that was moved keeps its job."""
    run = new_run(home / "runs/x-0001", 7)
    slurm.add(home / "y-0001/job.sbatch", 7)
    assert (status.query(run), run.outcome) == (None, None)
    slurm.add(run.script, 7)
    moved = Run(run.directory.rename(home / "kept"))
    assert status.rows([moved])[0].state == "RUNNING"


def test_each_file_is_read_once_for_a_row(run, slurm, monkeypatch):
    read: list[str] = []

    def counted(path: Path, *rest: Any, **more: Any) -> Any:
        read.append(path.name)
        return read_json(path, *rest, **more)

    monkeypatch.setattr("toolkit.runs.run.read_json", counted)
    slurm.add(run.script, 7)
    assert status.rows([run])[0].state == "RUNNING"
    assert sorted(read) == ["outcome.json", "plan.json", "run.json"]


def test_every_command_is_known_to_show_to_refuse_or_to_act():
    """A new one has to be put into one of the tables, which tests/cluster/test_showing.py runs."""
    assert sorted([*SHOWING, *REFUSING, *ACTING]) == sorted(commands(cli))
