"""Verification: what the scripts of checks say, which checks an image gets, drivers, and what is remembered."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from toolkit import shell
from toolkit.config import package_directory
from toolkit.errors import ForbiddenError
from toolkit.images.store.contents import MARK, Contents
from toolkit.images.store.store import StoredImage
from toolkit.images.verify import own_checks
from toolkit.images.verify.case import ImageCase, ScriptRun
from toolkit.images.verify.checks import CHECKS, judge_driver
from toolkit.images.verify.own_checks import Results
from toolkit.images.verify.verdicts import merged, verdicts
from toolkit.model.image import Python, Verdict
from toolkit.model.run import Outcome

SCRIPTS = package_directory("images/checks")


def run(place: Path, script: str, *words: str) -> tuple[int, str]:
    """Run a script of the checks where this directory has modules and programs."""
    program = [sys.executable] if script.endswith(".py") else ["sh"]
    env = {"PATH": f"{place}:{os.environ['PATH']}", "PYTHONPATH": str(place)}
    argv = [*program, str(SCRIPTS / script), *words]
    done = subprocess.run(argv, env=env, cwd=place, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


LIBRARY = "mpi_built = gloo_built = lambda: True\nnccl_built = lambda: False\n"
VERSION = '__version__ = "2.13.0"\n'
HELD = {"pytorch": "2.13.0"}  # the metadata of a build
FLOW = {"tensorflow": "2.13.0"}


@pytest.mark.parametrize(
    ("words", "metadata", "modules", "code", "says"),
    [
        ("pytorch , mpi gloo", HELD, "torch horovod.torch", 0, "built for pytorch 2.13.0, with mpi, gloo"),
        (",", None, "torch horovod.torch tensorflow", 0, "built for pytorch (this release keeps no"),
        (",", {}, "torch", 1, "built for no framework that is in the image"),
        (",", {"tensorflow": "2.21"}, "torch horovod.torch", 1, "of its build does not have pytorch"),
        (",", {"pytorch": "2.12"}, "torch horovod.torch", 1, "for pytorch 2.12, and 2.13.0 is in the image"),
        (",", HELD | FLOW, "torch tensorflow horovod.torch", 1, "horovod.tensorflow cannot be"),
        ("pytorch , nccl", HELD, "torch horovod.torch", 1, "it is built without nccl"),
        ("tensorflow , mpi", FLOW, "tensorflow horovod.tensorflow horovod.torch!", 0, "for tensorflow"),
        ("pytorch ,", FLOW, "tensorflow horovod.tensorflow horovod.torch!", 1, "library was not built"),
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
    found, said = run(tmp_path, "horovod_build.py", *words.split())
    assert (found, says in said) == (code, True), said


@pytest.mark.parametrize(
    ("program", "script", "prints", "code", "says"),
    [
        ("ompi_info", "openmpi.sh", "ompi:version:full:4.1.4\nmca:pmix:ext3x:version", 0, "speaks pmix"),
        ("ompi_info", "openmpi.sh", "ompi:version:full:4.1.4\nmca:pmix:s2:version", 0, "speaks pmi2"),
        ("ompi_info", "openmpi.sh", "ompi:version:full:4.1.4\nmca:pml:ob1:version", 1, "neither PMIx nor"),
        ("ompi_info", "openmpi.sh", "ompi:version:full:5.0.7\nmca:pml:ob1:version", 0, "5.0.7 speaks pmix"),
        ("horovodrun", "check_build.py", "    [X] NCCL\n    [ ] DDL", 0, "[X] NCCL"),
        ("horovodrun", "check_build.py", "    [ ] NCCL\n    [X] MPI", 1, "does not show NCCL"),
    ],
)  # fmt: skip
def test_what_programs_of_an_image_say_of_themselves(program, script, prints, code, says, tmp_path):
    (tmp_path / program).write_text(f"#!{sys.executable}\nprint({prints!r})\nraise SystemExit\n")
    (tmp_path / program).chmod(0o755)
    found, said = run(tmp_path, script)
    assert (found, says in said) == (code, True), said


FLAGS = "class _C:\n    _cuda_getArchFlags = lambda: '{}'\n"


@pytest.mark.parametrize(
    ("words", "torch", "code", "says"),
    [
        ("", FLAGS.format("sm_80 sm_90"), 0, "gpu-code torch sm_80 sm_90\ntorch: sm_80, sm_90\n"),
        ("", "class _C: pass\n", 0, "\n"),
        ("sm_90", "class _C: pass\n", 1, "torch has no code for sm_90\n"),
        ("sm_80 sm_120", FLAGS.format("sm_80 compute_90"), 0, "torch: sm_80, compute_90\n"),
        ("sm_86 sm_90", FLAGS.format("sm_80 compute_90"), 1, "no code for sm_86\n"),
    ],
)
def test_a_framework_that_was_built_for_cpus_claims_no_gpu_code(words, torch, code, says, tmp_path):
    """Beside another one with CUDA; else the image would be refused for every GPU."""
    (tmp_path / "torch.py").write_text(torch)
    if not words:
        flow = "class sysconfig:\n    get_build_info = dict\n"
        (tmp_path / "tensorflow.py").write_text(flow)
    found, said = run(tmp_path, "gpu_code.py", *words.split())
    assert (found, said.endswith(says)) == (code, True), said


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
    judge = runpy.run_path(str(SCRIPTS / "ranks.py"))["judge"]
    assert judge(ranks, controller, "mpi", 2, 2) == says


CALLS = {  # by name: a script, its result, its last line
    "wrong": ("import sys; print('first'); sys.exit('no good')", "failed", "no good"),
    "broken": ("1 / 0", "failed", "ZeroDivisionError: division by zero"),
    "killed": ("import os; os.kill(os.getpid(), 9)", "failed", "killed.py was ended by signal 9"),
    "shared": ("import sys; print('imported' if 'wave' in sys.modules else 'not')", "passed", "imported"),
}  # fmt: skip


def fed(lines: str) -> Results:
    results = Results()
    for line in lines.splitlines():
        results.feed(line)
    return results


def test_checks_run_in_forks_of_one_process_and_each_has_a_result(tmp_path):
    for name, (text, _, _) in CALLS.items():
        (tmp_path / f"{name}.py").write_text(text)
    calls = (f"{name} {name}.py" for name in CALLS)
    code, said = run(tmp_path, "forked.py", "wave no_such_module", *calls)
    assert code == 1
    assert {check.name: (check.outcome, check.message) for check in fed(said).checks} == {
        name: (outcome, says) for name, (_, outcome, says) in CALLS.items()
    }


def test_a_fact_without_a_value_is_none():
    """Any image can print it, and it must not end the command."""
    results = fed("toolkit-fact: gpu-code  \ntoolkit-fact: mpi \t\ntoolkit-fact: mpi pmix\n")
    assert (results.gpu_code, results.mpi) == ({}, ["pmix"])


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

    def start(argv: list[str], **_: object) -> shell.Result:
        starts.append(argv)
        return shell.Result(tuple(argv), code, printed.format(MARK), "")

    monkeypatch.setattr(shell, "run", start)
    monkeypatch.setattr(shell, "require_apptainer", lambda: "apptainer")
    monkeypatch.setattr("toolkit.images.verify.verdicts.CHECKS", CHECKS[3:])
    given = ImageCase(image=StoredImage(name="x", path="/x.sif"))
    given.labels = {}
    made = {verdict.name: verdict.outcome for verdict in verdicts(given)}
    assert outcomes.items() <= made.items()
    (argv,) = starts
    assert "exec" in argv, "as jobs start an image of others"


class Case(ImageCase):
    """An image that prints something when it runs checks."""

    held, printed, calls = Contents(), "", ""

    def _ask(self, results: Results, *scripts: str) -> Contents:
        self.calls = " ".join(scripts)
        for line in self.printed.splitlines():
            results.feed(line)
        return self.held


def case(held: Contents, printed: str = "", gpus: int = 0) -> Case:
    made = Case(image=StoredImage(name="x", path="/x.sif"), local_gpus=gpus)
    made.held, made.printed = held, printed
    return made


def contents(modules: str, programs: str = "") -> Contents:
    python = Python(path="python3", version="3.11", modules=tuple(modules.split()))
    return Contents(python="3.11", pythons=(python,), programs=tuple(programs.split()))


TORCH = contents("torch", "torchrun")
WHOLE = contents("torch horovod", "mpirun ompi_info horovodrun")


@pytest.mark.parametrize(
    ("held", "gpus", "names"),
    [
        (Contents(), 0, ""),
        (contents(""), 0, "user-site"),
        (TORCH, 2, "imports user-site ranks-gloo"),
        (WHOLE, 0, "imports user-site openmpi horovod-build ranks-mpi ranks-gloo"),
        (replace(TORCH, cuda="12.4"), 2, "imports user-site gpu-code ranks-gloo ranks-nccl"),
    ],
)
def test_an_image_of_others_gets_the_checks_that_it_can_take(held, gpus, names):
    given = case(held, gpus=gpus)
    assert given.results.checks == []
    made = [each.name for each in CHECKS if re.search(f"['k ]{each.name} ", given.calls)]
    assert made == names.split()


@pytest.mark.parametrize(
    ("printed", "outcome"),
    [
        ("ranks-mpi passed: right", "passed"),
        ("ranks-mpi passed: right\ntoolkit-check: ranks-mpi failed: wrong", "failed"),
        ("ranks-mpi failed: wrong\ntoolkit-fact: controller gloo", "unchecked"),
        ("other passed: ", "unchecked"),
    ],
)
def test_a_check_that_was_not_possible_says_nothing_of_an_image(printed, outcome):
    (ranks,) = (each for each in CHECKS if each.name == "ranks-mpi")
    assert ranks.only(case(WHOLE, f"toolkit-check: {printed}")).outcome == outcome


def ended(**results: Any) -> ScriptRun:
    return ScriptRun(Outcome(state="COMPLETED", exit_code=0, seconds=1.0, results=results))


@pytest.mark.parametrize(
    ("name", "gpus", "run", "outcome"),
    [
        ("gloo", 0, ended(passed=True), "passed"),
        ("gloo", 0, ended(passed=False, detail="wrong"), "failed"),
        ("gloo", 0, ended(), "failed"),
        ("gloo", 0, ScriptRun(refusal="no such partition"), "unchecked"),
        ("nccl", 1, ended(passed=True), "passed"),
        ("nccl", 0, ended(passed=True), "unchecked"),
        ("mpi", 0, ended(passed=True), "unchecked"),  # it has none
    ],
)
def test_ranks_on_nodes_sum_by_what_the_image_has(name, gpus, run, outcome):
    given = case(replace(TORCH, cuda="12.4"))
    given.nodes, given.gpus, given.run_ranks = 2, gpus, lambda *_: run
    (check,) = (each for each in CHECKS if each.name == f"nodes-{name}")
    assert check.only(given).outcome == outcome


RELEASE = "nvcr.io/nvidia/pytorch:24.05-py3"


@pytest.mark.parametrize(
    ("cuda", "drivers", "base", "compat", "outcome", "says"),
    [
        ("", (), "", False, "passed", "it needs no driver"),
        ("12.4", (), "", False, "unchecked", "no node with a GPU was asked"),
        ("12.4", ("550.54",), RELEASE, False, "passed", "550.54 for all of it, 550.54 is installed"),
        ("12.4", ("530.1",), RELEASE, False, "passed", "by CUDA's minor version compatibility"),
        ("12.4", ("470.82",), "", True, "unchecked", "by the compat package in the image"),
        ("12.4", ("550.54", "470.82"), "", False, "failed", "needs driver 525 or newer, 470.82 is installed"),
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
    def verdict(name: str, outcome: Any, site: str = "") -> Verdict:
        return Verdict(name=name, outcome=outcome, site=site)

    before = (verdict("a", "passed"), verdict("b", "passed", "x"))
    now = (verdict("a", "unchecked"), verdict("b", "failed", "y"), verdict("c", "unchecked"))
    assert merged(before, now) == (*before, *now[1:])
