"""The state of a cluster from what Slurm's commands say (captured from 22.05: tests/golden/slurm)."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit import sites
from toolkit.model.overview import PartitionState, Queue, Start
from toolkit.model.site import Limits, Site, Use
from toolkit.slurm import overview

GOLDEN = Path(__file__).parent.parent / "golden" / "slurm"
SITE = Site(name="x")


def test_nodes_and_partitions_are_counted() -> None:
    nodes = overview.nodes(
        (GOLDEN / "22.05.8/nodes.txt").read_text().replace("State=MIXED", "State=IDLE", 1)
    )
    debug, everything = overview.queues((GOLDEN / "22.05.8/partitions.txt").read_text())
    assert debug == Queue(name="debug", nodes="nid[001-003]", max_minutes=30, max_nodes=1)
    assert (everything.default, everything.max_minutes, everything.max_nodes) == (True, None, None)
    assert [(node.state, node.gpus, node.gpu_type, node.arch) for node in nodes[:2]] == [
        ("idle", 4, "v100", "x86_64"),
        ("mixed", 4, "v100", "x86_64"),
    ]
    found = overview.partition_state(everything, nodes, SITE, Limits(), Use(submitted=1), None)
    assert (found.idle, found.mixed, found.full, found.down) == (1, 2, 0, 0)
    assert (found.gpu, found.gpus_per_node, found.cpus_per_node, found.gpus, found.gpus_free) == (
        "v100",
        4,
        8,
        12,
        7,
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
    (node,) = overview.nodes(
        f"NodeName=a Partitions=main Gres=(null) State={state} Reason=some words"
    )
    assert (node.state, node.gpus, node.gpu_type) == (meant, 0, "")


def test_a_node_that_is_down_has_no_free_gpu() -> None:
    nodes = overview.nodes(
        "NodeName=a Partitions=main Gres=gpu:a100:8(S:0-1) GresUsed=gpu:a100:1(IDX:0) State=DOWN"
    )
    found = overview.partition_state(Queue(name="main"), nodes, SITE, Limits(), Use(), None)
    assert (found.gpus, found.gpus_free, found.gpus_per_node, found.down) == (0, 0, 8, 1)


def test_limits_of_slurm_go_before_those_that_are_written() -> None:
    neuron, queue = sites.load("neuron"), Queue(name="cas_v100_4", qos="v100")
    written = overview.limits(queue, neuron, {}, {})
    assert written == Limits(jobs_submitted=20, jobs_running=10, gpus=44, source="site neuron")
    qos = overview.limits_of("normal|||\nv100|5||gres/gpu=16,node=4\n", "Slurm's QOS")
    own = overview.limits_of("|3|7|cpu=400\n", "Slurm's association")
    assert overview.limits(queue, neuron, qos, own) == Limits(
        jobs_submitted=7, jobs_running=5, gpus=16, source="Slurm's association and Slurm's QOS"
    )
    assert overview.limits(Queue(name="other"), SITE, {}, {}) == Limits()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "sbatch: Job 1 to start at 2026-11-21T07:41:02 using 2 processors on nodes nid[001-002] in partition all\n",
            Start(at="2026-11-21T07:41:02", nodes="nid[001-002]"),
        ),
        (
            "allocation failure: Node count specification invalid\n",
            Start(refused="Node count specification invalid"),
        ),
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
    assert overview.start(text) == found


def test_the_soonest_is_first_and_who_never_starts_is_missing() -> None:
    def at(name: str, start: Start | None) -> PartitionState:
        return PartitionState(queue=Queue(name=name), start=start)

    found = (
        at("a", Start(at="2026-11-22T00:00:00")),
        at("b", Start(refused="no")),
        at("c", Start(at="2026-11-21T07:00:00")),
        at("d", None),
    )
    assert [one.queue.name for one in overview.soonest(found)] == ["c", "a"]
