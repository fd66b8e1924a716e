"""Every version of Slurm answers alike as far as the parsers see: the same jobs, captured with each.

``tests/slurm_answers.py`` says which jobs these are, and captures them again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.slurm_answers import JOBS, NAME, SCRIPT, SEPARATOR, answer, versions
from toolkit.model.run import JobState
from toolkit.model.site import Limits, Partition, Use
from toolkit.slurm import TESTED, cluster, parse, queue

VERSIONS = versions()
Answers = Callable[[str], str]
SWEEP = ["COMPLETED", "FAILED", *["CANCELLED"] * 8]
STATES = {
    "timeout": "TIMEOUT",
    NAME: "FAILED",
    "completed": "COMPLETED",
    "signal": "FAILED",
    "cancelled": "CANCELLED",
    "sweep": "FAILED",
    "many": "PENDING",
    "requeued": "RUNNING",
    "gpus": "RUNNING",
    "waits": "PENDING",
    "debug": "RUNNING",
}
IDS = {name: number for number, name in enumerate(JOBS, 1)}


@pytest.fixture(params=VERSIONS)
def answers(request: pytest.FixtureRequest) -> Answers:
    """Return what a version answers to a command."""
    return partial(answer, str(request.param))


def entries_of(answers: Answers, command: str) -> list[queue.Entry]:
    """Parse a captured answer of squeue or sacct."""
    parser = queue.squeue_entries if command == "squeue" else queue.sacct_entries
    return parser(answers(command), SEPARATOR)


@pytest.mark.parametrize("command", ["squeue", "sacct"])
def test_jobs(answers: Answers, command: str) -> None:
    states = queue.job_states(entries_of(answers, command))
    jobs = {name: states[number] for name, number in IDS.items()}
    assert {name: state.state for name, state in jobs.items()} == STATES
    assert {state.name for state in states.values()} == set(JOBS)
    failed, killed = jobs[NAME], jobs["signal"]
    assert (failed.exit_code, failed.signal, failed.nodes) == (3, 0, "nid[001-002]")
    assert (killed.exit_code, killed.signal) == (0, 9)
    assert jobs["timeout"].end - jobs["timeout"].start >= 60
    assert (jobs["waits"].start, jobs["waits"].end, jobs["waits"].nodes) == (0, 0, "")
    assert (jobs["debug"].partition, jobs["debug"].end) == ("debug", 0)
    check_reasons(jobs, command)


def check_reasons(jobs: dict[str, JobState], command: str) -> None:
    """Only squeue tells why a job waits now."""
    if command == "squeue":
        assert jobs["many"].reason == "JobHeldUser"
        assert jobs["waits"].reason in ("Resources", "Priority")
        assert jobs["requeued"].reason == ""


@pytest.mark.parametrize("command", ["squeue", "sacct"])
def test_tasks_of_arrays(answers: Answers, command: str) -> None:
    entries = entries_of(answers, command)
    sweep = queue.task_states(entries, IDS["sweep"])
    assert list(sweep) == list(range(10))
    assert [state.state for state in sweep.values()] == SWEEP
    assert sweep[1].exit_code == 4
    many = queue.task_states(entries, IDS["many"])
    assert list(many) == [number for number in range(60) if number % 3 != 1]
    assert {state.state for state in many.values()} == {"PENDING"}


@pytest.mark.parametrize("command", ["squeue", "sacct"])
def test_jobs_are_found_by_their_script(answers: Answers, command: str) -> None:
    entries = entries_of(answers, command)
    ids = {entry.array or entry.state.job_id for entry in entries}
    assert ids == set(IDS.values())
    for number in ids:
        own = [entry for entry in entries if number in (entry.array, entry.state.job_id)]
        assert queue.job_of(own, str(SCRIPT), 0) == number
        assert queue.job_of(own, "/elsewhere" + str(SCRIPT), 0) is None


def test_the_queue_and_the_accounting_agree(answers: Answers) -> None:
    queued, accounted = entries_of(answers, "squeue"), entries_of(answers, "sacct")
    assert len(queue.merge(queued, accounted)) == len(queued)
    assert len(queue.merge([], accounted)) == len(accounted)


def test_partitions_and_mpi(answers: Answers) -> None:
    debug, main = parse.partitions(answers("sinfo"))
    assert (debug.name, debug.default, debug.max_minutes, debug.max_nodes) == (
        "debug",
        False,
        30,
        1,
    )
    assert (main.name, main.default, main.max_minutes, main.max_nodes) == ("main", True, None, None)
    assert (main.nodes, main.cpus, main.memory, main.gpus, main.gpu_type) == (3, 8, 8192, 4, "v100")
    assert {"none", "pmi2"} <= set(parse.mpi_types(answers("mpi")))


def test_nodes_and_limits(answers: Answers) -> None:
    nodes = cluster.nodes(answers("nodes"))
    assert [(node.name, node.state, node.gpus, node.gpu_type) for node in nodes] == [
        (f"nid00{number}", "mixed", 4, "v100") for number in (1, 2, 3)
    ]
    assert sum(node.gpus_used for node in nodes) == 5
    debug, main = cluster.partitions(answers("partitions"))
    assert debug == Partition(name="debug", hosts="nid[001-003]", max_minutes=30, max_nodes=1)
    assert (main.default, main.available, main.max_minutes, main.max_nodes) == (
        True,
        True,
        None,
        None,
    )
    limits = cluster.limits_of(answers("qos"), "QOS")
    assert limits == {"normal": Limits(source="QOS")}


def test_what_a_user_has(answers: Answers) -> None:
    details = answers("details")
    asked: list[str] = []

    def show(job: str) -> str:
        asked.append(job)
        return details if job == str(IDS["debug"]) else ""

    found = cluster.usage(answers("usage"), show)
    assert found["debug"] == Use(submitted=1, running=1, gpus=1)
    assert found["main"] == Use(submitted=43, running=2, gpus=4)
    assert set(asked) == {str(IDS["debug"]), str(IDS["requeued"])}


def test_when_a_job_would_start(answers: Answers) -> None:
    start = cluster.start(answers("starts"))
    assert start.at.startswith("2")
    assert start.nodes.startswith("nid")
    refused = cluster.start(answers("refused"))
    assert refused.refused == "Node count specification invalid"


def test_every_version_that_is_said_to_be_tested_has_answers() -> None:
    assert {version.rpartition(".")[0] for version in VERSIONS} == set(TESTED)
