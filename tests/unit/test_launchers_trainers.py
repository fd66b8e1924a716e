"""Trainers above torch.distributed: what the launchers set for them, refuse, and start."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.samples import make_case, script_case, source_of
from tests.unit.test_plan import findings
from tests.unit.test_scripts import HOLDS_ALL
from toolkit import launchers
from toolkit.errors import LauncherMismatchError
from toolkit.launchers import get
from toolkit.model.plan import Plan
from toolkit.model.source import Source
from toolkit.planning.plan import decide

LIGHTNING = "import lightning as L; from lightning.pytorch.cli import LightningCLI\n"
SUMMARY = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_20:15:40
  host      : nid002
  rank      : 3 (local_rank: 1)
  exitcode  : 7 (pid: 30721)
"""


def of(job: dict[str, Any], text: str, **changes: Any) -> Plan:
    return decide(make_case(job, source=source_of(text), **changes))


def refused(job: dict[str, Any], text: str) -> list[str | None]:
    found = findings({"launcher": "srun", **job}, source=source_of(text))
    assert {type(error) for error in found} <= {LauncherMismatchError}
    return [error.place for error in found]


@pytest.mark.parametrize(
    ("call", "job", "places"),
    [
        ("L.Trainer(devices=2, num_nodes=2)", {}, []),
        ("L.Trainer(devices='2', num_nodes=2)", {}, []),
        ("L.Trainer(devices=4, num_nodes=2)", {}, ["--ntasks-per-node"]),
        ("L.Trainer(devices=2, num_nodes=1)", {}, ["--nodes"]),
        ("L.Trainer(devices=2)", {}, []),
        ("L.Trainer(devices=4)", {}, ["--ntasks-per-node"]),
        ("L.Trainer(devices='auto')", {}, ["--ntasks-per-node"]),
        ("L.Trainer()", {}, []),
        ("L.Trainer()", {"env": {"PL_TRAINER_NUM_NODES": "1"}}, ["--nodes"]),
        ("L.Trainer()", {"pass_env": ("PL_TRAINER_DEVICES",)}, []),
        ("L.Trainer()", {"nodes": 1, "ntasks_per_node": 1}, []),
        ("L.Trainer(num_nodes=2)", {"gpus": 2, "ntasks_per_node": None}, []),
        ("L.Trainer(num_nodes=2, devices=-1)", {"gpus": 2, "ntasks_per_node": None}, []),
        (
            "L.Trainer(num_nodes=2, devices='auto', accelerator='cpu')",
            {"gpus": 2, "ntasks_per_node": None},
            ["--ntasks-per-node"],
        ),
        ("L.Fabric(devices=1, num_nodes=2)", {}, ["--ntasks-per-node"]),
        ("L.Fabric()", {}, []),
        ("L.Trainer(devices=args.devices, num_nodes=args.nodes)", {}, []),
        ("L.Trainer(devices=[0, 1], num_nodes=2)", {}, []),
        ("L.Trainer(**options)", {}, []),
        ("L.Trainer(devices=1) or L.Trainer(devices=4)", {}, []),
        ("L.Trainer(devices=3, num_nodes=2)", {"launcher": "torchrun"}, ["--ntasks-per-node"]),
        ("L.Trainer(devices=3)", {"launcher": "torchrun", "nodes": "1:2"}, []),
        ("L.Trainer(devices=2, num_nodes=2)", {"job_name": "interactive"}, ["--job-name"]),
        ("LightningCLI(Model)", {}, ["--nodes", "--ntasks-per-node"]),
        ("LightningCLI(Model)", {"arguments": ("fit", "--config=x.yaml")}, []),
        ("LightningCLI(Model, trainer_defaults={'devices': 2})", {}, []),
        (
            "LightningCLI(Model)",
            {"arguments": ("--trainer.devices", "2", "--trainer.num_nodes=2")},
            [],
        ),
        (
            "LightningCLI(Model)",
            {"arguments": ("-c", "x", "--trainer.devices=4", "--trainer.num_nodes", "2")},
            ["--ntasks-per-node"],
        ),
    ],
)
def test_a_trainer_of_another_shape_than_the_jobs_does_not_queue(
    call: str, job: dict[str, Any], places: list[str]
) -> None:
    if places:
        assert refused(job, LIGHTNING + call) == places
    else:
        of({"launcher": "srun", **job}, LIGHTNING + call)


def test_the_message_names_the_line_and_both_numbers() -> None:
    (found,) = findings(
        {"launcher": "srun"}, source=source_of(LIGHTNING + "L.Trainer(num_nodes=1)")
    )
    assert str(found).startswith("Trainer(num_nodes=1) in line 2 is for 1 node, and the job has 2")
    assert found.next_step == "num_nodes=2 in the script, or --nodes 1"


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
@pytest.mark.parametrize(
    ("call", "variables"),
    [
        ("L.Trainer()", {"PL_TRAINER_DEVICES": "2", "PL_TRAINER_NUM_NODES": "2"}),
        ("L.Trainer(devices=2, max_epochs=1)", {"PL_TRAINER_NUM_NODES": "2"}),
        ("L.Trainer(**options)", {"PL_TRAINER_DEVICES": "2", "PL_TRAINER_NUM_NODES": "2"}),
        ("L.Trainer(devices=2, num_nodes=2)", {}),
        ("f = L.Fabric(num_nodes=2); f.launch()", {"LT_DEVICES": "2"}),
        ("L.Fabric(num_nodes=2) or L.Fabric(devices=2)", {"LT_CLI_USED": "1"}),
        ("f = L.Fabric(**options); f.launch()", {}),
        ("L.Fabric()", {"LT_CLI_USED": "1", "LT_DEVICES": "2", "LT_NUM_NODES": "2"}),
        ("LightningCLI(Model, trainer_defaults={'devices': 2})", {}),
        ("print(L)", {}),
    ],
)
def test_lightning_is_told_what_the_script_leaves_out(
    call: str, variables: dict[str, str], launcher: str
) -> None:
    told = of({"launcher": launcher}, LIGHTNING + call).environment
    names = {name for name in told if name.startswith(("PL_", "LT_"))}
    assert {name: told[name] for name in names} == variables


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_without_gpus_accelerate_is_told_so_that_its_ranks_meet(launcher: str) -> None:
    job = {"launcher": launcher}
    for text in ("import accelerate", "from transformers import Trainer"):
        assert of(job, text).environment["ACCELERATE_USE_CPU"] == "true"
    assert "ACCELERATE_USE_CPU" not in of(job, "import torch.distributed").environment
    with_gpus = {**job, "gpus": 2, "ntasks_per_node": None}
    assert "ACCELERATE_USE_CPU" not in of(with_gpus, "import accelerate").environment
    users = {**job, "env": {"ACCELERATE_USE_CPU": "false"}}
    assert of(users, "import accelerate").environment["ACCELERATE_USE_CPU"] == "false"


def test_a_trainer_under_another_launcher_is_warned_of() -> None:
    for module, better in (("lightning", "srun"), ("deepspeed", "torchrun")):
        source = Source(python=True, imports=(module,))
        (warning,) = launchers.warnings(script_case("train.py", source, launcher="horovod"))
        assert warning.endswith(f"--launcher {better}")
        for name in ("srun", "torchrun"):
            assert launchers.warnings(script_case("train.py", source, launcher=name)) == ()


def command(job: dict[str, Any], **changes: Any) -> tuple[str, list[str]]:
    decided = decide(make_case({"launcher": "accelerate", **job}, manifest=HOLDS_ALL, **changes))
    assert decided.launch.program[:2] == ("sh", "-c")
    return decided.launch.program[2], list(decided.launch.program[4:])


def test_the_numbers_of_the_job_come_before_the_users_words() -> None:
    users = ("launch", "--config_file", "fsdp.yaml", "train.py", "--lr", "1")
    text, words = command({"arguments": users}, script="accelerate", is_program=True)
    assert words == list(users[1:])
    assert "--num_machines=2 --num_processes=4" in text
    assert '--machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR"' in text
    assert "--multi_gpu" not in text, "it would take the place of what the file says"


def test_a_script_without_a_configuration_is_data_parallel() -> None:
    text, words = command({"arguments": ("--config_file", "mine.toml")})
    assert "--multi_gpu" in text
    assert words == ["train.py", "--config_file", "mine.toml"]
    text, words = command({"nodes": 1, "ntasks_per_node": 1})
    assert "--multi_gpu" not in text
    text, words = command({"python_module": "pkg.train"})
    assert words[:2] == ["-m", "pkg.train"]


def test_accelerate_must_be_there_and_starts_no_other_program() -> None:
    job = {"launcher": "accelerate", "arguments": ("env",)}
    (missing,) = findings({"launcher": "accelerate"})
    assert "needs accelerate" in str(missing)
    (other,) = findings(job, script="accelerate", is_program=True, manifest=replace(HOLDS_ALL))
    assert other.next_step == "--launcher none, or: -- accelerate launch SCRIPT"


def test_a_failed_rank_is_in_the_summary_of_its_agent() -> None:
    (failure,) = get("accelerate").failures([("nid002", SUMMARY.splitlines())])
    assert (failure.exit_code, failure.rank, failure.host) == (7, 3, "nid002")
