"""What Slurm's commands print is read alike of every version, and silence is told from a refusal.

The answers of the versions were captured by ``tests/slurm_answers.py``, which says of which jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.slurm_answers import JOBS, NAME, SCRIPT, SEPARATOR, answer, versions
from tests.unit.run_fixtures import Slurm
from toolkit import sites
from toolkit.errors import SlurmSilentError, SubmissionError
from toolkit.model.run import JobState
from toolkit.model.site import Limits, Partition, PartitionState, Site, SitePartition, Start, Use
from toolkit.shell import Result
from toolkit.slurm import client, cluster, hostlist
from toolkit.slurm.client import TESTED, AnswerLostError, without_slurm_defaults
from toolkit.units import minutes

VERSIONS = versions()
SPOKEN = "site plugin: 3 of your jobs wait | see https://example.org"
SITE = Site(name="x")


@pytest.fixture(autouse=True)
def separator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the client ask for the separator that captured answers have."""
    monkeypatch.setattr(client, "_new_separator", lambda: SEPARATOR)


def squeue(*rows: Sequence[str]) -> str:
    """Return what squeue prints for rows of values."""
    return "".join("".join(f"{value}{SEPARATOR}" for value in row) + "\n" for row in rows)


def sacct(*rows: str) -> str:
    """Return what sacct prints for rows whose values are separated by a bar."""
    return squeue(*(row.split("|") for row in rows))


def row(number: int, *, array: int = 0, task: str = "N/A", **values: str) -> list[str]:
    """Return the values of one job in squeue's order."""
    given = {"state": "COMPLETED", "reason": "None", "nodes": "nid001", "partition": "main"}
    given |= {"code": "0:0", "start": "100", "end": "160", "name": "train", "batch": "1"}
    given |= {"command": "/runs/a/job.sbatch", **values}
    return [str(number), str(array or number), task, *given.values()]


def states_of(queued: str, accounted: str = "", ids: Sequence[int] = (7,)) -> dict[int, JobState]:
    """Return what the client tells of jobs."""
    return dict(Slurm(squeue=queued, sacct=accounted).snapshot(ids).states)


# Values.

TIMES: dict[str, int | None] = {
    "30": 30,
    "30:01": 31,
    "2:00:00": 120,
    "1-0": 1440,
    "1-12:30": 2190,
    "1-12:30:00": 2190,
}
TIMES |= {"infinite": None, "UNLIMITED": None}


def test_times():
    assert {text: minutes(text) for text in TIMES} == TIMES
    for text in ("", "soon", "1:2:3:4", "-5", "1 h"):
        with pytest.raises(ValueError, match="not a time"):
            minutes(text)


HOSTS = {"nid[001-003,007]": "nid001 nid002 nid003 nid007", "a1,b[2-3],c": "a1 b2 b3 c", "": ""}
HOSTS |= {"r[1-2]n[1-2]": "r1n1 r1n2 r2n1 r2n2"}


def test_host_lists():
    assert {text: " ".join(hostlist.expand(text)) for text in HOSTS} == HOSTS
    for text in ("nid[001", "nid[3-1]", "nid[a]"):
        with pytest.raises(ValueError, match="host list"):
            hostlist.expand(text)


def test_variables_that_change_what_commands_do_do_not_reach_them():
    given = {"SBATCH_PARTITION": "x", "SQUEUE_STATES": "PD", "SACCT_FORMAT": "x", "SLURM_CONF": "y"}
    given["SLURM_EXIT_ERROR"] = "137"
    assert without_slurm_defaults(given) == {"SLURM_CONF": "y"}


# Jobs, whatever their names are and whichever version prints them.

HOSTILE = "a | b\n7<S>8\t%s <1f2e3d4> \x1f é"


def test_any_name_and_path_is_read_and_what_is_no_whole_row_is_left_out():
    path = f"/runs/{HOSTILE}/job.sbatch"
    text = squeue(row(7, name=HOSTILE, command=path), row(8, name="next"))
    states = states_of("squeue: warning: 99 of something\n" + text)
    assert (states[7].name, states[7].command) == (HOSTILE, path)
    assert (states[8].name, states[8].command) == ("next", "/runs/a/job.sbatch")
    assert list(states_of(text[:-30])) == [7]
    assert states_of("some warning\n") == {}
    assert states_of(squeue(row(7, batch="0", command="/usr/bin/bash")))[7].command == ""  # salloc


CODES = {"3:0": (3, 0), "0:9": (0, 9), "768": (3, 0), "9": (0, 9), "137": (0, 9), "": (0, 0)}


def test_exit_codes_of_every_version():
    states = {code: states_of(squeue(row(7, state="FAILED", code=code)))[7] for code in CODES}
    assert {code: (state.exit_code, state.signal) for code, state in states.items()} == CODES


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
def test_an_array_is_one_job(states, together, code):
    rows = [
        row(8 - task, array=7, task=str(task), state=state, nodes=f"nid00{task}")
        for task, state in enumerate(states)
    ]
    rows[1][7] = "3:0" if states[1] == "FAILED" else "0:0"
    found = states_of(squeue(*rows))[7]
    assert (found.job_id, found.state, found.exit_code) == (7, together, code)
    assert found.nodes == "nid000,nid001"


ACCOUNTS = (
    "8|7_0|COMPLETED|None|nid001|main|0:0|5|9|x|sbatch --parsable /runs/a/job.sbatch",
    "9|7_1|FAILED|NonZeroExitCode|nid001|main|3:0|5|9|x|sbatch job.sbatch",
)


def test_the_accounting_fills_in_what_the_queue_has_forgotten():
    """Squeue forgets the tasks of an array in the order in which they end: a failure may be gone."""
    rows = row(10, array=7, task="2"), row(7, array=7, task="3", state="CANCELLED")
    running = "10|7_2|RUNNING|None|nid001|main|0:0|5|Unknown|x|"
    states = states_of(squeue(*rows), sacct(*ACCOUNTS, running))
    assert (states[7].state, states[10].state) == ("FAILED", "COMPLETED")
    # It is late, and brings back no pending task.
    late = sacct("7_[0-2]|7_[0-2]|PENDING|None|None assigned|main|0:0|Unknown|Unknown|x|")
    assert states_of(squeue(row(7, array=7, task="3")), late)[7].state == "COMPLETED"
    assert states_of("", late)[7].state == "PENDING"


OWN = "/runs/a b/x-0001/job.sbatch"
DURING: dict[str, Any] = {"start": "1000", "end": "1060"}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([row(9, command=OWN, **DURING), row(12, command=OWN, **DURING)], 12),
        ([row(9, array=7, task="1", command=OWN, **DURING), row(7, array=7, task="2-3", command=OWN, state="PENDING")], 7),
        ([row(7, command="(null)", **DURING)], None),
        ([row(7, command=OWN, batch="0", **DURING)], None),
        ([row(7, command=OWN + ".old", **DURING)], None),
        ([row(7, command="/other" + OWN, **DURING)], None),
        ([row(7, command=f"{OWN} --epochs 3", **DURING)], None),
        # A job of a removed run of the same name is not the run's.
        ([row(7, command=OWN, start="900", end="999")], None),
        ([row(7, command=OWN, state="CANCELLED", start="999", end="999")], None),
        ([row(7, command=OWN, start="1000", end="1000")], 7),
        ([row(7, command=OWN, state="PENDING", start="N/A", end="N/A")], 7),
        ([row(7, command=OWN, state="RUNNING", start="2000", end="9999")], 7),
        ([row(7, command=OWN, state="RUNNING", start="998", end="9999")], 7),  # the clocks differ
        ([row(7, command=OWN, state="RUNNING", start="100", end="9999")], None),
    ],
)  # fmt: skip
def test_a_job_is_found_by_its_script(rows, expected):
    assert Slurm(squeue=squeue(*rows), sacct="").find(OWN, 1000.7) == expected


# Captured answers.

IDS = {name: number for number, name in enumerate(JOBS, 1)}
STATES = dict.fromkeys(JOBS, "FAILED") | {"timeout": "TIMEOUT", "completed": "COMPLETED"}
STATES |= {"cancelled": "CANCELLED", "many": "PENDING", "waits": "PENDING"}
STATES |= dict.fromkeys(("requeued", "gpus", "debug"), "RUNNING")


def test_every_version_that_is_said_to_be_tested_has_answers():
    assert {version.rpartition(".")[0] for version in VERSIONS} == set(TESTED)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("command", ["squeue", "sacct"])
def test_jobs_of_every_version(version, command):
    slurm = Slurm(**{"squeue": "", "sacct": "", command: answer(version, command)})
    states = slurm.snapshot([*IDS.values()]).states
    jobs = {name: states[number] for name, number in IDS.items()}
    assert {name: state.state for name, state in jobs.items()} == STATES
    assert {state.name for state in states.values()} == set(JOBS)
    failed, killed = jobs[NAME], jobs["signal"]
    assert (failed.exit_code, failed.signal, failed.nodes) == (3, 0, "nid[001-002]")
    assert (killed.exit_code, killed.signal) == (0, 9)
    assert jobs["timeout"].end - jobs["timeout"].start >= 60
    assert (jobs["waits"].start, jobs["waits"].end, jobs["waits"].nodes) == (0, 0, "")
    assert (jobs["debug"].partition, jobs["debug"].end) == ("debug", 0)
    if command == "squeue":  # only it tells why a job waits now
        assert (jobs["many"].reason, jobs["requeued"].reason) == ("JobHeldUser", "")
        assert jobs["waits"].reason in ("Resources", "Priority")
    sweep = slurm.elements(IDS["sweep"])
    assert list(sweep) == list(range(10))
    assert [state.state for state in sweep.values()] == ["COMPLETED", "FAILED", *["CANCELLED"] * 8]
    assert sweep[1].exit_code == 4
    many = slurm.elements(IDS["many"])
    assert list(many) == [number for number in range(60) if number % 3 != 1]
    assert {state.state for state in many.values()} == {"PENDING"}
    assert slurm.find(str(SCRIPT), 0) == max(IDS.values())
    assert slurm.find("/elsewhere" + str(SCRIPT), 0) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_cluster_of_every_version(version):
    slurm = Slurm(sinfo=answer(version, "sinfo"), **{"--mpi=list": answer(version, "mpi")})
    debug, main = slurm.partitions()
    own: dict[str, Any] = {"nodes": 3, "cpus": 8, "memory": 8192, "gpus": 4, "gpu_type": "v100"}
    own["gpus_by_type"] = {"v100": 4}
    assert debug == Partition(name="debug", max_minutes=30, max_nodes=1, **own)
    assert main == Partition(name="main", default=True, **own)
    assert {"none", "pmi2"} <= set(slurm.mpi_types())
    nodes = cluster.ask_nodes(Slurm(node=answer(version, "nodes")))
    expected = [(f"nid00{number}", "mixed", 4, "v100") for number in (1, 2, 3)]
    assert [(node.name, node.state, node.gpus, node.gpu_type) for node in nodes] == expected
    assert sum(node.gpus_used for node in nodes) == 5
    debug, main = cluster.partitions(answer(version, "partitions"))
    assert debug == Partition(name="debug", hosts="nid[001-003]", max_minutes=30, max_nodes=1)
    assert main == Partition(name="main", hosts="nid[001-003]", default=True)
    assert cluster.limits_of(answer(version, "qos"), "QOS") == {"normal": Limits(source="QOS")}
    start = cluster.start(answer(version, "starts"))
    assert (start.at[:1], start.nodes[:3]) == ("2", "nid")
    refused = cluster.start(answer(version, "refused"))
    assert refused.refused == "Node count specification invalid"


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_user_has(version):
    """It asks about the jobs whose GPUs squeue does not print."""
    debug, requeued = str(IDS["debug"]), str(IDS["requeued"])
    details = {debug: answer(version, "details"), requeued: ""}
    found = cluster.ask_usage(Slurm(squeue=answer(version, "usage"), **details))
    assert found["debug"] == Use(submitted=1, running=1, gpus=1)
    assert found["main"] == Use(submitted=43, running=2, gpus=4)


# Partitions, nodes and limits.


def test_partitions_of_sinfo():
    text = (
        "main*|up|1-00:00:00|1-infinite|2|idle|8|16000|gpu:v100:2(S:0)\n"
        "main*|up|1-00:00:00|1-infinite|1|down*|8|16000|gpu:v100:4\n"
        "big|inact|infinite|1-2|3|mix|40+|190000+|(null)\n"
    )
    main = Partition(name="main", default=True, nodes=2, cpus=8, memory=16000, gpus=4)
    main = replace(main, gpu_type="v100", gpus_by_type={"v100": 4}, max_minutes=1440)
    big = Partition(name="big", nodes=3, cpus=40, memory=190000, max_nodes=2, available=False)
    assert Slurm(sinfo=text).partitions() == (main, big)


def test_lines_of_a_site_s_plugins_are_skipped():
    """On every answer that is read line by line: before, between and after."""
    line = "main*|up|infinite|1-infinite|2|idle|8|16000|gpu:v100:2"
    slurm = Slurm(sinfo=f"{SPOKEN}\n\n{line}\n{SPOKEN}\n")
    assert [one.name for one in slurm.partitions()] == ["main"]
    usage = f"{SPOKEN}\nmain|R|2|gres/gpu:4|7\n{SPOKEN}"
    assert cluster.ask_usage(Slurm(squeue=usage)) == {"main": Use(submitted=1, running=1, gpus=8)}
    assert Slurm(sinfo=f"{SPOKEN}\nslurm-wlm 22.05.8\n{SPOKEN}\n").version() == "22.05.8"
    assert Slurm(sinfo=SPOKEN).version() == ""


def test_nodes_count_as_unhealthy_if_they_went_down_while_the_job_ran():
    text = f"""{SPOKEN}*
nid001 | idle | Unknown | none
nid002 | down* | 1700000010 | Not responding
nid003 | down | 1600000000 | RMA | rack 7
nid004 | idle* | Unknown | none
"""
    slurm = Slurm(sinfo=text)
    late = {"nid002": "down*: Not responding", "nid004": "idle*: none"}
    assert slurm.unhealthy_nodes("nid[001-004]", 1700000000) == late
    assert slurm.unhealthy_nodes("nid[001-004]", 0)["nid003"] == "down: RMA | rack 7"
    refusing = Slurm(sinfo=Result(("sinfo",), 1, "", "invalid node name"))
    assert refusing.unhealthy_nodes("nid001", 0) == {}, "a run has an outcome all the same"


def test_pieces_of_lines_of_several_nodes_are_put_together():
    text = " 0: one: a\n11: eleven \n 0:  and more\nsrun: a warning\n11:  \n 0: .\036\n"
    assert Slurm(srun=text).on_nodes(7, 12, "true") == "one: a and more.\neleven  "
    assert Slurm(srun="").on_nodes(7, 12, "true") == ""


def test_nodes_of_a_partition_are_counted():
    known = {name: answer("22.05.8", f"{name}s") for name in ("node", "partition")}
    known["node"] = known["node"].replace("State=MIXED", "State=IDLE", 1)
    known |= {"qos": "", "associations": "", "squeue": "main|PD|1|N/A|7"}
    _, state = cluster.partition_states(Slurm(**known), SITE)
    assert state.use == Use(submitted=1)
    assert (state.idle, state.mixed, state.gpus, state.gpus_free) == (1, 2, 12, 7)
    assert (state.gpu, state.gpus_per_node) == ("v100", 4)


NODE_STATES = {"IDLE": "idle", "IDLE+COMPLETING": "idle", "IDLE+CLOUD+POWERED_DOWN": "idle"}
NODE_STATES |= {"IDLE~": "idle", "MIXED+DRAIN": "down", "ALLOCATED": "full", "DOWN*": "down"}
NODE_STATES |= {"IDLE*": "down", "DOWN+NOT_RESPONDING": "down", "SOMETHING_NEW": "down"}


@pytest.mark.parametrize(("state", "meant"), NODE_STATES.items())
def test_a_node_has_a_state_and_partitions(state, meant):
    words = f"Gres=(null) State={state} Reason=some words"
    lines = f"NodeName=a Partitions=main,debug AvailableFeatures=intel,rack1 {words}\n{SPOKEN}\n"
    lines += f"NodeName=b Partitions=main AvailableFeatures=(null) {words}"
    first, second = cluster.ask_nodes(Slurm(node=lines))
    assert (first.state, first.gpus, first.gpu_type) == (meant, 0, "")
    assert first.partitions == ("main", "debug")
    assert second.partitions == ("main",)


def test_limits_of_slurm_go_before_those_that_are_written():
    neuron, partition = sites.load("neuron"), Partition(name="cas_v100_4", qos="v100")
    written = cluster.limits(partition, neuron, {}, {})
    assert written == Limits(jobs_submitted=20, jobs_running=10, gpus=44, source=neuron.cited)
    qos = cluster.limits_of("normal|||\nv100|5||gres/gpu:a=9,gres/gpu=16\n", "Slurm's QOS")
    own = cluster.limits_of("|3|7|cpu=400\n", "Slurm's association")
    assert cluster.limits(partition, neuron, qos, own) == Limits(
        jobs_submitted=7, jobs_running=5, gpus=16, source="Slurm's association and Slurm's QOS"
    )
    assert cluster.limits(Partition(name="other"), SITE, {}, {}) == Limits()


def test_a_job_has_the_limits_that_are_shown():
    """Each of Slurm's own, and beside them those of the site's file."""
    site = replace(SITE, partitions={"main": SitePartition(gpus_per_user=4)})
    text = {"partition": answer("22.05.8", "partitions"), "qos": "", "associations": "|3||"}
    slurm = Slurm(node=answer("22.05.8", "nodes"), squeue="", **text)
    asked = cluster.ask_limits(slurm, "main", site)["main"]
    assert (asked.jobs_running, asked.gpus) == (3, 4)
    shown = {each.settings.name: each for each in cluster.partition_states(slurm, site)}
    assert shown["main"].limits == asked


def test_where_a_job_would_start():
    text = (
        "sbatch: error: this site wants a comment\nsbatch: error: Batch job submission failed: no"
    )
    said = "this site wants a comment; Batch job submission failed: no"
    assert [cluster.start(each).refused for each in (text, "")] == [said, "no answer"]
    given = {"a": Start(at="2026-11-22T00:00:00"), "b": Start(refused="no"), "d": None}
    given["c"] = Start(at="2026-11-21T07:00:00")
    known = [PartitionState(settings=Partition(name=name), start=at) for name, at in given.items()]
    assert [one.settings.name for one in cluster.soonest(known)] == ["c", "a"]


# Silence: what 22.05 printed, and messages of 24.11 to 26.05 from their sources (slurm_errno.c, opt.c).

MUNGE = (
    "sbatch: error: Munge {} failed: Failed to connect to socket: Connection refused\n"
    "sbatch: error: {}: REQUEST_X has authentication error\n"
    "sbatch: error: Batch job submission failed: Protocol authentication error"
)
REFUSED = [
    (255, "sbatch: error: Invalid --signal specification"),
    (255, "sbatch: unrecognized option '--frobnicate'\nTry \"sbatch --help\" for more information"),
    (255, "sbatch: fatal: cli_filter plugin terminated with error"),
    (1, "sbatch: error: Unable to open file /nonexistent"),
    (1, "sbatch: error: Batch job submission failed: Job dependency problem"),
    (1, "sbatch: error: Batch job submission failed: TLS missing but required for connection"),
]
LOST = [
    (0, ""),  # without a number
    (255, ""),
    (-9, "sbatch: error: Invalid --signal specification"),
    (143, "Terminated"),
    (1, "Socket timed out on send/recv operation"),
    (1, "Zero Bytes were transmitted or received"),
    (1, "Unable to contact slurm controller (receive failure)"),
    (1, "Unexpected message received"),
    (1, "Header lengths are longer than data received"),
    (1, "Protocol authentication error"),
    (1, MUNGE.format("decode", "auth_g_verify")),
    (1, "sbatch: error: connect: Connection refused\nSocket timed out on send/recv"),
]
AWAY = [
    (1, "Unable to contact slurm controller (connect failure)"),
    (1, "sbatch: error: Could not establish a configuration source"),
    (1, "Slurm backup controller in standby mode"),
    (1, "Rate limit exceeded, please retry momentarily"),
    (1, MUNGE.format("encode", "slurm_send_node_msg: auth_g_create")),
]


@pytest.mark.parametrize(
    ("code", "stderr", "error"),
    [
        *((*answer, SubmissionError) for answer in REFUSED),
        *((*answer, AnswerLostError) for answer in LOST),
        *((*answer, SlurmSilentError) for answer in AWAY),
    ],
)
def test_only_silence_is_silence(code, stderr, error):
    """A refusal ends after one call; what may have arrived is searched for; only the rest is repeated."""
    with pytest.raises(error) as caught:
        Slurm(sbatch=Result(("sbatch",), code, "", stderr)).submit(Path("job.sbatch"))
    assert type(caught.value) is error


def test_the_number_is_read_whatever_a_plugin_says():
    said = Result(("sbatch",), 0, f"{SPOKEN}\n42\n4711;cluster\n", "sbatch: lua: welcome")
    assert Slurm(sbatch=said).submit(Path("job.sbatch")) == 4711


DOWN = "failed to open persistent connection to host:x:6819: Connection refused"


@pytest.mark.parametrize(
    ("stderr", "is_silent"), [(DOWN, True), ("Slurm accounting storage is disabled", False)]
)
def test_an_accounting_that_is_down_is_not_one_that_has_no_job(stderr, is_silent):
    slurm = Slurm(squeue=squeue(row(7, state="RUNNING")), sacct=Result(("sacct",), 1, "", stderr))
    assert list(slurm.jobs([7])) == [7]
    assert list(slurm.snapshot([7, 8]).states) == [7], "ps shows what is known"
    if is_silent:
        with pytest.raises(SlurmSilentError, match="accounting does not answer"):
            slurm.jobs([7, 8])
        with pytest.raises(SlurmSilentError):
            slurm.find("/x/job.sbatch", 0.0)
    else:
        assert list(slurm.jobs([7, 8])) == [7]
        assert slurm.find("/x/job.sbatch", 0.0) is None
