"""What Slurm's commands print is read, and silence is told from a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.slurm_answers import answer
from toolkit import sites, units
from toolkit.errors import SlurmSilentError, SubmissionError
from toolkit.model.run import JobState
from toolkit.model.site import (
    Access,
    Limits,
    Partition,
    PartitionState,
    Site,
    Start,
    Use,
)
from toolkit.shell import Result
from toolkit.slurm import cluster, failures, parse, queue
from toolkit.slurm.client import Client, without_slurm_defaults
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
    assert units.minutes(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "1:2:3:4", "-5", "1 h"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="not a time"):
        units.minutes(text)


def test_partitions_of_sinfo() -> None:
    text = (
        "main*|up|1-00:00:00|1-infinite|2|idle|8|16000|gpu:v100:2(S:0)\n"
        "main*|up|1-00:00:00|1-infinite|1|down*|8|16000|gpu:v100:4\n"
        "big|inact|infinite|1-2|3|mix|40+|190000+|(null)\n"
    )
    main = Partition(name="main", default=True, nodes=2, cpus=8, memory=16000, gpus=4)
    main = replace(main, gpu_type="v100", gpus_by_type={"v100": 4}, max_minutes=1440)
    big = Partition(name="big", nodes=3, cpus=40, memory=190000, max_nodes=2, available=False)
    assert parse.partitions(text) == (main, big)


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


def test_variables_that_change_what_commands_do_do_not_reach_them() -> None:
    given = {"SBATCH_PARTITION": "x", "SQUEUE_STATES": "PD", "SACCT_FORMAT": "x", "SLURM_CONF": "y"}
    given["SLURM_EXIT_ERROR"] = "137"
    assert without_slurm_defaults(given) == {"SLURM_CONF": "y"}


def test_pieces_of_lines_of_several_tasks_are_put_together() -> None:
    text = " 0: one: a\n11: eleven \n 0:  and more\nsrun: a warning\n11:  \n 0: .\n"
    assert parse.labelled(text) == ["one: a and more.", "eleven  "]
    assert parse.labelled("") == []


SITE = Site(name="x")
SPOKEN = "site plugin: 3 of your jobs wait | see https://example.org"


def test_lines_of_a_site_s_plugins_are_skipped() -> None:
    """On every answer that is read line by line: before, between and after."""
    line = "main*|up|infinite|1-infinite|2|idle|8|16000|gpu:v100:2"
    assert [one.name for one in parse.partitions(f"{SPOKEN}\n\n{line}\n{SPOKEN}\n")] == ["main"]
    usage = cluster.usage(f"{SPOKEN}\nmain|R|2|gres/gpu:4|7\n{SPOKEN}", lambda _: "")
    assert usage == {"main": Use(submitted=1, running=1, gpus=8)}
    assert list(parse.unhealthy_nodes(f"{SPOKEN}*\nnid1|down*|9|x | y\n", 0)) == ["nid1"]
    assert parse.version(f"{SPOKEN}\nslurm-wlm 22.05.8\n{SPOKEN}\n") == "22.05.8"
    assert parse.version(SPOKEN) == ""


def test_nodes_of_a_partition_are_counted() -> None:
    nodes = cluster.nodes(answer("22.05.8", "nodes").replace("State=MIXED", "State=IDLE", 1))
    queue = cluster.partitions(answer("22.05.8", "partitions"))[1]
    state = cluster.partition_state(queue, nodes, SITE, Limits(), Use(submitted=1))
    assert state == PartitionState(
        settings=queue,
        gpu="v100",
        gpus_per_node=4,
        cpus_per_node=8,
        idle=1,
        mixed=2,
        gpus=12,
        gpus_free=7,
        use=Use(submitted=1),
    )


@pytest.mark.parametrize(
    ("state", "meant"),
    [
        ("IDLE", "idle"),
        ("IDLE+COMPLETING", "idle"),
        ("IDLE+CLOUD+POWERED_DOWN", "idle"),
        ("IDLE~", "idle"),
        ("MIXED+DRAIN", "down"),
        ("ALLOCATED", "full"),
        ("DOWN*", "down"),
        ("IDLE*", "down"),
        ("DOWN+NOT_RESPONDING", "down"),
        ("SOMETHING_NEW", "down"),
    ],
)
def test_states(state: str, meant: str) -> None:
    (node,) = cluster.nodes(
        f"NodeName=a Partitions=main Gres=(null) State={state} Reason=some words"
    )
    assert (node.state, node.gpus, node.gpu_type) == (meant, 0, "")


def test_a_node_has_its_partitions_and_features() -> None:
    lines = ("NodeName=a Partitions=main,debug AvailableFeatures=intel,rack1 State=IDLE", SPOKEN)
    text = "\n".join((*lines, "NodeName=b Partitions=main AvailableFeatures=(null) State=IDLE"))
    first, second = cluster.nodes(text)
    assert (first.partitions, first.features) == (("main", "debug"), ("intel", "rack1"))
    assert (second.partitions, second.features) == (("main",), ())


def test_limits_of_slurm_go_before_those_that_are_written() -> None:
    neuron, queue = sites.load("neuron"), Partition(name="cas_v100_4", qos="v100")
    written = cluster.limits(queue, neuron, {}, {})
    assert written == Limits(jobs_submitted=20, jobs_running=10, gpus=44, source="site neuron")
    qos = cluster.limits_of("normal|||\nv100|5||gres/gpu=16,node=4\n", "Slurm's QOS")
    own = cluster.limits_of("|3|7|cpu=400\n", "Slurm's association")
    assert cluster.limits(queue, neuron, qos, own) == Limits(
        jobs_submitted=7, jobs_running=5, gpus=16, source="Slurm's association and Slurm's QOS"
    )
    assert cluster.limits(Partition(name="other"), SITE, {}, {}) == Limits()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "sbatch: error: this site wants a comment\nsbatch: error: Batch job submission failed: Unspecified error\n",
            Start(
                refused="this site wants a comment; Batch job submission failed: Unspecified error"
            ),
        ),
        ("", Start(refused="no answer")),
    ],
)
def test_when_a_job_would_start(text: str, found: Start) -> None:
    assert cluster.start(text) == found


def test_the_soonest_is_first_and_who_never_starts_is_missing() -> None:
    def at(name: str, start: Start | None) -> PartitionState:
        return PartitionState(settings=Partition(name=name), start=start)

    found = (
        at("a", Start(at="2026-11-22T00:00:00")),
        at("b", Start(refused="no")),
        at("c", Start(at="2026-11-21T07:00:00")),
        at("d", None),
    )
    assert [one.settings.name for one in cluster.soonest(found)] == ["c", "a"]


def answered(code: int, stderr: str, stdout: str = "") -> Result:
    return Result(("sbatch",), code, stdout, stderr)


FAILED = "sbatch: error: Batch job submission failed: "
REFUSED = {
    # 22.05, as it was printed.
    (255, "sbatch: error: Invalid --signal specification"),
    (
        255,
        "Invalid time specification (pos=0): garbage\nsbatch: error: Invalid --begin specification",
    ),
    (255, "sbatch: unrecognized option '--frobnicate'\nTry \"sbatch --help\" for more information"),
    (255, "sbatch: error: Invalid --time specification"),
    (1, 'sbatch: error: Invalid numeric value "--wrap" for --ntasks.'),
    (1, "sbatch: error: Invalid generic resource (gres) specification"),
    (1, "sbatch: error: Unable to open file /nonexistent"),
    (1, FAILED + "More processors requested than permitted"),
    # 24.11 to 26.05, from their sources (slurm_opt.c, opt.c, cli_filter.c, slurm_errno.c).
    (255, "sbatch: error: Invalid --segment specification"),
    (255, "sbatch: fatal: cli_filter plugin terminated with error"),
    (1, "sbatch: fatal: --stepmgr requires slurmctld to be configured with slurm_cred"),
    (1, FAILED + "Requested node configuration is not available"),
    (1, FAILED + "Job dependency problem"),
    (1, FAILED + "TLS missing but required for connection"),
}
LOST = {
    (0, ""),  # without a number
    (1, ""),
    (255, ""),
    (-9, "sbatch: error: Invalid --signal specification"),
    (137, ""),
    (143, "Terminated"),
    (1, FAILED + "Socket timed out on send/recv operation"),
    (1, FAILED + "Zero Bytes were transmitted or received"),
    (1, FAILED + "Unable to contact slurm controller (receive failure)"),
    (1, FAILED + "Unable to contact slurm controller (send failure)"),
    (1, FAILED + "Unexpected message received"),
    (1, FAILED + "Header lengths are longer than data received"),
    (1, FAILED + "Protocol authentication error"),
    (
        1,
        'sbatch: error: Munge decode failed: Failed to connect to "/run/munge.socket": Connection '
        f"refused\nsbatch: error: auth_g_verify: REQUEST_X has authentication error\n{FAILED}"
        "Protocol authentication error",
    ),
    (1, "sbatch: error: connect: Connection refused\n" + FAILED + "Socket timed out on send/recv"),
}
AWAY = {
    (1, FAILED + "Unable to contact slurm controller (connect failure)"),
    (1, "sbatch: error: Could not establish a configuration source"),
    (1, FAILED + "Slurm backup controller in standby mode"),
    (1, FAILED + "Rate limit exceeded, please retry momentarily"),
    (
        1,
        "sbatch: error: If munged is up, restart with --num-threads=10\nsbatch: error: Munge encode "
        'failed: Failed to connect to "/run/munge.socket": Connection refused\nsbatch: error: '
        "slurm_send_node_msg: auth_g_create: REQUEST_SUBMIT_BATCH_JOB has authentication error\n"
        + FAILED
        + "Protocol authentication error",
    ),
}


@pytest.mark.parametrize(
    ("code", "stderr", "error"),
    [
        *((*answer, SubmissionError) for answer in sorted(REFUSED)),
        *((*answer, failures.AnswerLostError) for answer in sorted(LOST)),
        *((*answer, SlurmSilentError) for answer in sorted(AWAY)),
    ],
)
def test_only_silence_is_silence(code: int, stderr: str, error: type[Exception]) -> None:
    """A refusal ends after one call; what may have arrived is searched for; only the rest is repeated."""
    with pytest.raises(error) as caught:
        failures.submitted_id(answered(code, stderr), Path("job.sbatch"))
    assert type(caught.value) is error


def test_the_number_is_read_whatever_a_plugin_says() -> None:
    result = answered(0, "sbatch: lua: welcome", f"{SPOKEN}\n42\n4711;cluster\n")
    assert failures.submitted_id(result, Path("job.sbatch")) == 4711


class Spoken(Client):
    """A client of commands that answer as a test says."""

    def __init__(self, queued: list[queue.Entry], sacct: Result) -> None:
        super().__init__(Access())
        self.__dict__.update(queued=queued, sacct=sacct)

    def _queued(self, job_id: int | None = None) -> list[queue.Entry]:
        del job_id
        return list(self.__dict__["queued"])

    def _execute(self, *_: object) -> Result:
        return self.__dict__["sacct"]  # type: ignore[no-any-return]


REFUSING = "failed to open persistent connection to host:x:6819: Connection refused"


@pytest.mark.parametrize(
    ("stderr", "is_silent"),
    [
        (f"sacct: error: {REFUSING}\nsacct: error: Problem talking to the database: x", True),
        ("Slurm accounting storage is disabled", False),
    ],
)
def test_an_accounting_that_is_down_is_not_one_that_has_no_job(
    stderr: str, is_silent: bool
) -> None:
    known = queue.Entry(JobState(job_id=7, state="RUNNING"), 0, "")
    client = Spoken([known], answered(1, stderr))
    assert list(client.jobs([7])) == [7]
    assert list(client.snapshot([7, 8]).states) == [7], "ps shows what is known"
    if is_silent:
        with pytest.raises(SlurmSilentError, match="accounting does not answer"):
            client.jobs([8])
        with pytest.raises(SlurmSilentError):
            client.find("/x/job.sbatch", 0.0)
    else:
        assert client.jobs([8]) == {}
        assert client.find("/x/job.sbatch", 0.0) is None
