"""Scripts: whole golden files, the same bytes for the same plan, and hostile values that reach the rank byte for byte."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from jinja2 import DictLoader, Environment
from msgspec.structs import replace

from tests.golden_scripts import assert_golden
from tests.unit.samples import FACTS, MANIFEST, NEURON, PARTITIONS, make_case
from toolkit import scripts
from toolkit.config import package_directory
from toolkit.launchers import LAUNCHERS
from toolkit.model.base import from_json, to_json
from toolkit.model.case import Case, Source
from toolkit.model.run import Plan
from toolkit.model.site import Facts
from toolkit.planning.plan import as_recorded, decide
from toolkit.planning.target import resolve

# As PyTorch's ImageNet example defines them.
IMAGENET = Source(
    python=True,
    imports=("torch.distributed",),
    calls=("torch.multiprocessing.spawn",),
    options={
        **dict.fromkeys("--epochs --world-size --rank --dist-url --dist-backend --gpu".split(), True),
        "--multiprocessing-distributed": False,
    },
)  # fmt: skip
HOLDS_ALL = replace(
    MANIFEST,
    frameworks={
        "torch": "2.13.0",
        "horovod": "0.28.1",
        "tensorflow": "2.21.0",
        "ray": "2.60.0",
        "accelerate": "1.15.0",
    },
)


def cases() -> dict[str, Case]:
    neuron_job: dict[str, Any] = {
        "gpus": 4,
        "ntasks_per_node": None,
        "partition": "cas_v100_4",
        "comment": "field=misc;appl=pytorch-ddp",
        "time": "2:00:00",
        "bind": ("/apps/imagenet:/data/imagenet:ro",),
    }
    return {
        **{name: make_case({"launcher": name}) for name in LAUNCHERS},
        "torchrun-elastic": make_case({"nodes": "1:4"}),
        "shell": make_case({"launcher": "shell", "interactive": True, "pty": True, "arguments": (), "gpus": 2}, script="bash", is_program=True),
        "notebook": make_case(
            {"launcher": "notebook", "arguments": ("1800", "it's $(touch pwned)"), "ntasks_per_node": None, "gpus": 1},
            script="jupyter",
            is_program=True,
        ),
        "sweep": make_case({"sweep": ("lr=0.1,-1", 'name="a,b",it\'s $(x)'), "array": "0-3%2"}),
        "torchrun-requeue": make_case({"requeue": True, "time": "1:00:00"}),
        "torchrun-retry": make_case({"retry": 2}),
        "torchrun-notify": make_case({"notify": "https://hooks.example/T0KEN", "env": {"HF_TOKEN": "hf_secret"}, "secret": ("HF_TOKEN",)}),
        "torchrun-staged": make_case({"stage_image": True}, version="0f3a-428126100"),
        "torchrun-unequal": make_case({"nodes": None, "gpus": "2,1", "ntasks_per_node": None}),
        "torchrun-module": make_case({"launcher": "torchrun", "arguments": ("-m", "pkg.train")}, script="python3", is_program=True),
        "srun": make_case({"launcher": "srun", "gpus": 2, "ntasks_per_node": None}),
        "srun-file": make_case({"launcher": "srun", "init": "file"}),
        "spawn": make_case({"launcher": "spawn", "arguments": ("data", "--epochs", "3")}, source=IMAGENET, script="main.py"),
        "accelerate": make_case(
            {"launcher": "accelerate", "arguments": ("launch", "--config_file", "fsdp.yaml", "a.py")},
            script="accelerate",
            is_program=True,
            manifest=HOLDS_ALL,
        ),
        "none": make_case(
            {
                "launcher": "none",
                "arguments": ("-f",),
                "array": "0-9%2",
                "account": "ml",
                "constraint": "v100&ib",
                "exclusive": True,
                "signal": "B:USR1@60",
            },
            script="hostname",
            is_program=True,
        ),
        "horovod": make_case({"launcher": "horovod", "gpus": 2, "ntasks_per_node": None}),
        "horovod-elastic": make_case({"launcher": "horovod-elastic", "nodes": "1:3", "max_restarts": 5}),
        "mpirun": make_case({"launcher": "mpirun"}, facts=replace(FACTS, mpirun="mpirun (Open MPI) 4.1.4")),
        "mpi": make_case({"launcher": "mpi"}, script="hello"),
        "slurm-options": make_case(
            {
                "gpus": "v100:2",
                "ntasks_per_node": None,
                "slurm": {"licenses": "matlab:1,fluent:2", "mail-user": "me@site", "hold": True, "nice": 5, "gres": "nvme:100", "mcs-label": ""},
            },
            facts=replace(FACTS, partitions=[replace(one, gpus_by_type={"v100": one.gpus}) for one in PARTITIONS]),
        ),
        "submitit": make_case(
            {"launcher": "submitit", "arguments": (), "job_name": "add", "time": "1:00:00"},
            manifest=None,
            script="toolkit.submit",
            is_program=True,
        ),
        "ray": make_case({"launcher": "ray", "gpus": 2, "ntasks_per_node": None}, manifest=HOLDS_ALL),
        "tensorflow": make_case({"launcher": "tensorflow", "ntasks_per_node": None}, manifest=HOLDS_ALL),
        "neuron": make_case(
            neuron_job,
            site=NEURON,
            facts=Facts(partitions=PARTITIONS, mpi=("none", "pmi2", "pmix_v3"), container="singularity"),
            manifest=None,
            image="/apps/images/ngc/pytorch:25.12-py3.sif",
        ),
    }  # fmt: skip


WHOLE = ("torchrun", "torchrun-elastic")
LIKE = {
    "srun-file": "srun",
    "spawn": "srun",
    "accelerate": "spawn",
    "mpi": "horovod",
    **dict.fromkeys(("horovod", "submitit", "notebook", "shell"), "none"),
}


@lru_cache
def script_of(name: str) -> str:
    return scripts.script(decide(cases()[name]))


@pytest.mark.parametrize("name", cases())
def test_script_is_the_golden_one(name):
    like = "" if name in WHOLE else script_of(LIKE.get(name, "torchrun"))
    assert_golden(name, scripts.script(decide(cases()[name])), like)


def test_every_value_of_a_template_goes_through_a_quoting():
    """But numbers, the version, and what the code itself chooses or has quoted."""
    free = re.compile(
        r"plan\.(toolkit|nodes|least_nodes|ranks_per_node|job_pattern|port_count|shape)"
        r'|plan\.ports(\[0\]| \| join\("-"\))|plan\.requeue\.[a-z]+( \+ 1)?|plan\.requeue\.times \+ 2 \* plan\.requeue\.retries \+ 1'
        r"|launch\.(launcher|cpus_per_task)|container\.(action|home_inside|prefix)"
        r"|point\.number|prefix|own|functions|variable"
        r"|attempt|command|directive|home|inner_shell|job|launching|line|point|program|salloc|staged|step|tell|words"
        r"|launching \| indent\(4, true\)|part\[name\]\(\)|gpus\[container\.command\]"
        r"|((runtime|plain|self)\.)?(super|mount|about|enter|start|take|options|setup|show|step)\(.*\)"
        """|["'][^~]*["']( ~ (prefix|own|variable)( ~ ["'][^~]*["'])?)*"""
        r'|"[^"]*" if (container\.gpus|plan\.interactive) else "[^"]*"'
    )
    unquoted = [
        f"{path.name}: {value}"
        for path in (package_directory("scripts") / "templates").rglob("*.j2")
        for value in re.findall(r"\{\{ (.*?) -?\}\}", path.read_text())
        if not re.search(r"\| (shell|words|comment|program)$", value) and not free.fullmatch(value)
    ]
    assert unquoted == []


# Stand-ins for the programs that a script calls: srun runs the task here with what Slurm would set;
# what starts the program writes down its arguments and variables, and stands for a server that
# gives its port. The real ones run in tests/cluster.
SRUN = """#!/bin/bash
printf '%s\\0' "$@" > "$CAPTURE/options"
for word in "$@"; do case $word in --*) shift ;; *) break ;; esac; done
export SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_NUM_NODES=1
exec "$@"
"""
MPIRUN = """#!/bin/bash
while [[ $1 != bash ]]; do shift; done
OMPI_COMM_WORLD_RANK=0 exec "$@"
"""
SCONTROL = "#!/bin/bash\necho localhost\n"
CONTAINER = """#!/bin/bash
case "$*" in
    *ElasticDriver*) echo "start 1 localhost HOROVOD_RANK=0"; until [[ -s $CAPTURE/variables ]]; do /bin/sleep 0.05; done; exit ;;
    *serve_forever*) echo 61007; exec cat ;;
    *ray\\ start*) until [[ -s $CAPTURE/variables ]]; do /bin/sleep 0.05; done; /bin/sleep 9; exit ;;
esac
printf '%s\\0' "$@" > "$CAPTURE/arguments"
env -0 > "$CAPTURE/variables"
"""
_OUTSIDE = {
    "SLURM_JOB_ID": "7",
    "SLURM_CLUSTER_NAME": "c",
    "SLURM_JOB_NODELIST": "localhost",
    "SLURMD_NODENAME": "localhost",
    "SLURM_NNODES": "2",
    "SLURM_ARRAY_JOB_ID": "7",
    "SLURM_ARRAY_TASK_ID": "1",
    "APPTAINERENV_LEAK": "from the user's shell",
    "TOOLKITENV_LEAK": "from the user's shell",
    "RANK": "of the user's shell",
    "PYTHONPATH": "/host/python",
    "NCCL_DEBUG": "INFO",
}


def captured(decided: Plan, directory: Path) -> tuple[list[str], dict[str, str]]:
    """Run the plan's script with the stand-ins.

    Returns:
        The words of the program that starts the rank, and the variables that the rank gets.
    """
    programs = directory / "bin"
    programs.mkdir()
    Path(decided.run_directory, "logs").mkdir(parents=True, exist_ok=True)
    command = decided.container.command or "python3"
    started = dict.fromkeys((command, "python3", "torchrun"), CONTAINER)
    asked = {"srun": SRUN, "scontrol": SCONTROL, "squeue": SCONTROL, "mpirun": MPIRUN}
    asked |= {"scancel": "#!/bin/bash\n", "sleep": "#!/bin/bash\n"}
    asked["timeout"] = "#!/bin/bash\nexit 124\n"  # nothing here is worth a wait
    for name, text in {**started, **asked}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    places = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "HOME": str(directory),
        "CAPTURE": str(directory),
    }
    subprocess.run(
        ["bash"],
        input=scripts.script(decided),
        env=places | _OUTSIDE,
        text=True,
        check=True,
        cwd=directory,
    )
    arguments, rows = (
        (directory / name).read_bytes().decode().split("\0")[:-1]
        for name in ("arguments", "variables")
    )
    variables = dict(row.split("=", 1) for row in rows)
    if decided.container.runtime == "apptainer":
        prefix = decided.container.prefix
        inside = {name: value for name, value in variables.items() if name.startswith(prefix)}
        variables = {name.removeprefix(prefix): value for name, value in inside.items()}
    return arguments, variables


@pytest.mark.parametrize(
    "launcher", [name for name in LAUNCHERS if name not in ("submitit", "notebook", "shell")]
)
@pytest.mark.parametrize("name", ["-cprint(4242).py", "--help.sh", "-m.py"])
@pytest.mark.parametrize("in_folder", [False, True])
def test_a_script_whose_name_begins_with_a_dash_is_no_option(launcher, name, in_folder, tmp_path):
    (tmp_path / name).write_text("print('the script')\n")
    if in_folder:
        (tmp_path / "job.toml").write_text(f'script = "{name}"\n')
    target, _ = resolve("." if in_folder else name, tmp_path)
    places = {"cwd": str(tmp_path), "folder": target.folder, "script": target.script}
    facts = replace(FACTS, mpirun="mpirun (Open MPI) 4.1.4")
    given = make_case({"launcher": launcher}, manifest=HOLDS_ALL, facts=facts, **places)
    words = decide(given).launch.program
    assert f"./{name}" in words
    assert not any(word.startswith(name) for word in words)


def test_the_end_of_a_notebook_is_told_too():
    words = {
        "launcher": "notebook",
        "arguments": ("0", "/x"),
        "ntasks_per_node": None,
        "notify": "true",
    }
    text = scripts.script(decide(make_case(words, script="jupyter", is_program=True)))
    trap = re.findall(r"^trap '?(.*?)'? EXIT$", text, re.MULTILINE)[-1]
    assert trap.startswith("notify; rm -rf")


def test_only_named_variables_enter_the_container(tmp_path):
    _, inside = captured(
        decide(
            make_case(
                {"env": {"NCCL_DEBUG": "WARN"}},
                cwd=str(tmp_path),
                run=str(tmp_path / "r"),
            )
        ),
        tmp_path,
    )
    assert inside["NCCL_DEBUG"] == "WARN", "what the user set wins over what the shell had"
    assert inside["SLURM_JOB_ID"] == "7"
    assert inside["PYTHONNOUSERSITE"] == "1"
    assert "PYTHONPATH" not in inside
    assert "LEAK" not in inside


@pytest.mark.parametrize("path", ["/home/a,b", "/home/a:b", "/home/a\\b", "/home/a\nb"])
def test_a_directory_that_apptainer_cannot_bind_is_refused(path):
    from toolkit.errors import PlanError

    with pytest.raises(PlanError) as caught:
        decide(make_case(cwd=path))
    assert "cannot be bound" in caught.value.findings[0].cause


@pytest.mark.parametrize(
    ("name", "launch", "lines"),
    [
        (
            "spawn",
            {"program": ("sh", "-c", 'exec main.py --rank "$NODE_RANK" "$@"', "main.py", "x y")},
            ["export APPTAINERENV_NODE_RANK=$SLURM_NODEID", """sh -c 'exec main.py --rank "$NODE_RANK" "$@"' main.py 'x y'"""],
        ),
        ("torchrun-elastic", {"options": ("--nnodes=1:4", "--tee=3")}, ['torchrun --nnodes=1:4 --tee=3 --nnodes="$SLURM_STEP_NUM_NODES"']),
        ("mpi", {"template": "horovod"}, ["PMIX_SERVER_TMPDIR", "./hello --epochs 12"]),
    ],
)  # fmt: skip
def test_a_run_of_an_older_version_is_repeated(name, launch, lines):
    fresh = decide(cases()[name])
    old = replace(fresh, launch=replace(fresh.launch, filled=(), **launch))
    text = scripts.script(as_recorded(from_json(to_json(old), Plan), fresh))
    assert [line for line in lines if line not in text] == []


@pytest.mark.parametrize("is_full", [False, True])
def test_compiled_templates_are_kept_where_they_can_be(is_full, tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    if is_full:
        monkeypatch.setattr("tempfile.NamedTemporaryFile", full)
    place = tmp_path / "__pycache__"
    for text, result in (("{{ 6 * 7 }}", "42"), ("{{ 6 * 7 }}", "42"), ("{{ 6 * 8 }}", "48")):
        environment = Environment(
            loader=DictLoader({"one": text}), bytecode_cache=scripts._compiled(place)
        )
        assert environment.get_template("one").render() == result
    assert len(list(place.iterdir())) == (0 if is_full else 1)
