"""What runs and users used of what they got, from the answers of sacct and nvidia-smi."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from tests.unit.run_fixtures import DONE, Slurm, new_run
from tests.unit.samples import make_case
from toolkit.cli import cost, follow
from toolkit.cli.main import cli
from toolkit.model.base import from_json
from toolkit.model.job import Job
from toolkit.model.run import Outcome
from toolkit.planning.plan import decide
from toolkit.planning.settings import with_variables
from toolkit.runs import efficiency
from toolkit.runs.run import Run
from toolkit.runs.submit import fill, reserve
from toolkit.shell import Result
from toolkit.slurm import accounting

# sacct of 22.05.8 about two nodes with two ranks each, with --noconvert.
SACCT = """\
2|COMPLETED|130|8|billing=8,cpu=8,gres/gpu=2,mem=32768M,node=2|03:13.660|2||1795782943|1795782948|30||
2.batch|COMPLETED|130|4|cpu=4,gres/gpu=1,mem=16384M,node=1|00:00.019|1|1|1795782948|1795782948||cpu=00:00:00,energy=0,mem=12730368|cpu=00:00:00,mem=12730368
2.0|COMPLETED|120|8|cpu=8,gres/gpu=2,mem=32768M,node=2|03:13.641|2|4|1795782958|1795782958||cpu=00:03:13,energy=0,gres/gpuutil=180,mem=1260056576|cpu=00:00:50,gres/gpuutil=93,mem=320000000
"""


OFF = Result(("sacct",), 1, "", "Slurm accounting storage is disabled\n")


def records(text: str = SACCT) -> list[accounting.Job]:
    rows = (line.split("|") for line in text.splitlines())
    return [dict(zip(efficiency.FIELDS, row, strict=True)) for row in rows]


def test_efficiency_is_what_seff_computes():
    known = efficiency.from_records(records())
    assert known.cpu_share == pytest.approx(193.66 / (130 * 8))
    assert known.memory is not None
    assert known.memory.share == pytest.approx(1260056576 / (32768 << 20))
    assert known.memory.asked == 16384 << 20
    # Two of the four tasks are on a node: at most twice the largest.
    assert known.memory.most == 2 * 320000000
    assert (known.waited, known.start_seconds, known.slurm_gpu) == (5, 10, 93)
    assert (known.seconds, known.limit_seconds, known.cpus) == (130, 1800, 8)


def test_elements_of_an_array_are_summed_and_what_was_not_sampled_is_unknown():
    row = "{0}|COMPLETED|{1}|4|cpu=4,mem=4096M|{2}|1||1|2|60||"
    # The steps of a cluster that samples nothing have no usage.
    rows = ((8, 10, "00:20"), ("8.batch", 10, ""), (9, 30, "1-00:00:00.5"))
    known = efficiency.from_records(records("\n".join(row.format(*values) for values in rows)))
    assert known.cpu_share == pytest.approx((20 + 86400.5) / (40 * 4))
    assert (known.memory, known.start_seconds, known.slurm_gpu) == (None, None, None)
    hidden = efficiency.from_records(records()[1:])
    assert (hidden.cpus, hidden.memory, hidden.waited) == (0, None, None), "steps without their job"


G = 1 << 30
ADVICE: list[tuple[dict[str, Any], list[tuple[bool, str]]]] = [
    ({"memory": efficiency.Memory(0.05, 64 * G, int(3.1 * G))}, [(True, "asked 64G of memory a node, used 3.1G: --mem 4G may start earlier")]),
    ({"memory": efficiency.Memory(0.05, 64 * G, 3 * G), "state": "FAILED"}, []),
    ({"memory": efficiency.Memory(0.95, 16 * G, 15 * G)}, [(False, "asked 16G of memory a node, used 15G: --mem 19G leaves room")]),
    ({"memory": efficiency.Memory(0.7, 16 * G, 11 * G), "cpu_share": 0.9}, []),
    ({"cpu_share": 0.1, "cpus": 16}, [(True, "1.6 of 16 CPUs were busy: --cpus-per-task 1")]),
    ({"start_seconds": 300.0}, [(True, "5:00 passed before the first step: what is the script doing?")]),
    ({"limit_seconds": 86400.0}, [(False, "asked 24:00:00, took 16:40: --time 25:00 fits into earlier gaps")]),
    ({"busy": (0.0, 80.0)}, [(True, "1 GPU did nothing, such as GPU 0 of n1: a rank for each, or fewer GPUs")]),
    ({"busy": (10.0, 20.0), "cpu_share": 0.1}, [(True, "the GPUs were busy 15 % of the time: fewer GPUs, larger batches, or more workers that load data")]),
    ({"busy": (100.0, 100.0)}, [(True, "the GPUs looked busy at 25% of their power: they wait for communication, or hang; see toolkit docs run/hang")]),
    ({"busy": (60.0, 70.0)}, []),
]  # fmt: skip


@pytest.mark.parametrize(("values", "expected"), ADVICE)
def test_advice(values, expected):
    busy = values.pop("busy", ())
    gpus = tuple(
        efficiency.Gpu("n1", number, each, G, 80 * G, 100.0, 400.0, (each,) * 9)
        for number, each in enumerate(busy)
    )
    known = efficiency.Efficiency(
        **{"state": "COMPLETED", "seconds": 1000.0, "gpus": gpus, **values}
    )
    assert efficiency.advise(known, decide(make_case({"cpus_per_task": 2}))) == expected


def run_of(tmp_path: Path, answer: str | Result, outcome: Outcome = DONE) -> Run:
    run = new_run(tmp_path / "train-0001", 2, outcome=outcome)
    run.client = Slurm(sacct=answer)
    return run


def test_samples_are_of_the_last_attempt_and_hostile_ones_are_left_out(tmp_path):
    run = run_of(tmp_path, SACCT)
    (run.logs / "2-n1.gpus.csv").write_text("0, 1, 1, 80, 1.0, 2.0\n")
    (run.logs / "2.1-n1.gpus.csv").write_text(
        "0, 40, 1000, 81920, 100.50, 400.00\n1, 0, 0, 81920, [N/A], [N/A]\n0, 60, 3000, 81920, 99.50, 400.00\n"
        "No devices were found\n0, nan, 1, 1, 1, 1\n0, 1e9, 1, 1, 1, 1\n"
    )
    (run.logs / "2.9-n4.gpus.csv").write_text("0, 9, 1, 80, 1.0, 2.0\n")
    (run.logs / "2.10-n4.gpus.csv").write_text("0, 10, 1, 80, 1.0, 2.0\n")
    (run.logs / "2-n2.gpus.csv").symlink_to("/etc/passwd")
    (run.logs / "22-n3.gpus.csv").write_text("0, 1, 1, 80, 1.0, 2.0\n")
    first, second, last = efficiency.measure(run).gpus
    assert (last.host, last.busy) == ("n4", 10.0)
    assert first == ("n1", 0, 50.0, 3000 << 20, 81920 << 20, 100.0, 400.0, (40.0, 60.0))
    assert (second.busy, second.power, second.limit) == (0.0, None, None)


def test_a_cpu_time_that_is_none_counts_nothing():
    times = {"1-02:03:04": 93784, "00:19.5": 19.5, "INVALID": 0, "1.2.3": 0, ":": 0, "..": 0}
    assert {text: accounting.seconds_of(text) for text in times} == times


def test_a_cluster_without_accounting_is_told_plainly(tmp_path):
    known = efficiency.measure(run_of(tmp_path, OFF))
    assert known.missing == "CPU and memory: this cluster keeps no accounting, or does not show it"
    assert (known.state, known.seconds, known.cpu_share) == ("COMPLETED", 1.0, None)


# Job 3 was requeued after its node had failed; 5 began before the time that counts.
USAGE = """\
3|ann|ml|main|NODE_FAIL|3600|4|cpu=4,gres/gpu:a100=2,gres/gpu=2|900|1000
3|ann|ml|main|COMPLETED|7200|4|cpu=4,gres/gpu=2|4900|5000
4|bob|ml|main|CANCELLED by 7|1800|2|cpu=2|900|1300
5|bob|ml|debug|FAILED|3600|8|cpu=8|100|900
6|bob|ml|debug|PENDING|0|0||Unknown|Unknown
"""


def test_usage_by_group_and_end_state():
    jobs = [dict(zip(accounting.USAGE, row.split("|"), strict=True)) for row in USAGE.splitlines()]
    groups, states = accounting.usage(jobs, "user", 950)
    assert groups == [
        ("ann", 1, 12.0, 6.0, 1 / 3, 100),
        ("bob", 3, 9.0, 0.0, 8 / 9, 400),
    ]
    assert [(use.name, use.jobs, use.gpu_hours) for use in states] == [
        ("COMPLETED", 1, 4.0),
        ("NODE_FAIL", 1, 2.0),
        ("FAILED", 1, 0.0),
        ("CANCELLED", 1, 0.0),
        ("PENDING", 1, 0.0),
    ]


def test_usage_since_before_there_were_computers(monkeypatch):
    asked: list[str] = []

    def ask(_: object, __: object, *options: str) -> list[dict[str, str]]:
        asked.extend(options)
        return []

    monkeypatch.setattr(accounting, "ask", ask)
    monkeypatch.setattr(cost, "find_cluster", lambda _: SimpleNamespace(client=None))
    done = CliRunner().invoke(cli, ["usage", "--since", "999999999999d"])
    assert done.exit_code == 0, done.exception
    assert f"--starttime={time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(0))}" in asked


def test_a_report_is_text_a_page_or_json(tmp_path, monkeypatch):
    run = run_of(tmp_path / "runs", SACCT)
    (run.logs / "2-<b>n1.gpus.csv").write_text("0, 50, 1024, 81920, 100.0, 400.0\n" * 3)
    monkeypatch.setattr(Run, "client", run.client)
    words = ["report", "--runs", str(tmp_path / "runs")]
    text = CliRunner().invoke(cli, words).stdout
    for line in (
        "report     train-0001, job 2, 2 nodes x 2 ranks: COMPLETED after 2:10 of 30:00",
        "cpu        [####................]  19 %  1.5 of 8 CPUs were busy on average",
        "memory     [#...................]   4 %  0.596G of 16G on the fullest node",
        "gpu        [##########..........]  50 %  <b>n1 GPU 0, 1G of 80G, 100 of 400 W",
        "waited     0:05; first step 0:10 after the start",
        "advice     asked 16G of memory a node, used 0.596G: --mem 1G may start earlier",
    ):
        assert line in text
    page = tmp_path / "page.html"
    assert CliRunner().invoke(cli, [*words, "--html", str(page)]).exit_code == 0
    assert "<svg" in page.read_text()
    assert "<b>" not in page.read_text()
    data = json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)
    assert data["memory"]["asked"] == 16 * G
    assert data["gpus"][0]["samples"] == [50, 50, 50]


def test_the_url_that_is_told_is_only_in_a_file_of_the_owner(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hook = tmp_path / "hook"
    hook.write_text("https://hooks.example/T0KEN\n")
    hook.chmod(0o600)
    (tmp_path / "train.py").write_text("print(1)\n")
    words = "run --site generic --image docker://python:3.11 --dry-run --json --explain".split()
    done = CliRunner().invoke(cli, [*words, "--notify", f"@{hook}", "train.py"])
    assert done.exit_code == 0, done.output
    assert "T0KEN" not in done.output
    case = make_case({"notify": "https://hooks.example/T0KEN"}, run=str(tmp_path / "runs/x-0001"))
    reserve(tmp_path / "runs/x-0001")
    run = fill(decide(case), case)
    holding = [
        path for path in run.directory.rglob("*") if path.is_file() and "T0KEN" in path.read_text()
    ]
    assert [(path.name, path.stat().st_mode & 0o777) for path in holding] == [("notify", 0o600)]
    again = with_variables(from_json((run.directory / "job.json").read_text(), Job))
    assert again[0].notify == "https://hooks.example/T0KEN"
    for mode, text, said in (
        (0o644, "https://x", "other users can read it"),
        (0o600, 'https://x"y', "names no URL"),
    ):
        hook.write_text(text)
        hook.chmod(mode)
        _, (finding,) = with_variables(Job(notify=f"@{hook}"))
        assert said in finding.cause


USED = SACCT.replace("mem=1260056576", "mem=16000000000")
UNUSED = "asked 16G of memory a node, used 0.596G: --mem 1G may start earlier; all of it:"


@pytest.mark.parametrize(
    ("seconds", "answer", "text"),
    [(130.0, SACCT, ""), (300.0, SACCT, UNUSED), (300.0, USED, ""), (300.0, OFF, "")],
)
def test_a_long_run_says_at_its_end_what_it_did_not_use(seconds, answer, text, tmp_path, capsys):
    """A short one, and one that used what it got, say nothing; nor does an accounting that is off."""
    outcome = replace(DONE, seconds=seconds)
    follow.show_end(run_of(tmp_path, answer, outcome), outcome, as_json=False)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("unused")]
    assert len(said) == bool(text)
    assert text in "".join(said)
