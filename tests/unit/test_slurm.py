"""Reading Slurm's answers: captured ones of 22.05 (tests/golden/slurm), and the shapes of later versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolkit.model.run import JobState
from toolkit.slurm import parse
from toolkit.slurm.client import without_sbatch_variables
from toolkit.slurm.hostlist import expand


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30", 30),
        ("30:01", 31),
        ("2:00:00", 120),
        ("1-0", 1440),
        ("1-12:30", 2190),
        ("1-12:30:00", 2190),
        ("infinite", None),
        ("UNLIMITED", None),
    ],
)
def test_times(text: str, expected: int | None) -> None:
    assert parse.minutes(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "1:2:3:4", "-5", "1 h"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="not a time"):
        parse.minutes(text)


def test_partitions_of_sinfo() -> None:
    text = (
        "main*|up|1-00:00:00|1-infinite|2|idle|8|16000|gpu:v100:2(S:0)\n"
        "main*|up|1-00:00:00|1-infinite|1|down*|8|16000|gpu:v100:4\n"
        "big|inact|infinite|1-2|3|mix|40+|190000+|(null)\n"
    )
    main, big = parse.partitions(text)
    assert (main.name, main.default, main.nodes, main.cpus, main.gpus, main.gpu_type) == ("main", True, 2, 8, 4, "v100")
    assert (main.max_minutes, main.max_nodes) == (1440, None)
    assert (big.nodes, big.cpus, big.memory, big.gpus, big.max_nodes, big.available) == (3, 40, 190000, 0, 2, False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("srun: MPI types are...\nsrun: none\nsrun: pmi2\nsrun: pmix\nsrun: pmix_v4\n", ("none", "pmi2", "pmix", "pmix_v4")),
        ("MPI plugin types are...\n\tnone\n\tcray_shasta\n\tpmi2\n\tpmix\nspecific pmix plugin versions available: pmix_v4,pmix_v5\n",
         ("none", "cray_shasta", "pmi2", "pmix", "pmix_v4", "pmix_v5")),
        ("MPI plugin types are...\n\tpmix\n\tcray_shasta\n\tnone\nspecific pmix plugin versions available: pmix_v4\n",
         ("pmix", "cray_shasta", "none", "pmix_v4")),
    ],
)  # fmt: skip
def test_mpi_types(text: str, expected: tuple[str, ...]) -> None:
    assert parse.mpi_types(text) == expected


def test_jobs_of_a_later_slurm() -> None:
    number = {"set": True, "infinite": False, "number": 0}
    answer = {
        "jobs": [
            {
                "job_id": 9,
                "job_state": ["FAILED"],
                "name": "train",
                "nodes": "nid[001-002]",
                "state_reason": "NonZeroExitCode",
                "exit_code": {"status": ["ERROR"], "return_code": number | {"number": 3}, "signal": {"id": number, "name": ""}},
                "start_time": number | {"number": 100},
                "end_time": number | {"number": 160},
            },
            {"job_id": 10, "job_state": ["COMPLETED", "COMPLETING"], "nodes": "", "state_reason": "None"},
        ]
    }
    states = parse.jobs("slurm_load: warning: something\n" + json.dumps(answer))
    assert states[9] == JobState(
        job_id=9, state="FAILED", name="train", reason="NonZeroExitCode", nodes="nid[001-002]", exit_code=3, start=100, end=160
    )
    assert states[9].ended
    assert states[10].state == "COMPLETING"
    assert not states[10].ended


def test_jobs_of_sacct() -> None:
    golden = Path(__file__).parent.parent / "golden" / "slurm" / "sacct-22.05.txt"
    states = parse.accounts(golden.read_text())
    assert [state.state for state in states.values()] == ["FAILED", "COMPLETED", "CANCELLED"]
    failed = states[1]
    assert (failed.exit_code, failed.nodes, failed.name) == (3, "nid[001-002]", "fails | here")
    assert failed.start > 0


def test_jobs_of_scontrol() -> None:
    line = "JobId=7 JobName=train UserId=me(1) JobState=PENDING Reason=Resources ExitCode=0:0 NodeList=(null) Partition=main"
    assert parse.job_lines(line)[7] == JobState(job_id=7, state="PENDING", name="train", reason="Resources", partition="main")


def test_captured_answers_of_22_05() -> None:
    golden = Path(__file__).parent.parent / "golden" / "slurm"
    states = parse.jobs((golden / "squeue-22.05.json").read_text())
    assert {state.state for state in states.values()} >= {"COMPLETED", "FAILED"}
    failed = next(state for state in states.values() if state.state == "FAILED")
    assert failed.exit_code == 3
    assert failed.nodes == "nid[001-002]"
    assert failed.start > 0
    assert parse.partitions((golden / "sinfo-22.05.txt").read_text())[0].default
    assert "pmix" in parse.mpi_types((golden / "mpi-22.05.txt").read_text())


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("nid001", ("nid001",)),
        ("nid[001-003,007]", ("nid001", "nid002", "nid003", "nid007")),
        ("a1,b[2-3],c", ("a1", "b2", "b3", "c")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("", ()),
    ],
)
def test_host_lists(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", ["nid[001", "nid[3-1]", "nid[a]"])
def test_broken_host_lists(text: str) -> None:
    with pytest.raises(ValueError, match="host list"):
        expand(text)


def test_variables_that_override_a_script_do_not_reach_sbatch() -> None:
    assert without_sbatch_variables({"SBATCH_PARTITION": "x", "SLURM_CONF": "y"}) == {"SLURM_CONF": "y"}


def test_an_answer_that_tells_of_an_error_is_none() -> None:
    """What 22.05 prints, with exit code 0, where no controller answers."""
    answer = '{"errors": [{"description": "Failed while looking for jobs", "source": "slurm_load_jobs"}], "jobs": []}'
    with pytest.raises(ValueError, match="looking for jobs"):
        parse.jobs(answer)


def element(number: int, index: int, state: str, code: int = 0, nodes: str = "") -> dict[str, object]:
    return {"job_id": number, "array_job_id": 7, "array_task_id": index, "job_state": state, "exit_code": code << 8, "nodes": nodes}


@pytest.mark.parametrize(
    ("states", "together", "code"),
    [
        (("PENDING", "PENDING"), "PENDING", 0),
        (("RUNNING", "PENDING"), "RUNNING", 0),
        (("COMPLETED", "PENDING"), "RUNNING", 0),
        (("COMPLETED", "COMPLETED"), "COMPLETED", 0),
        (("COMPLETED", "FAILED"), "FAILED", 3),
    ],
)
def test_an_array_is_one_job(states: tuple[str, str], together: str, code: int) -> None:
    rows = [element(8 - index, index, state, 3 if state == "FAILED" else 0, f"nid00{index}") for index, state in enumerate(states)]
    found = parse.jobs(json.dumps({"jobs": rows}))[7]
    assert (found.job_id, found.state, found.exit_code, found.nodes) == (7, together, code, "nid000,nid001")
