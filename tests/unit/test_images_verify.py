"""Verification: what Horovod's three witnesses say together, sums over ranks, drivers, and what is remembered."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from toolkit.config import package_directory
from toolkit.images.verify.case import ImageCase
from toolkit.images.verify.checks import contents
from toolkit.images.verify.checks.site import judge_driver
from toolkit.images.verify.own_checks import Results, usual_checks
from toolkit.images.verify.runner import ImageContents
from toolkit.images.verify.verdicts import merged
from toolkit.model.image import Check, Verdict

SCRIPTS = package_directory("images/checks")
HOROVOD = runpy.run_path(str(SCRIPTS / "horovod_build.py"))
RANKS = runpy.run_path(str(SCRIPTS / "ranks.py"))

HELD = {"pytorch": "2.13.0"}  # the metadata of a build


@pytest.mark.parametrize(
    ("reason", "metadata", "version", "required", "says"),
    [
        ("", HELD, "2.13.0", True, ""),
        ("", None, "2.13.0", True, ""),
        ("", {"pytorch": ""}, "2.13.0", True, ""),
        ("", {"tensorflow": "2.21"}, "2.13.0", True, "the metadata of its build does not have"),
        ("", HELD, "2.14.0", False, "was built for pytorch 2.13.0, and 2.14.0 is in the image"),
        ("ImportError: not built", HELD, "2.13.0", False, "cannot be imported (ImportError: not"),
        ("ImportError: not built", {}, "2.13.0", True, "cannot be imported (ImportError: not"),
        ("ImportError: not built", None, "2.13.0", False, ""),
    ],
)
def test_one_witness_of_horovods_build_is_not_enough(
    reason: str, metadata: Any, version: str, required: bool, says: str
) -> None:
    found = HOROVOD["judge"]("pytorch", reason, metadata, version, required)
    assert says in found
    assert bool(says) == bool(found)


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
def test_a_sum_over_ranks_is_looked_at_closely(
    changes: list[dict[str, Any]], controller: str, says: str
) -> None:
    ranks = [
        {"rank": rank, "host": "ab"[rank], "right": True, "driver": "", **change}
        for rank, change in enumerate(changes)
    ]
    assert RANKS["judge"](ranks, controller, "mpi", 2, 2) == says


CALLS = {  # by name: a script, its result, its last line
    "fine": ("print('one'); print('two')", "passed", "two"),
    "wrong": ("import sys; sys.exit('no good')", "failed", "no good"),
    "broken": ("1 / 0", "failed", "ZeroDivisionError: division by zero"),
    "killed": ("import os; os.kill(os.getpid(), 9)", "failed", "killed.py was ended by signal 9"),
    "shared": ("import sys; print('imported' if 'wave' in sys.modules else 'not')", "passed", "imported"),
}  # fmt: skip


def test_checks_run_in_forks_of_one_process_and_each_has_a_result(tmp_path: Path) -> None:
    for name, (text, _, _) in CALLS.items():
        (tmp_path / f"{name}.py").write_text(text)
    words = ["wave no_such_module", *(f"{name} {name}.py" for name in CALLS)]
    argv = [sys.executable, str(SCRIPTS / "forked.py"), *words]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    results = Results()
    for line in done.stdout.splitlines():
        results.feed(line)
    assert done.returncode == 1
    assert {check.name: (check.passed, check.detail) for check in results.checks} == {
        name: (outcome == "passed", says) for name, (_, outcome, says) in CALLS.items()
    }


TORCH = ImageContents(python="3.11", modules=("torch",), programs=("torchrun",))
WHOLE = ImageContents(
    python="3.11", modules=("torch", "horovod"), programs=("mpirun", "ompi_info", "horovodrun")
)


@pytest.mark.parametrize(
    ("image", "gpus", "names"),
    [
        (ImageContents(), 0, ""),
        (ImageContents(python="3.11"), 0, "user-site"),
        (TORCH, 2, "imports user-site ranks-gloo"),
        (WHOLE, 0, "imports user-site openmpi horovod-build ranks-mpi ranks-gloo"),
        (replace(TORCH, cuda="12.4"), 2, "imports user-site ranks-gloo ranks-nccl"),
    ],
)  # fmt: skip
def test_an_image_of_others_gets_the_checks_that_it_can_take(
    image: ImageContents, gpus: int, names: str
) -> None:
    calls = usual_checks(image, image.modules, gpus, own=False)
    assert [call.name for call in calls] == names.split()


@pytest.mark.parametrize(
    ("check", "controllers", "outcome"),
    [
        (Check(name="ranks-mpi", passed=True, detail="right"), [], "passed"),
        (Check(name="ranks-mpi", passed=False, detail="wrong"), ["mpi"], "failed"),
        (Check(name="ranks-mpi", passed=False, detail="wrong"), ["gloo"], "unchecked"),
        (Check(name="other", passed=True), [], "unchecked"),
    ],
)
def test_a_check_that_was_not_possible_says_nothing_of_an_image(
    check: Check, controllers: list[str], outcome: str
) -> None:
    case = SimpleNamespace(
        results=Results(checks=[check], controllers=controllers),
        no_python="",
        contents=WHOLE,
        has=WHOLE.modules.__contains__,
        controllers=tuple(controllers),
    )
    (ranks,) = (each for each in contents.USUAL if each.name == "ranks-mpi")
    assert ranks.only(cast("ImageCase", case)).outcome == outcome


@pytest.mark.parametrize(
    ("cuda", "drivers", "made_for", "compat", "outcome"),
    [
        ("", (), None, False, "passed"),
        ("12.4", (), None, False, "unchecked"),
        ("12.4", ("550.54",), None, False, "passed"),
        ("12.4", ("470.82",), None, False, "failed"),
        ("12.4", ("470.82",), None, True, "unchecked"),
        ("12.4", ("550.54", "470.82"), None, False, "failed"),
        ("12.4", ("530.1",), "550.54", False, "passed"),
    ],
)
def test_a_driver_against_cuda(
    cuda: str, drivers: tuple[str, ...], made_for: str | None, compat: bool, outcome: str
) -> None:
    assert judge_driver(cuda, drivers, made_for, compat=compat).outcome == outcome


def test_what_could_not_be_checked_does_not_put_out_what_was_found() -> None:
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
