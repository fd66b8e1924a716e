"""Plans: what is decided of a job, a site and an image, and what is refused before the job queues."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest
from msgspec.structs import replace

from tests.hostile import MULTILINE
from tests.unit.run_fixtures import Slurm
from tests.unit.samples import (
    CONDA,
    FACTS,
    HOLDS_ALL,
    LOCAL,
    MANIFEST,
    NEURON,
    OPEN_MPI,
    PARTITIONS,
    VENV,
    findings,
    make_case,
)
from tests.unit.test_scripts import IMAGENET
from toolkit import scripts, sites
from toolkit.errors import (
    ImageMissingError,
    ImportsMissingError,
    LauncherMismatchError,
    NeedsInstallError,
    PlanError,
    ShapeError,
    SignatureError,
    ToolkitError,
    UnknownLauncherError,
    UnknownPartitionError,
    UnknownRuntimeError,
    UsageError,
)
from toolkit.model.base import from_json, to_json
from toolkit.model.case import Case, Import, Source
from toolkit.model.image import Manifest, Python, Verdict
from toolkit.model.job import Job
from toolkit.model.run import Plan
from toolkit.model.site import Facts, Site
from toolkit.planning.plan import decide
from toolkit.rules.job import gpu_types
from toolkit.runtimes import RUNTIMES

Row = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]

HELP = """Usage: sbatch [OPTIONS(0)...] [ : [OPTIONS(N)...]] script(0) [args(0)...]

Parallel run options:
  -a, --array=indexes         job array index values
      --bb=<spec>             burst buffer specifications
      --exclusive[=user]      allocate nodes in exclusive mode
      --mail-user=user        who to send email notification for job state
  -B  --extra-node-info=S[:C[:T]]  combine request of sockets per node,
      --mem=MB                minimum amount of real memory
                              --mem >= --mem-per-cpu if --mem is specified.

Options provided by plugins:
      --auto_mount=path       [spank] mount a directory
"""
LISTED = ("array", "bb", "exclusive", "mail-user", "extra-node-info", "mem", "auto_mount")
# A cluster whose sbatch lists its options, and whose GPUs have types.
SEEN = replace(
    FACTS,
    sbatch_options=LISTED,
    partitions=tuple(replace(one, gpus_by_type={"v100": one.gpus}) for one in PARTITIONS),
)
DATA = {"site": replace(LOCAL, datasets={"imagenet": "/apps/imagenet"})}
PROJECT, BINDS = "/home/user/project", "container.binds"
ON_4 = {"partition": "cas_v100_4", "ntasks_per_node": None}  # its nodes have 4 GPUs
ONE = {"nodes": 1, "ntasks_per_node": None}
TWO_GPUS = {"gpus": 2, "ntasks_per_node": None}
UNEQUAL = {"nodes": None, "gpus": "2,1", "ntasks_per_node": None}
HOROVOD, GLOO = {"launcher": "horovod"}, {"launcher": "horovod-gloo"}
TENSORFLOW = {"launcher": "tensorflow", "ntasks_per_node": None}


def image(*frameworks: str, mpi: tuple[str, ...] = ("pmix",), built: str = "") -> Manifest:
    """Return an image with these frameworks, whose Horovod was built so: "pytorch 2.13.0, with mpi"."""
    verdict = Verdict(name="horovod-build", outcome="passed", detail=f"built for {built}")
    held = dict.fromkeys(frameworks, "1")
    return replace(MANIFEST, frameworks=held, mpi=mpi, verified=(verdict,) if built else ())


def horovod(operations: str = "mpi, gloo", frameworks: str = "pytorch 2.13.0") -> dict[str, Any]:
    return {"manifest": image("horovod", "torch", built=f"{frameworks}, with {operations}")}


def pmi(*offered: str, spoken: tuple[str, ...] = ("pmix",)) -> dict[str, Any]:
    """Return what Slurm offers, and what the MPI of an image speaks."""
    facts = replace(FACTS, mpi=offered or None)
    return {"facts": facts, "manifest": replace(MANIFEST, mpi=spoken)}


def calling(strategy: str) -> dict[str, Any]:
    call = f"tensorflow.distribute.{strategy}"
    source = Source(python=True, imports=("tensorflow",), calls=(call,))
    return {"manifest": HOLDS_ALL, "source": source}


def importing(*imports: str, calls: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"source": Source(python=True, imports=imports, calls=calls)}


OF_TORCH, OF_TENSORFLOW = importing("horovod.torch"), importing("horovod.tensorflow.keras")
WORLD = {"source": Source(python=True, options={"--world_size": True, "--backend": True})}
MPI4PY = importing("mpi4py", "mpi4py.MPI")

# The job, the rest of the case, and what is decided: fields of the plan, "--option": a directive,
# "env NAME": a variable, "from NAME": the source of a value, "line": one of the script.
DECIDED: list[Row] = [
    # ranks and CPUs follow the GPUs
    (ON_4 | {"gpus": 4}, {}, {"ranks_per_node": 4, "cpus_per_rank": 10, "from ntasks_per_node": "one per GPU"}),
    # a foreign image is entered by exec, and ours by run
    ({}, {}, {"container.action": "run"}),
    ({}, {"manifest": None}, {"container.action": "exec"}),
    # the site and the user have their say over the environment
    ({"env": {"OMP_NUM_THREADS": "7"}}, {}, {"env OMP_NUM_THREADS": "7", "env OMPI_MCA_mpi_yield_when_idle": "1"}),
    # a source above the directory is seen at its own place, and no directory is bound twice
    ({"bind": ("../data", "x/../y:/y")}, {}, {BINDS: [PROJECT, f"{PROJECT}/../data:/home/user/data", f"{PROJECT}/x/../y:/y"]}),
    ({}, {"folder": f"{PROJECT}/src", "run": "/scratch/x-1"}, {BINDS: [PROJECT, "/scratch/x-1"]}),
    # data of the site is bound where it has it, and the user does not bind it
    ({"datasets": ("imagenet",)}, DATA, {BINDS: [PROJECT, "/apps/imagenet:/data/imagenet:ro"]}),
    ({"datasets": ("imagenet",)}, {}, {BINDS: [PROJECT]}),
    ({"datasets": ("imagenet",), "bind": ("/mine:/data/imagenet",)}, DATA, {BINDS: [PROJECT, "/mine:/data/imagenet"]}),
    # directories that the script needs
    ({}, {"shown": {"/lib": "it imports helper"}}, {BINDS: ["/lib", PROJECT], "from bind /lib": "it imports helper"}),
    ({}, {"shown": {"/home/user": "the tree", "/home/user/lib": "x"}}, {BINDS: ["/home/user"], "from bind /home/user": "the tree"}),
    # options of Slurm
    ({"exclusive": "user", "mem": "3G"}, {}, {"--exclusive": "user", "--mem": "3G"}),
    ({"exclusive": True, "mem": 4000}, {}, {"--exclusive": "", "--mem": "4000"}),
    ({"exclusive": False}, {}, {"--exclusive": None, "--mem": None, "--dependency": None, "--kill-on-invalid-dep": None}),
    ({"after": ("x-1",), "dependency": "singleton"}, {"after": ("afterok:7", "afterany:8")}, {"--dependency": "singleton,afterok:7,afterany:8", "--kill-on-invalid-dep": "yes"}),
    ({"after": ("x-1",)}, {}, {"--dependency": None, "--kill-on-invalid-dep": None}),  # it has ended
    ({"dependency": "afterok:7"}, {}, {"--dependency": "afterok:7", "--kill-on-invalid-dep": None}),
    ({"dependency": "afterok:7", "slurm": {"kill-on-invalid-dep": "no"}}, {}, {"--kill-on-invalid-dep": "no"}),
    ({"slurm": {"wait-all-nodes": 1, "auto_mount": "/data"}}, {"facts": SEEN}, {"slurm": {"wait-all-nodes": "1", "auto_mount": "/data"}}),
    ({"slurm": {"newest": "b"}}, {}, {"slurm": {"newest": "b"}}),  # there is no sbatch
    # a job that goes back is told to stop in time; any other asks its ranks where they are, unless the signal is the user's
    ({"requeue": True}, {}, {"--signal": "B:USR1@120", "--requeue": "", "--no-requeue": None}),
    ({"requeue": True, "time": "4:00"}, {}, {"--signal": "B:USR1@60"}),
    ({"requeue": True, "signal": "RB:12@600"}, {}, {"--signal": "B:USR2@600"}),
    ({"requeue": True, "signal": "B:SIGUSR1@10"}, {}, {"--signal": "B:USR1@10"}),
    ({"signal": "USR1@60"}, {}, {"--signal": "USR1@60", "--requeue": None, "--no-requeue": ""}),
    ({"array": "0-3"}, {}, {"--signal": "URG@40"}),
    ({"interactive": True}, {}, {"--signal": None}),
    # GPUs by Slurm's name of their type
    (ONE | {"gpus": "V100:2"}, {"facts": SEEN}, {"--gres": "gpu:v100:2"}),
    (ONE | {"gpus": "v100:4", "nodes": 2}, {"facts": SEEN}, {"--gres": "gpu:v100:2"}),
    (ONE | {"gpus": "v100:2,1", "nodes": None}, {"facts": SEEN}, {"--gpus": "v100:3", "--gres": None}),
    # --gpus is for each node, or for the job as Slurm has it, where that can be told
    (ON_4 | {"gpus": 4}, {}, {"--gres": "gpu:4", "notes": "4 on each of 2 nodes, 8 in all"}),
    (ON_4 | {"gpus": 8}, {}, {"--gres": "gpu:4", "notes": "number for the job, as in Slurm: 4 on each of 2 nodes"}),
    (ON_4 | {"gpus": 12, "nodes": 3}, {}, {"--gres": "gpu:4", "notes": "4 on each of 3 nodes"}),
    (ON_4 | {"gpus": 4, "nodes": "1:2"}, {}, {"--gres": "gpu:4", "notes": "4 on each node"}),
    (ON_4 | {"gpus": 4, "nodes": 1}, {}, {"--gres": "gpu:4", "notes": ""}),  # both are the same
    (ON_4 | {"gpus_per_node": 4, "gpus": 8}, {}, {"--gres": "gpu:4", "notes": ""}),
    (ON_4 | {"gpus": 0}, {}, {"--gres": None, "notes": ""}),
    # a sweep is an array
    ({"sweep": ("lr=1",)}, {}, {"--array": "0"}),
    ({"sweep": ("lr=1,2",), "array": "0-1%1"}, {}, {"--array": "0-1%1"}),
    ({"sweep": ("lr=0.1,-0.01", 'tag="a,b",c', "-x=1")}, {}, {"--array": "0-3", "points": [
        ("--lr", "0.1", "--tag", "a,b", "-x", "1"),
        ("--lr", "0.1", "--tag", "c", "-x", "1"),
        ("--lr=-0.01", "--tag", "a,b", "-x", "1"),
        ("--lr=-0.01", "--tag", "c", "-x", "1"),
    ]}),
    # the flight recorder, by the names that torch has for it
    (TWO_GPUS, {"manifest": replace(MANIFEST, frameworks={"torch": "2.9.0"})}, {"env TORCH_FR_BUFFER_SIZE": "2000", "env TORCH_NCCL_TRACE_BUFFER_SIZE": None}),
    (TWO_GPUS, {"manifest": replace(MANIFEST, frameworks={"torch": "2.8.1"})}, {"env TORCH_FR_BUFFER_SIZE": None, "env TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}),
    (TWO_GPUS, {"manifest": replace(MANIFEST, frameworks={"torch": "2.4.1"})}, {"env TORCH_NCCL_DUMP_ON_TIMEOUT": None}),
    # launchers
    ({"max_restarts": 2}, {}, {"launch.options": ("--nnodes=2", "--nproc-per-node=2", "--max-restarts=2", "--tee=3"), "--no-requeue": ""}),
    ({"arguments": ("-m", "pkg")}, {"script": "python3", "is_program": True}, {"line": "--no-python python3 -m pkg"}),
    ({"nodes": "1:9"}, {}, {"--nodes": "1-9"}),  # more than there are: it takes what there is
    ({"launcher": "none", **TWO_GPUS}, {}, {"launch.options": (), "--ntasks-per-node": "1", "--cpus-per-task": "4"}),
    ({"launcher": "horovod-elastic"}, {}, {"launch.options": ("4", "4", ""), "--no-kill": ""}),
    ({"launcher": "ray", "gpus": 2, "ntasks_per_node": 4, "cpus_per_task": 1}, {"manifest": HOLDS_ALL},
     {"launch.options": ("4", "2", "eth0"), "--ntasks-per-node": "1", "--cpus-per-task": "4"}),
    ({"launcher": "mpirun"}, {"site": replace(LOCAL, modules=("openmpi/4.1.4",))}, {"warnings": "", "from modules": "site"}),
    ({"modules": ("cuda/12",)}, {"site": replace(LOCAL, modules=("gcc/10",)), "origins": {"modules": "--module"}}, {"from modules": "site and --module"}),
    # the PMI that Slurm and the image's MPI speak both
    (HOROVOD, pmi("none", "pmi2", "pmix", "pmix_v4"), {"launch.mpi": "pmix"}),
    (HOROVOD, pmi("none", "pmi2", "pmix_v3", "pmix_v10"), {"launch.mpi": "pmix_v10"}),
    (HOROVOD, pmi("none", "pmi2", "pmix", spoken=("pmi2", "pmix")), {"launch.mpi": "pmi2"}),
    (HOROVOD, pmi("none", "pmi2", spoken=()), {"launch.mpi": "pmi2"}),
    (HOROVOD, pmi(), {"launch.mpi": "pmix"}),
    (GLOO, pmi("pmix"), {"launch.mpi": None}),
    # a strategy that would train on each node alone
    (TENSORFLOW, calling("MirroredStrategy"), {"warnings": "network of its own"}),
    (TENSORFLOW | {"nodes": 1}, calling("MirroredStrategy"), {"warnings": ""}),
    (TENSORFLOW, calling("MultiWorkerMirroredStrategy"), {"warnings": ""}),
    # a script of another framework than the launcher's
    ({}, importing("horovod.torch", "torch"), {"warnings": "--launcher horovod"}),
    (HOROVOD, importing("torch.distributed"), {"warnings": "--launcher torchrun"}),
    ({}, importing("ray.train", "torch"), {"warnings": "--launcher ray"}),
    (HOROVOD, calling("MultiWorkerMirroredStrategy"), {"warnings": "--launcher tensorflow"}),
    ({}, importing("horovod.torch", "torch.distributed"), {"warnings": ""}),
    ({"launcher": "ray"}, importing("ray", "torch.distributed") | {"manifest": HOLDS_ALL}, {"warnings": ""}),
    # what the script defines and nobody gave is filled in
    ({"launcher": "spawn", "arguments": ("data", "--dist-url=tcp://a:1")}, {"source": IMAGENET}, {"line":
     'python3 train.py --multiprocessing-distributed --world-size "$SLURM_STEP_NUM_NODES" --rank "$SLURM_NODEID" --dist-backend gloo data --dist-url=tcp://a:1'}),
    ({"launcher": "spawn"}, {}, {"line": "python3 train.py --epochs 12"}),
    ({"launcher": "spawn", "nodes": 1}, WORLD, {"line": "python3 train.py --world_size 2 --backend gloo --epochs 12"}),
    ({"launcher": "spawn"}, WORLD, {"line": "python3 train.py --backend gloo --epochs 12"}),  # the world of one that knows one node is its ranks
    ({"launcher": "spawn", "gpus": 2}, WORLD, {"line": "python3 train.py --epochs 12"}),  # NCCL is right where there are GPUs
]  # fmt: skip


def value_of(plan: Plan, name: str) -> Any:
    kind, _, rest = name.partition(" ")
    if kind.startswith("--"):
        names = [option for option, _ in plan.sbatch_options]
        assert names.count(kind[2:]) <= 1, "it is written once"
        return dict(plan.directives).get(kind[2:])
    if kind == "line":
        return [line.strip() for line in scripts.script(plan).splitlines()]
    named = {"env": plan.environment, "from": plan.origins}
    value: Any = named[kind].get(rest) if rest else attrgetter(kind)(plan)
    if name == BINDS:
        return [str(bind) for bind in value]
    return [point.arguments for point in value] if name == "points" else value


@pytest.mark.parametrize(("job", "given", "expected"), DECIDED, ids=range(len(DECIDED)))
def test_what_is_decided(job, given, expected):
    plan = decide(make_case(job, **given))
    for name, value in expected.items():
        decided = value_of(plan, name)
        if name in ("notes", "warnings"):
            assert value in " ".join(decided)
            assert bool(value) == bool(decided)
        elif name == "line":
            assert value in decided
        else:
            assert decided == value


ASKED = {"origins": {"image": "--image", "runtime": "--runtime", "bind": "--bind"}}
MANY = ",".join(map(str, range(1000)))
SIGNED = {"require_signed": True}
NO_PMIX = {"facts": replace(FACTS, mpi=("none", "pmi2"))}
HYDRA = {"facts": replace(FACTS, mpirun="HYDRA build details:")}
PROGRAM = {"script": "accelerate", "is_program": True, "manifest": HOLDS_ALL}
MODULES = {"site": replace(LOCAL, modules=("gcc/10",), available_modules=("gcc/10",))}
GONE = Source(
    python=True, imports=("torch.distributed",), needed=(Import("gone", "train.py", 1, "gone"),)
)
PYTHON = replace(MANIFEST, pythons=(Python(path="python3", version="3.11.2", modules=("torch",)),))
LACKING = {"manifest": replace(MANIFEST, frameworks={"numpy": "1"}, mpi=())}

# The kind of error, and for each the job, the rest of the case, the place, and words of the message.
REFUSED: dict[type[ToolkitError], list[tuple[dict[str, Any], dict[str, Any], str, str]]] = {
    UnknownPartitionError: [({"partition": "mian"}, {}, "--partition", "close: main")],
    UnknownLauncherError: [({"launcher": "torchrn"}, {}, "--launcher", "close: torchrun")],
    UnknownRuntimeError: [({"runtime": "dokcer"}, {}, "--runtime", "close: docker")],
    UsageError: [
        ({"time": "soon"}, {}, "--time", "not a time"),
        ({"env": {"A B": "c"}}, {}, "--env", "variable"),
        ({"comment": ""}, {}, "--comment", "empty"),
        ({"dependency": "a\nb"}, {}, "--dependency", "#SBATCH line"),
        ({"bind": ("/a:b",)}, {}, "--bind", "absolute"),
        ({"bind": ("/a:/b:rx",)}, {}, "--bind", "SRC:DST"),
        ({"bind": ("/tmp:/data/../x:ro",)}, {}, "--bind", "--bind /tmp:/x"),
        *(({}, {"cwd": f"/home/a{sign}b"}, "working directory", "cannot be bound") for sign in ",:\\\n"),
        ({"launcher": "srun", "init": "file"}, {"run": "/home/a#b/x-0001"}, "--init", "file:// address with '#'"),
        # options of sbatch
        ({"slurm": {"mail-usr": "a"}}, {}, "--slurm mail-usr", "close: mail-user"),
        ({"slurm": {"reboot": True}}, {}, "--slurm reboot", "no option --reboot"),
        ({"slurm": {"gres": "nvme:1,gpu:2"}}, {}, "--slurm gres", "--gres cannot be passed to sbatch: the plan counts GPUs by node"),
        *(({"slurm": {name: True}}, {}, f"--slurm {name}", f"--{name} needs a value") for name in ("mail-user", "account", "gres")),
        *(({"slurm": {"mail-user": value}}, {}, "--slurm mail-user", "an #SBATCH line cannot carry") for value in MULTILINE),
        # nodes and GPUs
        ({"nodes": "2:1"}, {}, "--nodes", "runs backwards"),
        ({**UNEQUAL, "nodes": 3, "partition": "cas_v100_4"}, {}, "--gpus", "is for 2 nodes"),
        ({**UNEQUAL, "ntasks_per_node": 2}, {}, "--gpus", "as many ranks as it has GPUs"),
        ({**UNEQUAL, "nodes": 1, "gpus": None, "gpus_per_node": "2,1"}, {}, "--gpus-per-node", "is for 2 nodes"),
        (ON_4 | {"gpus_per_node": "4,0", "nodes": 1}, {}, "--gpus-per-node", "has no GPU"),
        (ON_4 | {"gpus": 8, "gpus_per_node": 2}, {}, "--gpus", "gives 4 GPUs, --gpus asks for 8"),
        ({"gpus": "a100:2", "ntasks_per_node": None}, {}, "--gpus", "has no GPUs of type 'a100'"),
        # what could not go back into the queue
        ({"requeue": True, "signal": "USR1@60"}, {}, "--signal", "--requeue needs USR1 or USR2"),
        ({"requeue": True, "signal": "B:TERM@60"}, {}, "--signal", "USR1 or USR2"),
        ({"requeue": True, "signal": "B:USR1@60", "time": "2"}, {}, "--signal", "as soon as it runs"),
        # what is no sweep
        *(({"sweep": (text,)}, {}, "--sweep", "NAME=VALUE") for text in ("lr", "lr=1,,2", 'lr="1', "lr=1\n2")),
        *(({"sweep": texts}, {}, "--sweep", "once") for texts in (("lr=1,1",), ("lr=1", "lr=2"))),
        ({"sweep": ("lr=1,2",), "array": "0,2"}, {}, "--array", "it has no point 2; --array 0-1"),
        *(({"array": text}, {}, "--array", "no list") for text in ("0-3%x", "0-99%", ",", "1,x", "3-1", "0-9999999")),
        ({"sweep": ("lr=1,2",), "nodes": "1:2"}, {}, "--nodes", "fixed number of nodes"),
        ({"sweep": tuple(f"{name}={MANY}" for name in "abc")}, {}, "--sweep", "1000000000 points; the limit is 10000"),
        # what does not go with a terminal, or with a runtime
        *(({"interactive": True, **job}, {}, place, "one job") for job, place in (
            ({"array": "0-3"}, "--array"), ({"requeue": True}, "--requeue"), ({"nodes": "1:2"}, "--nodes"), ({"retry": 1}, "--retry"), ({"sweep": ("lr=1,2",)}, "--array"))),
        ({"launcher": "shell"}, {}, "--launcher", "toolkit shell"),
        ({"runtime": "docker", "pty": True}, {}, "--pty", "no terminal"),
        ({"runtime": "docker", "env": {"DOCKER_HOST": "x"}}, {}, "--env", "docker itself reads"),
        *(({"runtime": name, "conda_env": "torch"}, {}, "--env", "--runtime conda --env torch") for name, row in RUNTIMES.items() if not row.environments),
        ({"runtime": "conda", "conda_env": None}, {"environment": None}, "--env", "needs the name"),
        *(({"runtime": name, "image": "x"}, ASKED, "--image", f"{name} starts no image") for name in ("conda", "none")),
        *(({"runtime": name, "bind": ("/x",), "image": None}, ASKED, "--bind", "no container") for name in ("conda", "none")),
        *(({"runtime": name}, {"environment": replace(found, prefix="/home/a:b")}, place, "cannot be on PATH")
          for name, found, place in (("conda", CONDA, "--env"), ("none", VENV, "--runtime"))),
        ({"runtime": "conda", "modules": ("cuda/11",)}, MODULES, "--module", "cuda/11"),
    ],
    SignatureError: [(SIGNED | {"runtime": name}, {}, "--runtime", "--runtime apptainer") for name, row in RUNTIMES.items() if row.image != "sif"],
    ShapeError: [
        ({"nodes": "5:9"}, {}, "--nodes", "has 2 nodes"),
        (ON_4 | {"gpus_per_node": 8}, {}, "--gpus-per-node", "has 4 GPU"),  # never that for the job
        (ON_4 | {"gpus": 10}, {}, "--gpus", "has 4 GPU"),  # 5 each are too many as well
        (ON_4 | {"gpus": 7}, {}, "--gpus", "has 4 GPU"),  # cannot be shared evenly
        (ON_4 | {"gpus": 8, "nodes": 1}, {}, "--gpus", "has 4 GPU"),
        ({"gpus_per_node": "v100:3", "ntasks_per_node": None}, {}, "--gpus-per-node", "has 2 GPUs (v100), 3 were asked for"),
        ({"mem": "5G"}, {}, "--mem", "has 4000 MB of memory per node, 5120 were asked for"),
        ({"runtime": "docker", "nodes": 2}, {}, "--nodes", "an engine does not know"),
        ({"interactive": True, "time": "2:00:00"}, {"site": replace(LOCAL, interactive_minutes=60)}, "--time", "60 minutes at most"),
    ],
    ImportsMissingError: [({}, {"source": GONE, "manifest": PYTHON}, "imports", "has no gone (train.py, line 1)")],
    NeedsInstallError: [({"launcher": "mpirun"}, {"facts": FACTS}, "--launcher mpirun", "no mpirun on PATH")],
    LauncherMismatchError: [
        *(({"launcher": name}, {"manifest": image("tensorflow")}, "--launcher", f"{name} needs torch") for name in ("torchrun", "srun", "spawn")),
        *(({"launcher": name}, {"manifest": image("torch")}, "--launcher", f"{name} needs horovod") for name in ("horovod", "horovod-gloo", "horovod-elastic")),
        *(({"launcher": name}, {"manifest": MANIFEST}, "--launcher", f"{name} needs {name}") for name in ("tensorflow", "ray", "accelerate")),
        *(({"launcher": name}, {"manifest": image(mpi=())}, "--launcher", f"{name} needs an MPI") for name in ("mpi", "mpirun")),
        ({"launcher": "mpi"}, MPI4PY | {"manifest": image()}, "--launcher", "needs mpi4py"),
        ({"launcher": "mpirun"}, OF_TORCH | {"manifest": image()}, "--launcher", "needs horovod"),
        ({"launcher": "mpirun"}, HYDRA, "--launcher mpirun", "not Open MPI"),
        ({"runtime": "conda", **HOROVOD}, LACKING, "--launcher", "environment does not hold"),
        # what a build of Horovod said, which is read from old manifests, too
        (HOROVOD, horovod("gloo"), "--launcher", "built with MPI"),
        (GLOO, horovod("mpi"), "--launcher", "built with Gloo, this image's has MPI"),
        ({"launcher": "horovod-elastic"}, horovod("mpi"), "--launcher", "built with Gloo"),
        *(({"launcher": name}, OF_TENSORFLOW | horovod(), "--image", "imports horovod.tensorflow, this image's Horovod was built for pytorch")
          for name in ("horovod", "horovod-gloo", "mpirun")),
        ({"launcher": "horovod-elastic"}, OF_TORCH, "--launcher", "elastic.run"),
        (HOROVOD, NO_PMIX, "--launcher", "offers none, pmi2, the image's MPI speaks pmix"),
        (TENSORFLOW, calling("ParameterServerStrategy"), "--launcher", "no parameter servers"),
        ({"launcher": "accelerate", "arguments": ("env",)}, PROGRAM, "--launcher", "or: -- accelerate launch SCRIPT"),
        # what a launcher cannot do
        ({"launcher": "srun", "nodes": "1:2"}, {}, "--nodes", "whose number may change"),
        ({"launcher": "srun", **UNEQUAL}, {}, "--gpus", "nodes that differ"),
        ({"max_restarts": 3} | HOROVOD, {}, "--max-restarts", "restart ranks"),
        ({"init": "tcp"}, {}, "--init", "or a launcher that can: srun"),
        ({"launcher": "horovod-elastic", "pty": True}, {}, "--pty", "cannot give ranks a terminal"),
        # what a runtime cannot start
        ({"runtime": "docker", **TWO_GPUS}, {"site": replace(LOCAL, access="path")}, "--gpus", "gives containers no GPUs"),
        *(({"runtime": name, "launcher": launcher}, {}, "--launcher", f"{launcher} cannot start ranks by {name}; --launcher {other}")
          for name, launcher, other in (("docker", "mpirun", "accelerate or"), ("docker", "horovod", "accelerate or"), ("pyxis", "mpirun", "accelerate or"))),
        ({"runtime": "none"}, {"environment": replace(VENV, torchrun=False)}, "--launcher", "no program torchrun in the virtual environment v; --launcher srun"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "job", "given", "place", "words"),
    [(kind, *row) for kind, rows in REFUSED.items() for row in rows],
)
def test_what_cannot_run_is_refused_at_its_place_with_the_next_step(kind, job, given, place, words):
    facts = replace(SEEN, mpirun=OPEN_MPI.mpirun)
    found = findings(job, **({"facts": facts} | given))
    (refused,) = [finding for finding in found if finding.place == place]
    assert (type(refused), found) == (kind, [refused])
    assert words in f"{refused.summary} close: {refused.close}"
    assert refused.advice


# What nearly is refused.
ACCEPTED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(({"launcher": name}, {"manifest": None}) for name in ("torchrun", "horovod", "mpi")),  # of a foreign image nothing is known
    *(({"launcher": name}, horovod()) for name in ("horovod", "horovod-gloo", "horovod-elastic")),
    (GLOO, {"manifest": MANIFEST}),  # of some builds nothing was recorded
    (HOROVOD, OF_TENSORFLOW | horovod(frameworks="pytorch 2.13.0, tensorflow 2.21.0")),
    ({"launcher": "horovod-elastic"}, importing("horovod.torch", calls=("horovod.torch.elastic.run",))),
    ({"launcher": "mpi"}, MPI4PY | {"manifest": image("mpi4py")}),
    ({"launcher": "mpirun"}, OF_TORCH | horovod()),
    (TENSORFLOW, calling("MultiWorkerMirroredStrategy")),
]  # fmt: skip


@pytest.mark.parametrize(("job", "given"), ACCEPTED)
def test_what_nearly_is_refused_can_run(job, given):
    assert findings(job, **({"facts": OPEN_MPI} | given)) == []


def test_everything_wrong_is_said_at_once_with_the_code_for_several():
    missing = ImageMissingError("not built", place="--image")
    for job, given, kinds in (
        ({"nodes": 9, "gpus": 8}, [], {ShapeError}),
        ({"nodes": 9, "launcher": "mpirum"}, [missing], {ImageMissingError, ShapeError, UnknownLauncherError}),
    ):  # fmt: skip
        with pytest.raises(PlanError) as caught:
            decide(make_case(job, findings=given))
        assert {type(finding) for finding in caught.value.findings} == kinds
        alone = next(iter(kinds)) if len(kinds) == 1 else PlanError
        assert caught.value.exit_code == alone.exit_code


def test_a_rule_can_be_forced_with_a_reason_which_the_plan_keeps():
    wrong = {"partition": "main", "time": "2-00:00:00"}
    with pytest.raises(PlanError) as raised:
        decide(make_case(wrong))
    assert [finding.source for finding in raised.value.findings] == ["sinfo"]
    decided = decide(make_case(wrong, force="the limit was raised for us"))
    assert decided.forced is not None
    assert decided.forced.reason == "the limit was raised for us"
    cause = "--time: partition main gives 1440 minutes at most, 2880 were asked for (sinfo); "
    assert decided.forced.findings[0].startswith(cause)
    assert decided.warnings[-1] == f"forced: {decided.forced.findings[0]}"
    assert decide(make_case(force="no need")).forced is None, "there was nothing to force"


def test_a_plan_of_an_earlier_version_is_still_read():
    text = to_json(decide(make_case({"exclusive": True})))
    assert '"slurm"' not in text
    assert '"gpu_type"' not in text
    assert ("exclusive", None) in from_json(text, Plan).sbatch_options


def test_the_help_of_sbatch_lists_its_options():
    assert Slurm(sbatch=HELP).sbatch_options() == LISTED


def _type_finding(job: Job, site: Site) -> ToolkitError | None:
    return next(gpu_types(Case(job, site)), None)


def test_a_site_file_tells_which_types_of_gpus_there_are():
    neuron = sites.load("neuron")
    assert _type_finding(Job(gpus="v100:2", partition="cas_v100_4"), neuron) is None
    wrong = _type_finding(Job(gpus="h200:2", partition="cas_v100_4"), neuron)
    assert wrong is not None
    assert "with h200: --partition" in (wrong.next_step or "")
    typo = _type_finding(Job(gpus="a10:2"), neuron)
    assert typo is not None
    assert typo.close == "a100"
    # Slurm says gpu:4, the file says V100.
    untyped = Facts(partitions=PARTITIONS, container="singularity")
    job = ONE | {"gpus": "v100:4", "partition": "cas_v100_4"}
    site = replace(NEURON, partitions=neuron.partitions)
    decided = decide(make_case(job, site=site, facts=untyped))
    assert (dict(decided.directives)["gres"], decided.gpu_type) == ("gpu:4", "v100")
