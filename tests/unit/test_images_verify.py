"""Verification: what Horovod's witnesses say together, sums over ranks, drivers, and what is remembered."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from toolkit import shell
from toolkit.config import package_directory
from toolkit.errors import ForbiddenError
from toolkit.images.store.contents import MARK, Contents
from toolkit.images.store.store import StoredImage
from toolkit.images.verify import own_checks
from toolkit.images.verify.case import ImageCase
from toolkit.images.verify.checks import CHECKS, judge_driver
from toolkit.images.verify.own_checks import Results
from toolkit.images.verify.verdicts import merged, verdicts
from toolkit.model.image import Python, Verdict

SCRIPTS = package_directory("images/checks")
RANKS = runpy.run_path(str(SCRIPTS / "ranks.py"))

LIBRARY = "mpi_built = gloo_built = lambda: True\nnccl_built = lambda: False\n"
VERSION = '__version__ = "2.13.0"\n'
HELD = {"pytorch": "2.13.0"}  # the metadata of a build


@pytest.mark.parametrize(
    ("words", "metadata", "modules", "code", "says"),
    [
        ("pytorch , mpi gloo", HELD, "torch horovod.torch", 0, "built for pytorch 2.13.0, with mpi, gloo"),
        (",", None, "torch horovod.torch tensorflow", 0, "built for pytorch (this release keeps no"),
        (",", {}, "torch", 1, "built for no framework that is in the image"),
        (",", {"tensorflow": "2.21"}, "torch horovod.torch", 1, "of its build does not have pytorch"),
        (",", {"pytorch": "2.12"}, "torch horovod.torch", 1, "for pytorch 2.12, and 2.13.0 is in the image"),
        (",", {"pytorch": "2.13.0", "tensorflow": "2"}, "torch tensorflow horovod.torch", 1, "horovod.tensorflow cannot be"),
        ("pytorch ,", HELD, "tensorflow horovod.tensorflow", 1, "horovod.torch cannot be imported"),
        ("pytorch , nccl", HELD, "torch horovod.torch", 1, "it is built without nccl"),
        ("tensorflow , mpi", {"tensorflow": "2.13.0"}, "tensorflow horovod.tensorflow horovod.torch!", 0, "for tensorflow"),
        ("pytorch ,", {"tensorflow": "2.13.0"}, "tensorflow horovod.tensorflow horovod.torch!", 1, "library was not built"),
    ],
)  # fmt: skip
def test_one_witness_of_horovods_build_is_not_enough(
    words, metadata, modules, code, says, tmp_path
):
    for name in ("horovod", *modules.split()):
        file = tmp_path / name.rstrip("!").replace(".", "/") / "__init__.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        text = f"import {name.partition('.')[2]}\n{LIBRARY}" if "." in name else VERSION
        file.write_text("" if name.endswith("!") else text)  # a module that warns, and goes on
    if metadata is not None:
        (tmp_path / "horovod/metadata.json").write_text(json.dumps(metadata))
    argv = [sys.executable, str(SCRIPTS / "horovod_build.py"), *words.split()]
    env = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, says in done.stdout + done.stderr) == (code, True), done


GPU_TORCH = "class _C:\n    _cuda_getArchFlags = lambda: 'sm_80 sm_90'\n"
CPU_FLOW = "class sysconfig:\n    get_build_info = dict\n"


@pytest.mark.parametrize(
    ("program", "script", "said", "code", "says"),
    [
        ("ompi_info", "openmpi.sh", "ompi:version:full:4.1.4\nmca:pmix:ext3x:version", 0, "speaks pmix"),
        ("ompi_info", "openmpi.sh", "ompi:version:full:4.1.4\nmca:pmix:s2:version", 0, "speaks pmi2"),
        ("ompi_info", "openmpi.sh", "ompi:version:full:4.1.4\nmca:pml:ob1:version", 1, "neither PMIx nor"),
        ("ompi_info", "openmpi.sh", "ompi:version:full:5.0.7\nmca:pml:ob1:version", 0, "5.0.7 speaks pmix"),
        ("horovodrun", "check_build.py", "    [X] NCCL\n    [ ] DDL", 0, "[X] NCCL"),
        ("horovodrun", "check_build.py", "    [ ] NCCL\n    [X] MPI", 1, "does not show NCCL"),
    ],
)  # fmt: skip
def test_what_programs_of_an_image_say_of_themselves(program, script, said, code, says, tmp_path):
    text = f"#!{sys.executable}\nprint({said!r})\nraise SystemExit\n"
    (tmp_path / program).write_text(text)
    (tmp_path / program).chmod(0o755)
    runner = sys.executable if script.endswith(".py") else "sh"
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [runner, str(SCRIPTS / script)], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, says in done.stdout + done.stderr) == (code, True), done


@pytest.mark.parametrize(
    ("words", "torch", "code", "says"),
    [
        ("", GPU_TORCH, 0, "toolkit-fact: gpu-code torch sm_80 sm_90\ntorch: sm_80, sm_90\n"),
        ("", "class _C: pass\n", 0, "\n"),
        ("sm_90", "class _C: pass\n", 1, "torch has no code for sm_90"),
        ("sm_80 sm_120", GPU_TORCH.replace("sm_90", "compute_90"), 0, "torch: sm_80, compute_90\n"),
        ("sm_86 sm_90", GPU_TORCH.replace("sm_90", "compute_90"), 1, "no code for sm_86"),
    ],
)
def test_a_framework_that_was_built_for_cpus_claims_no_gpu_code(words, torch, code, says, tmp_path):
    """Beside another one with CUDA; else the image would be refused for every GPU."""
    for name, text in (("torch", torch), ("tensorflow", "" if words else CPU_FLOW)):
        if text:
            (tmp_path / f"{name}.py").write_text(text)
    argv = [sys.executable, str(SCRIPTS / "gpu_code.py"), *words.split()]
    env = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert says in done.stderr if code else done.stdout.endswith(says)


@pytest.mark.parametrize(
    ("changes", "controller", "says"),
    [
        ([{}, {}], "mpi", ""),
        ([{}], "mpi", "1 rank found each other, not 2"),
        ([{}, {"host": "a"}], "mpi", "the ranks were on a: 1 node, not 2"),
        ([{}, {}], "gloo", "it went by gloo, not by mpi"),
        ([{}, {"right": False}], "mpi", "the sum over all ranks is wrong"),
        ([{}, {"rank": 0}], "mpi", "the sum over all ranks is wrong"),
    ],
)
def test_a_sum_over_ranks_is_looked_at_closely(changes, controller, says):
    ranks = [
        {"rank": rank, "host": "ab"[rank], "right": True, "driver": "", **change}
        for rank, change in enumerate(changes)
    ]
    assert RANKS["judge"](ranks, controller, "mpi", 2, 2) == says


CALLS = {  # by name: a script, its result, its last line
    "fine": ("print('one'); print('two')", "passed", "two"),
    "wrong": ("import sys; print('first'); sys.exit('no good')", "failed", "no good"),
    "broken": ("1 / 0", "failed", "ZeroDivisionError: division by zero"),
    "killed": ("import os; os.kill(os.getpid(), 9)", "failed", "killed.py was ended by signal 9"),
    "shared": ("import sys; print('imported' if 'wave' in sys.modules else 'not')", "passed", "imported"),
}  # fmt: skip


def test_checks_run_in_forks_of_one_process_and_each_has_a_result(tmp_path):
    for name, (text, _, _) in CALLS.items():
        (tmp_path / f"{name}.py").write_text(text)
    words = ["wave no_such_module", *(f"{name} {name}.py" for name in CALLS)]
    argv = [sys.executable, str(SCRIPTS / "forked.py"), *words]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    results = Results()
    for line in done.stdout.splitlines():
        results.feed(line)
    assert done.returncode == 1
    assert {check.name: (check.outcome, check.message) for check in results.checks} == {
        name: (outcome, says) for name, (_, outcome, says) in CALLS.items()
    }


@pytest.mark.parametrize(
    ("printed", "code", "outcomes"),
    [
        ("{0} started\n{0} end\n", 0, {"entrypoint": "passed", "imports": "unchecked"}),
        ("welcome\n{0} started\n{0} end\n", 0, {"entrypoint": "failed"}),
        ("no shell\n", 255, {"entrypoint": "failed", "imports": "unchecked"}),
        ("{0} started\ntoolkit-modules: {{\n{0} end\n", 0, {"checks": "failed"}),
        ("{0} started\n{0} end\ntoolkit-check: own failed: no\n", 1, {"own": "failed"}),
        ("{0} started\n{0} end\nkilled\n", 137, {"checks": "failed"}),
    ],
)
def test_one_start_of_an_image_tells_all(printed, code, outcomes, monkeypatch):
    """No answer ends the command, and an image that gives a strange one is not asked again."""
    starts = []

    def run(argv: list[str], **_: object) -> shell.Result:
        starts.append(argv)
        return shell.Result(tuple(argv), code, printed.format(MARK), "")

    monkeypatch.setattr(shell, "run", run)
    monkeypatch.setattr(shell, "require_apptainer", lambda: "apptainer")
    monkeypatch.setattr("toolkit.images.verify.verdicts.CHECKS", CHECKS[3:])
    given = ImageCase(image=StoredImage(name="x", path="/x.sif"))
    given.labels = {}
    made = {verdict.name: verdict.outcome for verdict in verdicts(given)}
    assert outcomes.items() <= made.items()
    assert len(starts) == 1


def test_a_fact_without_a_value_is_none():
    """Any image can print it, and it must not end the command."""
    results = Results()
    for line in ("toolkit-fact: gpu-code  ", "toolkit-fact: mpi \t", "toolkit-fact: mpi pmix"):
        results.feed(line)
    assert (results.gpu_code, results.mpi) == ({}, ["pmix"])


def contents(modules, programs="", **more: Any):
    python = Python(path="python3", version="3.11", modules=tuple(modules.split()))
    return Contents(python="3.11", pythons=(python,), programs=tuple(programs.split()), **more)


TORCH = contents("torch", "torchrun")
WHOLE = contents("torch horovod", "mpirun ompi_info horovodrun")


class Case(ImageCase):
    """An image that prints something when it runs checks."""

    held, printed, calls = Contents(), tuple[str, ...](), ""

    def _ask(self, results: Results, *scripts: str) -> Contents:
        self.calls = " ".join(scripts)
        for line in self.printed:
            results.feed(line)
        return self.held


def case(held, *printed: str, **more: Any):
    made = Case(image=StoredImage(name="x", path="/x.sif"), **more)
    made.held, made.printed = held, printed
    return made


@pytest.mark.parametrize(
    ("contents", "gpus", "names"),
    [
        (Contents(), 0, ""),
        (contents(""), 0, "user-site"),
        (TORCH, 2, "imports user-site ranks-gloo"),
        (WHOLE, 0, "imports user-site openmpi horovod-build ranks-mpi ranks-gloo"),
        (replace(TORCH, cuda="12.4"), 2, "imports user-site gpu-code ranks-gloo ranks-nccl"),
    ],
)
def test_an_image_of_others_gets_the_checks_that_it_can_take(contents, gpus, names):
    given = case(contents, local_gpus=gpus)
    assert given.results.checks == []
    made = [each.name for each in CHECKS if re.search(f"['k ]{each.name} ", given.calls)]
    assert made == names.split()


@pytest.mark.parametrize(
    ("printed", "outcome"),
    [
        (["ranks-mpi passed: right"], "passed"),
        (["ranks-mpi failed: wrong"], "failed"),
        (["ranks-mpi passed: right", "ranks-mpi failed: wrong"], "failed"),
        (["ranks-mpi failed: wrong\ntoolkit-fact: controller gloo"], "unchecked"),
        (["other passed: "], "unchecked"),
    ],
)
def test_a_check_that_was_not_possible_says_nothing_of_an_image(printed, outcome):
    lines = "".join(f"toolkit-check: {line}\n" for line in printed).splitlines()
    (ranks,) = (each for each in CHECKS if each.name == "ranks-mpi")
    assert ranks.only(case(WHOLE, *lines)).outcome == outcome


RELEASE = "nvcr.io/nvidia/pytorch:24.05-py3"


@pytest.mark.parametrize(
    ("cuda", "drivers", "base", "compat", "outcome", "says"),
    [
        ("", (), "", False, "passed", "it needs no driver"),
        ("12.4", (), "", False, "unchecked", "no node with a GPU was asked"),
        ("12.4", ("550.54",), RELEASE, False, "passed", "550.54 for all of it, 550.54 is installed"),
        ("12.4", ("530.1",), RELEASE, False, "passed", "by CUDA's minor version compatibility"),
        ("12.4", ("470.82",), "", False, "failed", "needs driver 525 or newer, 470.82 is installed"),
        ("12.4", ("470.82",), "", True, "unchecked", "by the compat package in the image"),
        ("12.4", ("550.54", "470.82"), "", False, "failed", "470.82 is installed"),
        ("99.0", ("550.54",), "", False, "unchecked", "the catalogue does not say"),
    ],
)  # fmt: skip
def test_a_driver_against_cuda(cuda, drivers, base, compat, outcome, says):
    given = case(Contents(cuda=cuda, compat=compat))
    given.labels = {"org.label-schema.usage.singularity.deffile.from": base}
    answer = judge_driver(given, drivers)
    assert (answer.outcome, says in answer.message) == (outcome, True), answer


@pytest.mark.parametrize("closed", ["", "x.py"])
def test_checks_that_only_root_can_read_are_no_fault_of_an_image(closed, tmp_path, monkeypatch):
    (tmp_path / "x.py").touch()
    (tmp_path / closed).chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(own_checks, "package_directory", lambda _: tmp_path)
    with pytest.raises(ForbiddenError, match="ordinary user"):
        own_checks.start_image("x.sif", f"cd {own_checks.MOUNTED}", action="exec")


def test_what_could_not_be_checked_does_not_put_out_what_was_found():
    before = (Verdict(name="a", outcome="passed"), Verdict(name="b", outcome="passed", site="x"))
    now = (
        Verdict(name="a", outcome="unchecked"),
        Verdict(name="b", outcome="failed", site="y"),
        Verdict(name="c", outcome="unchecked"),
    )
    found = {(one.name, one.site): one.outcome for one in merged(before, now)}
    assert found == {
        ("a", ""): "passed",
        ("b", "x"): "passed",
        ("b", "y"): "failed",
        ("c", ""): "unchecked",
    }
