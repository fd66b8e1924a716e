"""Verification: what Horovod's three witnesses say together, sums over ranks, drivers, and what is remembered."""

from __future__ import annotations

from typing import Any

import pytest

from toolkit.images.verify.checks.horovod_build import judge as judge_horovod
from toolkit.images.verify.checks.ranks import judge as judge_ranks
from toolkit.images.verify.checks.site import judge_driver
from toolkit.images.verify.verdicts import merged
from toolkit.model.image import Verdict

CHECK_BUILD = """\
Horovod v0.28.1:

Available Frameworks:
    [{tf}] TensorFlow
    [{torch}] PyTorch
    [ ] MXNet

Available Controllers:
    [X] MPI
    [X] Gloo

Available Tensor Operations:
    [ ] NCCL
    [X] MPI
    [X] Gloo
"""


def facts(**changes: Any) -> dict[str, Any]:
    usual = {
        "output": CHECK_BUILD.format(tf=" ", torch="X"),
        "code": 0,
        "metadata": {"pytorch": "2.13.0"},
        "modules": {"pytorch": ""},
    }
    return {**usual, **changes}


@pytest.mark.parametrize(
    ("changes", "promised", "outcome", "says"),
    [
        ({}, ("pytorch",), "passed", "built for pytorch 2.13.0, with mpi, gloo"),
        (
            {"metadata": {"tensorflow": "2.21"}},
            ("pytorch",),
            "failed",
            "the metadata of its build does not have it",
        ),
        (
            {"modules": {"pytorch": "ImportError: not built"}},
            ("pytorch",),
            "failed",
            "cannot be imported",
        ),
        (
            {"output": CHECK_BUILD.format(tf=" ", torch=" ")},
            ("pytorch",),
            "failed",
            "--check-build does not show pytorch",
        ),
        (
            {"metadata": {"pytorch": "2.12.0"}},
            ("pytorch",),
            "failed",
            "it was built for torch 2.12.0, and 2.13.0 is in the image",
        ),
        ({"code": 1, "output": "boom"}, (), "failed", "ended with 1: boom"),
        (
            {"output": CHECK_BUILD.format(tf="X", torch="X")},
            (),
            "passed",
            "also shows tensorflow, which is not in the image",
        ),
        ({"metadata": None}, ("pytorch",), "passed", "keeps no metadata"),
        ({}, ("tensorflow",), "failed", "it should work with tensorflow"),
    ],
)
def test_one_witness_alone_is_not_believed(
    changes: dict[str, Any], promised: tuple[str, ...], outcome: str, says: str
) -> None:
    found = judge_horovod(facts(**changes), promised, {"torch": "2.13.0"})
    assert found.outcome == outcome, found
    assert says in found.message


RANKS = {"ranks": 2, "right": True, "hosts": ["a", "b"], "controller": "mpi", "drivers": []}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, None),
        ({"ranks": 1, "hosts": ["a"]}, "1 rank found each other, not 2"),
        ({"hosts": ["a", "a"]}, "1 node, not 2"),
        ({"controller": "gloo"}, "it went by gloo, not by mpi"),
        ({"right": False}, "the sum over all ranks is wrong"),
    ],
)
def test_a_sum_over_ranks_is_looked_at_closely(changes: dict[str, Any], says: str | None) -> None:
    found = judge_ranks({**RANKS, **changes}, 2, "mpi", "nobody told", nodes=2)
    assert found.outcome == ("passed" if says is None else "failed")
    assert says is None or says in found.message
    assert judge_ranks(None, 2, "mpi", "nobody told").message == "nobody told"


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
