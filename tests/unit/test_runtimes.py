"""Runtimes: golden scripts that shellcheck has nothing against, hostile values byte for byte, and what is refused before a job queues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.golden_scripts import assert_golden
from tests.hostile import HOSTILE, MULTILINE
from tests.unit.samples import FACTS, LOCAL, MANIFEST, make_case
from tests.unit.test_scripts import captured, script_of
from toolkit import runtimes, scripts
from toolkit.errors import EnvironmentMissingError, PlanError, UnknownRuntimeError
from toolkit.model.case import Case
from toolkit.model.image import Engine, Environment
from toolkit.model.run import Bind
from toolkit.planning.plan import decide
from toolkit.runtimes import containers, environments
from toolkit.runtimes.base import pmi_types

VENV = Environment(
    name="the virtual environment v",
    kind="venv",
    prefix="/home/user/v",
    python="/home/user/v/bin/python3",
    torchrun=True,
)
HOST = Environment(
    name="/usr/bin/python3", kind="host", prefix="/usr", python="/usr/bin/python3", torchrun=True
)
CONDA = Environment(
    name="torch",
    kind="conda",
    prefix="/home/user/.conda/envs/torch",
    python="/home/user/.conda/envs/torch/bin/python3",
    torchrun=True,
    variables={"HDF5_USE_FILE_LOCKING": "FALSE"},
)
ENGINE = Engine(program="docker", address="unix:///run/user/1000/docker.sock")
REFERENCE = "nvcr.io/nvidia/pytorch:25.06-py3"
# test_scripts.py has the scripts of the default one.
OTHERS = {name: row for name, row in runtimes.RUNTIMES.items() if name != runtimes.DEFAULT}
SITE = replace(LOCAL, modules=("gcc/10.2.0", "cuda/11.4"), scratch="/scratch/$USER")


def on(runtime: str, job: dict[str, Any] | None = None, **changes: Any) -> Case:
    """A job of `inputs` in a runtime, with what is looked up for it."""
    others = {"image": REFERENCE if runtimes.get(runtime).image else ""}
    found: dict[str, Any] = {
        "apptainer": {},
        "docker": {"engine": ENGINE, "image": REFERENCE},
        "conda": {"environment": CONDA, "image": ""},
        "none": {"environment": VENV, "image": ""},
    }
    settings: dict[str, Any] = {"runtime": runtime}
    own: dict[str, dict[str, Any]] = {"docker": {"nodes": 1}, "conda": {"conda_env": "torch"}}
    settings |= own.get(runtime, {})
    return make_case(settings | (job or {}), **(found.get(runtime, others) | changes))


def cases() -> dict[str, Case]:
    bound = {"bind": ("/data/a b:/data:ro",)}
    return {
        **{f"{name}-torchrun": on(name, bound if runtime.image else {}) for name, runtime in OTHERS.items()},
        "docker-torchrun": on("docker", {"gpus": 2, "ntasks_per_node": None} | bound, engine=replace(ENGINE, nvidia=True)),
        "podman-none": on(
            "docker",
            {"launcher": "none", "gpus": 2},
            engine=Engine(program="podman", address="unix:///run/user/1000/podman.sock", rootless=True, nvidia=True),
            site=SITE,
        ),
        "pyxis-horovod": on("pyxis", {"launcher": "horovod"}, site=SITE),
        "conda-torchrun": on("conda", {"modules": ("cudampi/openmpi-4.1.1",)}, site=SITE),
    }  # fmt: skip


@pytest.mark.parametrize("name", cases())
def test_script_is_the_golden_one(name):
    runtime, _, launcher = name.partition("-")
    whole = f"{runtime}-torchrun"
    like = script_of("torchrun")
    if whole in cases() and name != whole:
        like = scripts.script(decide(cases()[whole]))
    other = "" if launcher == "torchrun" else script_of(launcher)
    assert_golden(name, scripts.script(decide(cases()[name])), like, other)


@pytest.mark.parametrize("launcher", ["torchrun", "srun", "spawn", "none"])
@pytest.mark.parametrize("runtime", OTHERS)
def test_hostile_arguments_and_variables_arrive_byte_for_byte(runtime, launcher, tmp_path):
    words = (*HOSTILE, *MULTILINE, "", "--help", "--", "-N")
    work = tmp_path / 'it\'s $(touch pwned) `x` "q" 한글'
    work.mkdir()
    variables = {f"V{index}": value for index, value in enumerate(words)}
    hostile = "a b;$(touch pwned)\"'c"
    prefix = str(tmp_path / hostile)
    hosted: dict[str, dict[str, Any]] = {
        "none": {"environment": replace(VENV, prefix=prefix)},
        "conda": {"environment": replace(CONDA, prefix=prefix, variables={"C": hostile})},
    }
    job = {"launcher": launcher, "arguments": words, "env": variables}
    places = {"cwd": str(work), "folder": str(work), "run": str(work / "runs/x-0001")}
    given = on(
        runtime,
        {**job, "nodes": 1, "ntasks_per_node": 1},
        script="a b;$(touch pwned).py",
        **places,
        **hosted.get(runtime, {"image": hostile if runtimes.get(runtime).image else ""}),
    )
    arguments, inside = captured(decide(given), tmp_path)
    assert arguments[-len(words) :] == list(words)
    assert arguments[-len(words) - 1] == "a b;$(touch pwned).py"
    assert {name: inside[name] for name in variables} == variables
    assert "LEAK" not in inside
    if runtime == "docker":
        assert hostile in arguments
        assert Bind(source=str(work), target=str(work)).mount in arguments
        assert {f"V{index}" for index in range(len(words))} <= set(arguments), "by name only"
        assert not any("touch pwned`" in word for word in arguments[: arguments.index(hostile)]), (
            "no value among the engine's words"
        )
    else:
        assert inside["PYTHONPATH"] == str(work / "runs/x-0001/report"), (
            "and nothing of the submitting shell"
        )
    if runtime == "pyxis":
        options = (tmp_path / "options").read_text().split("\0")
        assert {f"--container-image={hostile}", f"--container-workdir={work}"} <= set(options)
    if runtime in ("none", "conda"):
        assert inside["PATH"].startswith(f"{tmp_path / hostile}/bin:")
    if runtime == "conda":
        assert (inside["CONDA_PREFIX"], inside["C"]) == (str(tmp_path / hostile), hostile)
    if launcher == "srun":
        assert inside["RANK"] == "0" or runtime != "docker"
    assert not list(tmp_path.rglob("pwned"))


GPUS = {"gpus": 2, "ntasks_per_node": None}
ASKED = {"origins": {"image": "--image", "runtime": "--runtime"}}
LACKING = {"manifest": replace(MANIFEST, frameworks={"numpy": "1"}, mpi=())}
MODULES = {"site": replace(SITE, available_modules=SITE.modules)}
OPEN_MPI = {"facts": replace(FACTS, mpirun="mpirun (Open MPI) 4.1.4")}

# The runtime, the job, further changes; the option, and words of the cause and of the next step.
REFUSED: tuple[tuple[str, dict[str, Any], dict[str, Any], str, tuple[str, str]], ...] = (
    ("docker", {"nodes": 2}, {}, "--nodes", ("an engine does not know", "--runtime apptainer")),
    ("docker", {"pty": True, "launcher": "none"}, {}, "--pty", ("no terminal", "leave it out")),
    ("docker", GPUS, {"site": replace(LOCAL, access="path")}, "--gpus", ("gives containers no GPUs", "container toolkit")),
    ("docker", {"env": {"DOCKER_HOST": "x"}}, {}, "--env", ("docker itself reads", "leave it out")),
    *(
        (name, {"launcher": launcher}, OPEN_MPI, "--launcher", (f"{launcher} cannot start", other))
        for name, launcher, other in (("docker", "mpirun", "horovod-gloo"), ("docker", "horovod", "torchrun"), ("pyxis", "mpirun", "mpi"))
    ),
    *(
        (name, {"conda_env": "torch"}, {}, "--env", ("cannot use", "--runtime conda --env torch"))
        for name in ("apptainer", "docker", "pyxis", "none")
    ),
    ("conda", {"conda_env": None}, {"environment": None}, "--env", ("needs the name", "NAME")),
    *(
        row
        for name in ("conda", "none")
        for row in (
            (name, {}, ASKED, "--image", (f"{name} starts no image", "leave --image out")),
            (name, {"bind": ("/x",)}, {"origins": {"bind": "--bind"}}, "--bind", ("no cont", "")),
        )
    ),
    *((name, {"require_signed": True}, {}, "--runtime", ("signed", "--runtime apptainer")) for name in ("docker", "pyxis", "conda", "none")),
    *(
        (name, {}, {"environment": replace(found, prefix="/home/a:b")}, place, ("cannot be on PATH", "elsewhere"))
        for name, found, place in (("conda", CONDA, "--env"), ("none", VENV, "--runtime"))
    ),
    ("conda", {"launcher": "horovod"}, LACKING, "--launcher", ("environment does not hold", "")),
    ("none", {}, {"environment": replace(HOST, torchrun=False)}, "--launcher", ("no program torchrun", "--launcher srun")),
    ("conda", {"modules": ("cuda/11.5",)}, MODULES, "--module", ("cuda/11.5", "")),
)  # fmt: skip


@pytest.mark.parametrize(("runtime", "job", "changes", "place", "words"), REFUSED)
def test_what_a_runtime_cannot_run_is_refused(runtime, job, changes, place, words):
    with pytest.raises(PlanError) as caught:
        decide(on(runtime, job, **changes))
    told = {finding.place: finding for finding in caught.value.findings}
    assert words[0] in told[place].cause
    assert words[1] in (told[place].next_step or "")


def test_an_unknown_runtime_names_the_nearest():
    with pytest.raises(UnknownRuntimeError) as caught:
        runtimes.get("dokcer")
    assert caught.value.close == "docker"


@pytest.mark.parametrize(
    ("image", "address"),
    [
        ("nvcr.io/nvidia/pytorch:25.06-py3", "nvcr.io#nvidia/pytorch:25.06-py3"),
        ("docker://nvcr.io/nvidia/pytorch:25.06-py3", "nvcr.io#nvidia/pytorch:25.06-py3"),
        ("nvcr.io#nvidia/pytorch", "nvcr.io#nvidia/pytorch"),
        ("localhost:5000/x:1", "localhost:5000#x:1"),
        ("pytorch/pytorch:2.1", "pytorch/pytorch:2.1"),
        ("ubuntu:22.04", "ubuntu:22.04"),
        ("/apps/x.sqsh", "/apps/x.sqsh"),
        ("./a.b/x.sqsh", "./a.b/x.sqsh"),
    ],
)
def test_a_reference_is_written_as_enroot_reads_it(image, address):
    assert containers.enroot(image) == address


def conda_at(prefix: Path) -> Path:
    (prefix / "conda-meta").mkdir(parents=True)
    return prefix


def test_environments_are_found_where_conda_keeps_and_notes_them(tmp_path, monkeypatch):
    home = tmp_path / "home"
    noted = conda_at(tmp_path / "project/noted")
    kept = conda_at(home / "miniforge3/envs/kept")
    named = conda_at(home / "named/mine")
    loaded = conda_at(tmp_path / "site/envs/loaded")
    (home / ".conda").mkdir()
    (home / ".conda/environments.txt").write_text(f"{noted}\n{tmp_path}/gone\n")
    monkeypatch.setenv("CONDA_ENVS_PATH", "~/named")
    monkeypatch.setenv("CONDA_EXE", f"{tmp_path}/site/bin/conda")
    monkeypatch.setenv("HOME", str(home))
    found = (("noted", noted), ("kept", kept), ("mine", named), ("loaded", loaded))
    for name, path in found:
        assert environments.find_environment(name) == path
    assert environments.find_environment(str(kept)) == kept
    with pytest.raises(EnvironmentMissingError) as caught:
        environments.find_environment("keptt")
    assert caught.value.close == "kept"
    assert "conda create --name keptt" in str(caught.value.next_step)
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv/pyvenv.cfg").touch()
    with pytest.raises(EnvironmentMissingError) as caught:
        environments.find_environment(str(tmp_path / "venv"))
    assert "--runtime none" in str(caught.value.next_step)


@pytest.mark.parametrize(
    ("said", "types"), [("mpirun (Open MPI) 4.1.4", ("pmix",)), ("HYDRA build details:", ("pmi2",)), ("", ()), ("something", ("pmix", "pmi2"))]
)  # fmt: skip
def test_an_mpi_is_known_by_how_it_introduces_itself(said, types):
    assert pmi_types(said) == types


def test_what_an_environment_can_import_is_known(tmp_path, monkeypatch):
    """A virtual environment is asked; PYTHONPATH of the caller, which ranks do not get, adds nothing."""
    (tmp_path / "planted.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = environments.probe(())
    assert found.manifest is not None
    (python,) = found.manifest.pythons
    assert python.path == found.python
    assert {"json", "sys", "_ctypes"} <= set(python.modules)
    assert "planted" not in python.modules
