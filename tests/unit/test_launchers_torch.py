"""torchrun, srun, spawn and none: what they decide, refuse, fill in, and read out of logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.samples import LOCAL, MANIFEST, first, make_case
from tests.unit.test_plan import findings
from tests.unit.test_scripts import IMAGENET
from toolkit import scripts
from toolkit.errors import LauncherMismatchError, ShapeError, UsageError
from toolkit.hostsetup import parts
from toolkit.launchers import get
from toolkit.model.case import Host
from toolkit.model.plan import Plan
from toolkit.model.site import OptionRule
from toolkit.model.source import Option, Source
from toolkit.planning import host
from toolkit.planning.plan import decide
from toolkit.rules import files

SPAWN = {"launcher": "spawn"}


def of(job: dict[str, Any], **changes: Any) -> Plan:
    return decide(make_case(job, **changes))


def test_a_fixed_number_of_nodes_starts_nobody_again_unless_told() -> None:
    assert of({}).launch.options == ("--nnodes=2", "--nproc-per-node=2", "--tee=3")
    again = of({"max_restarts": 2})
    assert "--max-restarts=2" in again.launch.options
    assert again.environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"


def test_a_range_of_nodes_is_elastic_and_outlives_a_node() -> None:
    decided = of({"nodes": "1:4"})
    rows = dict(decided.directives)
    assert (rows["nodes"], rows["no-kill"], rows["requeue"]) == ("1-4", "", "")
    assert "ntasks-per-node" not in rows, "Slurm would take as few nodes as it can"
    assert decided.launch.options[0] == "--nnodes=1:4"
    assert "--max-restarts=3" in decided.launch.options
    assert decided.shape == "1-4 nodes x 2 ranks"
    assert "#SBATCH --no-kill\n" in scripts.script(decided)
    assert "no-requeue" not in scripts.script(decided)


def test_more_nodes_than_there_are_is_fine_for_a_run_that_takes_what_there_is() -> None:
    assert dict(of({"nodes": "1:9"}).directives)["nodes"] == "1-9"
    assert isinstance(findings({"nodes": "5:9"})[0], ShapeError)


def test_nodes_that_differ_get_as_many_ranks_as_they_have_gpus() -> None:
    decided = of({"nodes": None, "gpus": "2,1", "ntasks_per_node": None})
    rows = dict(decided.directives)
    assert (rows["nodes"], rows["gpus"], rows["cpus-per-gpu"]) == ("2", "3", "2")
    assert not {"gres", "cpus-per-task"} & set(rows)
    assert decided.shape == "2 nodes with 2 and 1 GPUs"
    assert "PET_NPROC_PER_NODE=$SLURM_GPUS_ON_NODE" in scripts.script(decided)


@pytest.mark.parametrize(
    ("job", "place", "kind"),
    [
        ({"nodes": "2:1"}, "--nodes", UsageError),
        ({"launcher": "srun", "nodes": "1:2"}, "--nodes", LauncherMismatchError),
        (
            {"launcher": "srun", "nodes": None, "gpus": "2,1", "ntasks_per_node": None},
            "--gpus",
            LauncherMismatchError,
        ),
        (
            {"nodes": 3, "gpus": "2,1", "ntasks_per_node": None, "partition": "cas_v100_4"},
            "--gpus",
            UsageError,
        ),
        ({"nodes": None, "gpus": "2,1"}, "--gpus", UsageError),
        ({"nodes": 1, "gpus": "2,1", "ntasks_per_node": None}, "--gpus", UsageError),
        (
            {"nodes": 1, "gpus_per_node": "2,1", "ntasks_per_node": None},
            "--gpus-per-node",
            UsageError,
        ),
        ({"nodes": None, "gpus": "2,0", "ntasks_per_node": None}, "--gpus", UsageError),
        ({"nodes": None, "gpus": "4,1", "ntasks_per_node": None}, "--gpus", ShapeError),
        ({"launcher": "horovod", "max_restarts": 3}, "--max-restarts", LauncherMismatchError),
        ({"init": "tcp"}, "--init", LauncherMismatchError),
        ({"constraint": ""}, "--constraint", UsageError),
        ({"dependency": "a\nb"}, "--dependency", UsageError),
    ],
)
def test_what_contradicts_itself_is_refused(
    job: dict[str, Any], place: str, kind: type[Exception]
) -> None:
    (found,) = findings(job)
    assert found.place == place
    assert isinstance(found, kind)


@pytest.mark.parametrize("launcher", ["torchrun", "srun", "spawn"])
def test_an_image_without_torch_is_refused(launcher: str) -> None:
    bare = MANIFEST.__class__(
        name="x", sif_id="0", size=1, recipe_hash="", built="", frameworks={"tensorflow": "2"}
    )
    assert isinstance(findings({"launcher": launcher}, manifest=bare)[0], LauncherMismatchError)


def test_slurms_own_options_are_passed_on() -> None:
    given = {
        "mem": "2G",
        "account": "ml",
        "qos": "high",
        "nodelist": "nid[001-002]",
        "exclude": "nid003",
        "reservation": "class",
    }
    rows = dict(of({**given, "exclusive": True, "dependency": "afterok:7"}).directives)
    assert {**given, "exclusive": "", "dependency": "afterok:7"}.items() <= rows.items()


def test_a_site_forbids_and_requires_options() -> None:
    site = make_case().site.__class__(
        name="x",
        forbidden={"mem": OptionRule(why="nodes are whole")},
        required={"account": OptionRule(why="hours are counted")},
    )
    assert [found.place for found in findings({"mem": "1G"}, site=site)] == ["--mem", "--account"]
    assert of({"account": "a"}, site=site)


@pytest.mark.parametrize(
    ("init", "said"),
    [(None, "env://"), ("tcp", "tcp://$MASTER_ADDR:$MASTER_PORT"), ("file", "file://$(mktemp")],
)
def test_srun_tells_the_ranks_how_to_meet(init: str | None, said: str) -> None:
    text = scripts.script(of({"launcher": "srun", "init": init}))
    assert f"INIT_METHOD={said}" in text
    assert ("give MASTER_ADDR" in text) == (init is None)


def test_a_file_that_torch_cannot_read_out_of_a_url_is_refused() -> None:
    assert findings(
        {"launcher": "srun", "init": "file"},
        run="/home/user/a#b/runs/x-0001",
        cwd="/home/user/a#b",
    )


def test_spawn_fills_in_what_the_script_defines_and_nobody_gave() -> None:
    command = of(
        {**SPAWN, "arguments": ("data", "--dist-url=tcp://a:1")}, source=IMAGENET
    ).launch.program
    assert command[:2] == ("sh", "-c")
    assert command[3:] == ("train.py", "data", "--dist-url=tcp://a:1")
    filled = '--multiprocessing-distributed --world-size "$NNODES" --rank "$NODE_RANK" --dist-backend gloo'
    assert command[2] == f'exec python3 train.py {filled} "$@"'


def test_spawn_leaves_a_script_alone_that_defines_nothing() -> None:
    assert of(SPAWN).launch.program == ("python3", "train.py", "--epochs", "12")


def test_the_world_of_a_script_that_knows_one_node_is_its_ranks() -> None:
    source = Source(python=True, options=(Option(flag="--world_size"), Option(flag="--backend")))
    assert (
        '--world_size "$NPROC_PER_NODE"'
        in of({**SPAWN, "nodes": 1}, source=source).launch.program[2]
    )
    assert "world_size" not in of(SPAWN, source=source).launch.program[2]
    assert of({**SPAWN, "gpus": 2}, source=source).launch.program[0] == "python3", (
        "NCCL is right where there are GPUs"
    )


def test_a_data_parallel_script_is_one_process_with_all_gpus() -> None:
    decided = of({"launcher": "none", "gpus": 2, "ntasks_per_node": None})
    assert (decided.ranks_per_node, decided.gpus_per_node, decided.cpus_per_rank) == (1, 2, 4)


def test_the_first_rank_that_a_script_forked_and_lost_is_read_from_its_words() -> None:
    log = [
        "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with exit code 3"
    ]
    killed = [
        "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGKILL"
    ]
    stopped = [
        "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGTERM"
    ]
    failure = first(get("spawn").failures([("", []), ("nid001", stopped), ("nid002", log)]))
    assert failure is not None
    assert (failure.exit_code, failure.text) == (3, "local rank 1 on nid002: exit code 3")
    failure = first(get("spawn").failures([("nid001", killed)]))
    assert failure is not None
    assert failure.exit_code == 137
    srun = ["srun: error: nid001: task 0: Exited with exit code 1"]
    failure = first(get("spawn").failures([("", srun)]))
    assert failure is not None
    assert failure.text == "script 0 on nid001: exit code 1"


def test_data_that_is_missing_is_named_with_the_package_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        parts, "DATASETS", {str(tmp_path / "fashion-mnist"): "dataset-fashion-mnist"}
    )
    case = make_case({"bind": (f"{tmp_path}/fashion-mnist:/data:ro",)}, site=LOCAL)
    (finding,) = files.binds(case._replace(host=Host(binds=host._missing_binds(case))))
    assert "apt-get install dataset-fashion-mnist" in finding.advice
