"""Launchers: what they refuse before anything is queued, what they decide, fill in and set."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.samples import (
    FACTS,
    MANIFEST,
    findings,
    make_case,
    source_of,
)
from tests.unit.test_scripts import HOLDS_ALL, IMAGENET
from toolkit import scripts
from toolkit.errors import LauncherMismatchError, ShapeError, UsageError
from toolkit.model.case import Source
from toolkit.model.image import Manifest, Verdict
from toolkit.model.run import Plan
from toolkit.planning.plan import decide

OPEN_MPI = replace(FACTS, mpirun="mpirun (Open MPI) 4.1.4")
UNEQUAL = {"nodes": None, "gpus": "2,1", "ntasks_per_node": None}
TWO_GPUS = {"gpus": 2, "ntasks_per_node": None}


def of(job: dict[str, Any], **changes: Any) -> Plan:
    return decide(make_case(job, **changes))


def image(*frameworks: str, mpi: tuple[str, ...] = ("pmix",), build: str = "") -> Manifest:
    """An image with these frameworks, whose Horovod was built so: "pytorch 2.13.0, with mpi"."""
    verdict = Verdict(name="horovod-build", outcome="passed", detail=f"built for {build}")
    held = dict.fromkeys(frameworks, "1")
    return replace(MANIFEST, frameworks=held, mpi=mpi, verified=(verdict,) if build else ())


def horovod(operations: str = "mpi, gloo", frameworks: str = "pytorch 2.13.0") -> Manifest:
    return image("horovod", "torch", build=f"{frameworks}, with {operations}")


def of_tensorflow(strategy: str) -> Source:
    names = ("tensorflow",)
    return Source(python=True, imports=names, calls=(f"tensorflow.distribute.{strategy}",))


HOROVOD_OF_TENSORFLOW = Source(python=True, imports=("horovod.tensorflow.keras", "tensorflow"))
HOROVOD_OF_TORCH = Source(python=True, imports=("horovod.torch",), calls=("horovod.torch.init",))
HOROVOD_ELASTIC = HOROVOD_OF_TORCH._replace(calls=("horovod.torch.elastic.run",))
MPI4PY = Source(python=True, imports=("mpi4py", "mpi4py.MPI"))
TWO_FRAMEWORKS = horovod(frameworks="pytorch 2.13.0, tensorflow 2.21.0")
NO_PMIX = replace(FACTS, mpi=("none", "pmi2"))

# The launcher, what is refused with words of the cause, and the same that is not.
MISMATCHES: tuple[tuple[str, dict[str, Any], str, dict[str, Any]], ...] = (
    *((name, {"manifest": image("tensorflow")}, f"{name} needs torch", {"manifest": None}) for name in ("torchrun", "srun", "spawn")),
    *((name, {"manifest": image("torch")}, f"{name} needs horovod", {"manifest": None}) for name in ("horovod", "horovod-gloo", "horovod-elastic")),
    *((name, {"manifest": MANIFEST}, f"{name} needs {name}", {"manifest": HOLDS_ALL}) for name in ("tensorflow", "ray", "accelerate")),
    *(
        (name, {"manifest": horovod(lacks)}, f"built with {needs}", {"manifest": horovod()})
        for name, lacks, needs in (("horovod", "gloo", "MPI"), ("horovod-gloo", "mpi", "Gloo"), ("horovod-elastic", "mpi", "Gloo"))
    ),
    *(
        (
            name,
            {"manifest": horovod(), "source": HOROVOD_OF_TENSORFLOW},
            "imports horovod.tensorflow, this image's Horovod was built for pytorch",
            {"manifest": TWO_FRAMEWORKS, "source": HOROVOD_OF_TENSORFLOW},
        )
        for name in ("horovod", "horovod-gloo", "mpirun")
    ),
    # What a build said is read from old manifests, too; of some builds nothing was recorded.
    ("horovod-gloo", {"manifest": horovod("mpi")}, "this image's has MPI", {"manifest": MANIFEST}),
    ("horovod", {"facts": NO_PMIX}, "offers none, pmi2, the image's MPI speaks pmix", {}),
    *((name, {"manifest": image(mpi=())}, f"{name} needs an MPI", {"manifest": image()}) for name in ("mpi", "mpirun")),
    ("mpi", {"manifest": image(), "source": MPI4PY}, "needs mpi4py", {"manifest": image("mpi4py"), "source": MPI4PY}),
    ("mpirun", {"manifest": image(), "source": HOROVOD_OF_TORCH}, "needs horovod", {"manifest": horovod(), "source": HOROVOD_OF_TORCH}),
    ("mpirun", {"facts": replace(FACTS, mpirun="HYDRA build details:")}, "not Open MPI", {}),
    ("horovod-elastic", {"source": HOROVOD_OF_TORCH}, "elastic.run", {"source": HOROVOD_ELASTIC}),
    (
        "tensorflow",
        {"manifest": HOLDS_ALL, "source": of_tensorflow("ParameterServerStrategy")},
        "no parameter servers",
        {"manifest": HOLDS_ALL, "source": of_tensorflow("MultiWorkerMirroredStrategy")},
    ),
)  # fmt: skip


@pytest.mark.parametrize(("launcher", "bad", "words", "good"), MISMATCHES)
def test_what_a_launcher_cannot_start_is_refused(launcher, bad, words, good):
    job = {"launcher": launcher}
    (finding,) = findings(job, **({"facts": OPEN_MPI} | bad))
    assert words in finding.cause
    assert isinstance(finding, LauncherMismatchError)
    assert findings(job, **({"facts": OPEN_MPI} | good)) == []


@pytest.mark.parametrize(
    ("job", "place", "kind"),
    [
        ({"nodes": "2:1"}, "--nodes", UsageError),
        ({"nodes": "5:9"}, "--nodes", ShapeError),
        ({"launcher": "srun", "nodes": "1:2"}, "--nodes", LauncherMismatchError),
        ({"launcher": "srun", **UNEQUAL}, "--gpus", LauncherMismatchError),
        ({**UNEQUAL, "nodes": 3, "partition": "cas_v100_4"}, "--gpus", UsageError),
        ({**UNEQUAL, "ntasks_per_node": 2}, "--gpus", UsageError),
        ({**UNEQUAL, "nodes": 1}, "--gpus", UsageError),
        ({**UNEQUAL, "nodes": 1, "gpus": None, "gpus_per_node": "2,1"}, "--gpus-per-node", None),
        ({**UNEQUAL, "gpus": "2,0"}, "--gpus", UsageError),
        ({**UNEQUAL, "gpus": "4,1"}, "--gpus", ShapeError),
        ({"launcher": "horovod", "max_restarts": 3}, "--max-restarts", LauncherMismatchError),
        ({"init": "tcp"}, "--init", LauncherMismatchError),
        ({"constraint": ""}, "--constraint", UsageError),
        ({"dependency": "a\nb"}, "--dependency", UsageError),
    ],
)
def test_what_contradicts_itself_is_refused(job, place, kind):
    (finding,) = findings(job)
    assert (finding.place, isinstance(finding, kind or UsageError)) == (place, True)


def test_mpirun_is_needed_unless_a_module_may_bring_it():
    (finding,) = findings({"launcher": "mpirun"})
    assert "no mpirun" in finding.cause
    assert "--launcher horovod" in str(finding.next_step)
    site = replace(make_case().site, modules=("openmpi/4.1.4",))
    assert of({"launcher": "mpirun"}, site=site).warnings == ()


def test_a_file_that_torch_cannot_read_out_of_a_url_is_refused():
    directory = "/home/user/a#b"
    assert findings(
        {"launcher": "srun", "init": "file"}, run=f"{directory}/runs/x-0001", cwd=directory
    )


def test_accelerate_starts_no_other_program():
    job = {"launcher": "accelerate", "arguments": ("env",)}
    (other,) = findings(job, script="accelerate", is_program=True, manifest=HOLDS_ALL)
    assert other.next_step == "--launcher none, or: -- accelerate launch SCRIPT"


# The job, and what is decided beside what golden scripts show: options, and directives.
DECIDED: tuple[tuple[dict[str, Any], tuple[str, ...] | None, dict[str, str | None]], ...] = (
    ({"max_restarts": 2}, ("--nnodes=2", "--nproc-per-node=2", "--max-restarts=2", "--tee=3"), {"no-requeue": ""}),
    ({"nodes": "1:9"}, None, {"nodes": "1-9"}),  # more than there are: it takes what there is
    ({"launcher": "none", **TWO_GPUS}, (), {"ntasks-per-node": "1", "cpus-per-task": "4"}),
    ({"launcher": "horovod-elastic"}, ("4", "4", ""), {"no-kill": ""}),
    ({"launcher": "ray", "gpus": 2, "ntasks_per_node": 4, "cpus_per_task": 1}, ("4", "2", "eth0"), {"ntasks-per-node": "1", "cpus-per-task": "4"}),
)  # fmt: skip


@pytest.mark.parametrize(("job", "options", "directives"), DECIDED)
def test_what_is_decided(job, options, directives):
    decided = of(job, manifest=HOLDS_ALL)
    assert options is None or decided.launch.options == options
    rows = dict(decided.directives)
    assert {name: rows.get(name) for name in directives} == directives


@pytest.mark.parametrize(
    ("offered", "spoken", "chosen"),
    [
        (("none", "pmi2", "pmix", "pmix_v4"), ("pmix",), "pmix"),
        (("none", "pmi2", "pmix_v3", "pmix_v10"), ("pmix",), "pmix_v10"),
        (("none", "pmi2", "pmix"), ("pmi2", "pmix"), "pmi2"),
        (("none", "pmi2"), (), "pmi2"),
        (None, ("pmix",), "pmix"),
    ],
)
def test_the_pmi_that_both_speak(offered, spoken, chosen):
    facts, manifest = replace(FACTS, mpi=offered), replace(MANIFEST, mpi=spoken)
    assert of({"launcher": "horovod"}, manifest=manifest, facts=facts).launch.mpi == chosen
    assert of({"launcher": "horovod-gloo"}, manifest=manifest, facts=facts).launch.mpi is None


def test_a_strategy_that_would_train_on_each_node_alone_is_warned_of():
    job = {"launcher": "tensorflow", "ntasks_per_node": None}
    alone, spread = map(of_tensorflow, ("MirroredStrategy", "MultiWorkerMirroredStrategy"))
    assert "network of its own" in of(job, manifest=HOLDS_ALL, source=alone).warnings[0]
    assert of(job | {"nodes": 1}, manifest=HOLDS_ALL, source=alone).warnings == ()
    assert of(job, manifest=HOLDS_ALL, source=spread).warnings == ()


WORLD = Source(python=True, options={"--world_size": True, "--backend": True})
_IMAGENET = (
    '--multiprocessing-distributed --world-size "$SLURM_STEP_NUM_NODES" --rank "$SLURM_NODEID" '
    "--dist-backend gloo "
)


@pytest.mark.parametrize(
    ("job", "source", "filled"),
    [
        ({"arguments": ("data", "--dist-url=tcp://a:1")}, IMAGENET, _IMAGENET),
        ({}, Source(), ""),
        ({"nodes": 1}, WORLD, "--world_size 2 --backend gloo "),
        ({}, WORLD, "--backend gloo "),  # the world of a script that knows one node is its ranks
        ({"gpus": 2}, WORLD, ""),  # NCCL is right where there are GPUs
    ],
)
def test_spawn_fills_in_what_the_script_defines_and_nobody_gave(job, source, filled):
    text = scripts.script(of({"launcher": "spawn", **job}, source=source))
    users = " ".join(job.get("arguments", ("--epochs", "12")))
    assert f"        python3 train.py {filled}{users}\n" in text


LIGHTNING = "import lightning as L; from lightning.pytorch.cli import LightningCLI\n"


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
        ("L.Trainer(num_nodes=2)", TWO_GPUS, []),
        ("L.Trainer(num_nodes=2, devices=-1)", TWO_GPUS, []),
        ("L.Trainer(num_nodes=2, devices='auto', accelerator='cpu')", TWO_GPUS, ["--ntasks-per-node"]),
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
        ("LightningCLI(Model)", {"arguments": ("--trainer.devices", "2", "--trainer.num_nodes=2")}, []),
        ("LightningCLI(Model)", {"arguments": ("-c", "x", "--trainer.devices=4", "--trainer.num_nodes", "2")}, ["--ntasks-per-node"]),
    ],
)  # fmt: skip
def test_a_trainer_of_another_shape_than_the_jobs_does_not_queue(call, job, places):
    found = findings({"launcher": "srun", **job}, source=source_of(LIGHTNING + call))
    assert [finding.place for finding in found] == places
    if places == ["--nodes"] and "num_nodes=1" in call:
        assert "num_nodes=1) in line 2 is for 1 node, and the job has 2" in str(found[0])
        assert found[0].next_step == "num_nodes=2 in the script, or --nodes 1"
    assert {type(finding) for finding in found} <= {LauncherMismatchError}


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
@pytest.mark.parametrize(
    ("text", "job", "variables"),
    [
        ("L.Trainer()", {}, {"PL_TRAINER_DEVICES": "2", "PL_TRAINER_NUM_NODES": "2"}),
        ("L.Trainer(devices=2, max_epochs=1)", {}, {"PL_TRAINER_NUM_NODES": "2"}),
        ("L.Trainer(**options)", {}, {"PL_TRAINER_DEVICES": "2", "PL_TRAINER_NUM_NODES": "2"}),
        ("L.Trainer(devices=2, num_nodes=2)", {}, {}),
        ("f = L.Fabric(num_nodes=2); f.launch()", {}, {"LT_DEVICES": "2"}),
        ("L.Fabric(num_nodes=2) or L.Fabric(devices=2)", {}, {"LT_CLI_USED": "1"}),
        ("f = L.Fabric(**options); f.launch()", {}, {}),
        ("L.Fabric()", {}, {"LT_CLI_USED": "1", "LT_DEVICES": "2", "LT_NUM_NODES": "2"}),
        ("LightningCLI(Model, trainer_defaults={'devices': 2})", {}, {}),
        ("print(L)", {}, {}),
        ("import accelerate", {}, {"ACCELERATE_USE_CPU": "true"}),
        ("from transformers import Trainer", {}, {"ACCELERATE_USE_CPU": "true"}),
        ("import torch.distributed", {}, {}),
        ("import accelerate", TWO_GPUS, {}),
        ("import accelerate", {"env": {"ACCELERATE_USE_CPU": "false"}}, {"ACCELERATE_USE_CPU": "false"}),
    ],
)  # fmt: skip
def test_trainers_are_told_what_the_script_leaves_out(text, job, variables, launcher):
    source = source_of(text if "import" in text else LIGHTNING + text)
    told = of({"launcher": launcher, **job}, source=source).environment
    names = {name for name in told if name.startswith(("PL_", "LT_", "ACCELERATE_"))}
    assert {name: told[name] for name in names} == variables
