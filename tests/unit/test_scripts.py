"""Scripts: whole golden files, values that reach the rank byte for byte, and what a rank gets of the shell."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from jinja2 import DictLoader, Environment
from msgspec.structs import replace

from tests.golden_scripts import assert_golden
from tests.hostile import HOSTILE, MULTILINE
from tests.unit.samples import (
    CONDA,
    ENGINE,
    FACTS,
    HOLDS_ALL,
    LOCAL,
    NEURON,
    OPEN_MPI,
    PARTITIONS,
    VENV,
    make_case,
    on,
)
from toolkit import runtimes, scripts
from toolkit.config import package_directory
from toolkit.errors import PlanError, UsageError
from toolkit.launchers import INTERPRETERS, LAUNCHERS, choose
from toolkit.model.base import from_json, to_json
from toolkit.model.case import Case, Source
from toolkit.model.run import Bind, Plan
from toolkit.model.site import Facts
from toolkit.planning.plan import as_recorded, decide
from toolkit.planning.target import resolve
from toolkit.quoting import sbatch, shell
from toolkit.runs.run import Run
from toolkit.runs.submit import write_secrets

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
GPUS: dict[str, Any] = {"gpus": 2, "ntasks_per_node": None}
BOUND = {"bind": ("/data/a b:/data:ro",)}
MODULES = replace(LOCAL, modules=("gcc/10.2.0", "cuda/11.4"), scratch="/scratch/$USER")
PODMAN = replace(ENGINE, program="podman", rootless=True, nvidia=True)
TYPED = replace(
    FACTS, partitions=[replace(one, gpus_by_type={"v100": one.gpus}) for one in PARTITIONS]
)
# Runtimes but for the default one, and launchers that start the words that they are given.
OTHERS = [name for name in runtimes.RUNTIMES if name != runtimes.DEFAULT]
STARTING = [name for name in LAUNCHERS if name not in ("submitit", "notebook")]


def plain(launcher: str) -> Case:
    """Return a case of a launcher, with a script of the language that it claims."""
    scripts = (f"train{suffix}" for suffix in INTERPRETERS)
    own = (one for one in scripts if choose(make_case({}, script=one))[0] == launcher)
    return make_case({"launcher": launcher}, script=next(own, "train.py"))


def cases() -> dict[str, Case]:
    """Return the scripts that have golden files: each launcher and runtime, and jobs with other settings."""
    return {
        **{name: plain(name) for name in LAUNCHERS},
        **{f"{name}-torchrun": on(name, BOUND if runtimes.get(name).image else {}) for name in OTHERS},
        "torchrun-elastic": make_case({"nodes": "1:4"}),
        "shell": make_case({"launcher": "shell", "interactive": True, "pty": True, "arguments": (), "gpus": 2}, script="bash", is_program=True),
        "notebook": make_case(GPUS | {"launcher": "notebook", "arguments": ("1800", "it's $(touch pwned)")}, script="jupyter", is_program=True),
        "torchrun-requeue": make_case({"requeue": True, "time": "1:00:00"}),
        "torchrun-retry": make_case({"retry": 2}),
        "torchrun-notify": make_case({"notify": "https://hooks.example/T0KEN", "env": {"HF_TOKEN": "hf_secret"}, "secret": ("HF_TOKEN",)}),
        "torchrun-unequal": make_case({"nodes": None, "gpus": "2,1", "ntasks_per_node": None}),
        "srun": make_case(GPUS | {"launcher": "srun"}),
        "torchrun-staged": make_case({"stage_image": True}, version="0f3a-428126100"),
        "srun-file": make_case({"launcher": "srun", "init": "file"}),
        "spawn": make_case({"launcher": "spawn", "arguments": ("data", "--epochs", "3")}, source=IMAGENET, script="main.py"),
        "accelerate": make_case(
            {"launcher": "accelerate", "arguments": ("launch", "--config_file", "fsdp.yaml", "a.py")},
            script="accelerate",
            is_program=True,
            manifest=HOLDS_ALL,
        ),
        "none": make_case(
            {"launcher": "none", "arguments": ("-f",), "array": "0-9%2", "account": "ml", "constraint": "v100&ib", "exclusive": True, "signal": "B:USR1@60"},
            script="hostname",
            is_program=True,
        ),
        "horovod": make_case(GPUS | {"launcher": "horovod"}),
        "horovod-elastic": make_case({"launcher": "horovod-elastic", "nodes": "1:3", "max_restarts": 5}),
        "mpirun": make_case({"launcher": "mpirun"}, facts=OPEN_MPI),
        "mpi": make_case({"launcher": "mpi"}, script="hello"),
        "slurm-options": make_case(
            GPUS | {"gpus": "v100:2", "slurm": {"licenses": "matlab:1,fluent:2", "mail-user": "me@site", "hold": True, "nice": 5, "gres": "nvme:100", "mcs-label": ""}},
            facts=TYPED,
        ),
        "submitit": make_case(
            {"launcher": "submitit", "arguments": (), "job_name": "add", "time": "1:00:00"},
            manifest=None,
            script="toolkit.submit",
            is_program=True,
        ),
        "ray": make_case(GPUS | {"launcher": "ray"}, manifest=HOLDS_ALL),
        "tensorflow": make_case({"launcher": "tensorflow", "ntasks_per_node": None}, manifest=HOLDS_ALL),
        "neuron": make_case(
            GPUS | {"gpus": 4, "partition": "cas_v100_4", "comment": "field=misc;appl=x", "time": "2:00:00", "bind": ("/apps/imagenet:/data/imagenet:ro",)},
            site=NEURON,
            facts=Facts(partitions=PARTITIONS, mpi=("none", "pmi2", "pmix_v3"), container="singularity"),
            manifest=None,
            image="/apps/images/ngc/pytorch:25.12-py3.sif",
        ),
        "docker-torchrun": on("docker", GPUS | BOUND, engine=replace(ENGINE, nvidia=True)),
        "podman-none": on("docker", {"launcher": "none", "gpus": 2}, engine=PODMAN, site=MODULES),
        "pyxis-horovod": on("pyxis", {"launcher": "horovod"}, site=MODULES),
        "conda-torchrun": on("conda", {"modules": ("cudampi/openmpi-4.1.1",)}, site=MODULES),
    }  # fmt: skip


# The script that another one is compared with, if it is not torchrun's.
LIKE = {
    "torchrun": "",
    "srun-file": "srun",
    **dict.fromkeys(("horovod", "ray", "notebook", "docker-torchrun"), "srun"),
    **dict.fromkeys(("none", "horovod-gloo", "mpirun", "tensorflow"), "srun-file"),
    "accelerate": "spawn",
    "mpi": "horovod",
    "shell": "notebook",
    "horovod-elastic": "torchrun-elastic",
    "submitit": "torchrun-requeue",
    "torchrun-retry": "torchrun-requeue",
    "pyxis-torchrun": "conda-torchrun",
    "none-torchrun": "conda-torchrun",
    "pyxis-horovod": "pyxis-torchrun",
    "podman-none": "docker-torchrun",
}
# Those whose lines are not repeated.
SHARED = ("srun", "torchrun-elastic", "horovod-gloo", "torchrun-requeue", "conda-torchrun")


@lru_cache
def script_of(name: str) -> str:
    return scripts.script(decide(cases()[name]))


@pytest.mark.parametrize("name", cases())
def test_script_is_the_golden_one(name):
    like = LIKE.get(name, "torchrun")
    shared = {other: script_of(other) for other in SHARED[: [*SHARED, name].index(name)]}
    assert_golden(name, script_of(name), like and script_of(like), shared)


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
    places = {"HOME": str(directory), "CAPTURE": str(directory)}
    subprocess.run(
        ["bash"],
        input=scripts.script(decided),
        env={"PATH": f"{programs}:/usr/bin:/bin", **places, **_OUTSIDE},
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


def below(work: Path) -> dict[str, str]:
    """Return the places of a job in a directory."""
    return {"cwd": str(work), "folder": str(work), "run": str(work / "runs/x-0001")}


# Everything that a word of a command line can hold: all but NUL; lone surrogates are bytes that are
# no UTF-8, and are refused.
WORDS = st.lists(
    st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12), max_size=6
)
EVERY_WORD = [*HOSTILE, *MULTILINE, "", "--help", "--", "-N"]
# What a directory can be called that Apptainer can bind.
NAMES = st.text(
    st.characters(exclude_characters="\0/,:\\\n\r", codec="utf-8"), min_size=1, max_size=12
).filter(lambda name: name not in (".", "..") and len(name.encode()) < 200)


@pytest.mark.parametrize("launcher", STARTING)
@settings(
    max_examples=10,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)
@example(EVERY_WORD, EVERY_WORD, 'it\'s $(touch pwned) `x` "q"; 한글', "a $(touch pwned) 'b' # d")
@given(words=WORDS, values=WORDS, name=NAMES, title=NAMES)
def test_any_word_reaches_the_rank_byte_for_byte(launcher, words, values, name, title):
    variables = {f"V{index}": value for index, value in enumerate(values)}
    job = {"launcher": launcher, "arguments": tuple(words), "env": variables, "secret": ("V0",)}
    terminal = {"interactive": True, "pty": True} if launcher == "shell" else {}
    with tempfile.TemporaryDirectory() as place:
        work = Path(place) / name
        work.mkdir()
        image = str(work / "image:1 $(x).sif")
        known = {"image": image, "facts": OPEN_MPI, "manifest": HOLDS_ALL}
        given = make_case({**job, **terminal}, script=f"{name}.py", **below(work), **known)
        try:
            decided = decide(given._replace(job=replace(given.job, job_name=title)))
            text = scripts.script(decided)
        except (PlanError, UsageError):
            # A name that no #SBATCH line can carry, or no log: refused before anything is written.
            decided = decide(given._replace(job=replace(given.job, job_name="plain")))
            text = scripts.script(decided)
        run = Run(work / "runs/x-0001")
        run.directory.mkdir(parents=True)
        own = {name: variables[name] for name in decided.secrets}
        write_secrets(run, decided.container.prefix, own)
        arguments, inside = captured(decided, Path(place))
        assert arguments[len(arguments) - len(words) :] == words
        assert arguments[len(arguments) - len(words) - 1] == f"{name}.py"
        assert image in arguments
        assert not list(Path(place).rglob("pwned"))
        assert {one: inside[one] for one in variables} == variables
        assert arguments[arguments.index("--pwd") + 1] == str(work)
        assert "V0=" not in text


@pytest.mark.parametrize("launcher", ["srun", "none"])
@pytest.mark.parametrize("runtime", OTHERS)
def test_hostile_arguments_and_variables_arrive_in_each_runtime(runtime, launcher, tmp_path):
    work = tmp_path / 'it\'s $(touch pwned) `x` "q" 한글'
    work.mkdir()
    variables = {f"V{index}": value for index, value in enumerate(EVERY_WORD)}
    hostile = "a b;$(touch pwned)\"'c"
    prefix = str(tmp_path / hostile)
    hosted: dict[str, dict[str, Any]] = {
        "none": {"environment": replace(VENV, prefix=prefix)},
        "conda": {"environment": replace(CONDA, prefix=prefix, variables={"C": hostile})},
    }
    job = {"launcher": launcher, "arguments": tuple(EVERY_WORD), "env": variables}
    given = on(
        runtime,
        {**job, "nodes": 1, "ntasks_per_node": 1},
        script="a b;$(touch pwned).py",
        **below(work),
        **hosted.get(runtime, {"image": hostile}),
    )
    arguments, inside = captured(decide(given), tmp_path)
    assert arguments[-len(EVERY_WORD) - 1 :] == ["a b;$(touch pwned).py", *EVERY_WORD]
    assert {name: inside[name] for name in variables} == variables
    assert "LEAK" not in inside
    if runtime == "docker":
        assert hostile in arguments
        assert Bind(source=str(work), target=str(work)).mount in arguments
        assert set(variables) <= set(arguments), "by name only"
        own = arguments[: arguments.index(hostile)]
        assert not any("touch pwned`" in word for word in own), (
            "no value is among the engine's words"
        )
    else:  # and nothing of the submitting shell
        assert inside["PYTHONPATH"] == str(work / "runs/x-0001/report")
    if runtime == "pyxis":
        options = (tmp_path / "options").read_text().split("\0")
        assert {f"--container-image={hostile}", f"--container-workdir={work}"} <= set(options)
    if runtime in ("none", "conda"):
        assert inside["PATH"].startswith(f"{tmp_path / hostile}/bin:")
    if runtime == "conda":
        assert (inside["CONDA_PREFIX"], inside["C"]) == (str(tmp_path / hostile), hostile)
    if launcher == "srun" and runtime != "docker":
        assert inside["RANK"] == "0", "and not that of the submitting shell"
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("launcher", [name for name in STARTING if name != "shell"])
def test_each_launcher_starts_points_of_sweeps_and_jobs_that_go_back(launcher, tmp_path):
    job = {"launcher": launcher, "requeue": True, "sweep": ("lr=0.1,it's $(touch pwned)",)}
    given = make_case(job, manifest=None, facts=OPEN_MPI, **below(tmp_path))
    arguments, inside = captured(decide(given), tmp_path)
    assert arguments[-2:] == ["--lr", "it's $(touch pwned)"]
    assert any(word.endswith('trap "" USR1; exec "$@"') for word in arguments)
    assert inside["TOOLKIT_POINT"] == str(tmp_path / "runs/x-0001/points/1")
    assert (tmp_path / "runs/x-0001/points/1").is_dir()
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("word", [b"\xff".decode(errors="surrogateescape"), "a\0b"])
def test_what_no_script_can_hold_is_refused(word):
    for quoting in (shell, sbatch):
        with pytest.raises(UsageError):
            quoting(word)
    with pytest.raises((PlanError, UsageError)):
        scripts.script(decide(make_case({"arguments": (word,)})))


@pytest.mark.parametrize("launcher", [name for name in STARTING if name != "shell"])
@pytest.mark.parametrize("name", ["-cprint(4242).py", "--help.sh"])
@pytest.mark.parametrize("in_folder", [False, True])
def test_a_script_whose_name_begins_with_a_dash_is_no_option(launcher, name, in_folder, tmp_path):
    (tmp_path / name).write_text("print('the script')\n")
    if in_folder:
        (tmp_path / "job.toml").write_text(f'script = "{name}"\n')
    target, _ = resolve("." if in_folder else name, tmp_path)
    places = {"cwd": str(tmp_path), "folder": target.folder, "script": target.script}
    given = make_case({"launcher": launcher}, manifest=HOLDS_ALL, facts=OPEN_MPI, **places)
    words = decide(given).launch.program
    assert f"./{name}" in words
    assert not any(word.startswith(name) for word in words)


def test_the_end_of_a_notebook_is_told_too():
    job = {"launcher": "notebook", "arguments": ("0", "/x"), "notify": "true"}
    text = scripts.script(decide(make_case(job, script="jupyter", is_program=True)))
    trap = re.findall(r"^trap '?(.*?)'? EXIT$", text, re.MULTILINE)[-1]
    assert trap.startswith("notify; rm -rf")


def test_only_named_variables_enter_the_container(tmp_path):
    decided = decide(make_case({"env": {"NCCL_DEBUG": "WARN"}}, **below(tmp_path)))
    _, inside = captured(decided, tmp_path)
    assert inside["NCCL_DEBUG"] == "WARN", "what the user set wins over what the shell had"
    assert inside["SLURM_JOB_ID"] == "7"
    assert inside["PYTHONNOUSERSITE"] == "1"
    assert "PYTHONPATH" not in inside
    assert "LEAK" not in inside


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


@pytest.mark.parametrize("error", [None, OSError(28, "No space left on device")])
def test_compiled_templates_are_kept_where_they_can_be(error, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    if error:
        monkeypatch.setattr("tempfile.NamedTemporaryFile", Mock(side_effect=error))
    place = tmp_path / "__pycache__"
    for text, result in (("{{ 6 * 7 }}", "42"), ("{{ 6 * 7 }}", "42"), ("{{ 6 * 8 }}", "48")):
        loader, cache = DictLoader({"one": text}), scripts._compiled(place)
        template = Environment(loader=loader, bytecode_cache=cache).get_template("one")
        assert template.render() == result
    assert len(list(place.iterdir())) == (0 if error else 1)
