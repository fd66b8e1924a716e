"""The launchers of MPI and Horovod: what they refuse before anything is queued, and how they read their failures."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.samples import FACTS, MANIFEST, inputs
from toolkit.errors import LauncherMismatchError, PlanError
from toolkit.launchers import built, get
from toolkit.model.image import Check, Manifest, Verdict
from toolkit.plan import plan

BUILD = "built for pytorch 2.13.0+cpu, with {}"


def image(*, frameworks: dict[str, str] | None = None, mpi: tuple[str, ...] = ("pmix",), operations: str = "mpi, gloo") -> Manifest:
    held = {"horovod": "0.28.1", "torch": "2.13.0"} if frameworks is None else frameworks
    verdict = Verdict(name="horovod-build", outcome="passed", detail=BUILD.format(operations))
    return replace(MANIFEST, frameworks=held, mpi=mpi, verified=(verdict,))


def findings(launcher: str, manifest: Manifest | None, **changes: Any) -> list[str]:
    """The causes for which a job is refused with the code of a launcher that does not fit; none where it is not."""
    try:
        plan(inputs({"launcher": launcher}, manifest=manifest, **changes))
    except PlanError as error:
        return [finding.cause for finding in error.findings if error.exit_code == LauncherMismatchError.exit_code]
    return []


@pytest.mark.parametrize("launcher", ["horovod", "horovod-gloo"])
def test_an_image_without_horovod_is_refused(launcher: str) -> None:
    (cause,) = findings(launcher, image(frameworks={"torch": "2.13.0"}))
    assert f"{launcher} needs horovod" in cause
    assert findings(launcher, image()) == []
    assert findings(launcher, None) == [], "of a foreign image nobody knows what it holds"


@pytest.mark.parametrize(("launcher", "operations", "lacks"), [("horovod", "gloo", "MPI"), ("horovod-gloo", "mpi", "Gloo")])
def test_a_horovod_built_without_what_carries_it_is_refused(launcher: str, operations: str, lacks: str) -> None:
    (cause,) = findings(launcher, image(operations=operations))
    assert f"built with {lacks}" in cause
    assert findings(launcher, image(operations="mpi, gloo, nccl")) == []


def test_what_a_build_said_is_read_from_old_and_new_manifests() -> None:
    old = replace(MANIFEST, checks=(Check(name="horovod-build", passed=True, detail=BUILD.format("mpi, gloo")),))
    assert built.operations(old) == ("mpi", "gloo")
    assert built.operations(image(operations="gloo")) == ("gloo",)
    assert built.operations(MANIFEST) is None
    assert built.operations(None) is None


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
def test_the_pmi_that_both_speak(offered: tuple[str, ...] | None, spoken: tuple[str, ...], chosen: str) -> None:
    decided = plan(inputs({"launcher": "horovod"}, manifest=image(mpi=spoken), facts=replace(FACTS, mpi=offered)))
    assert decided.launch.mpi == chosen


def test_no_common_pmi_is_refused() -> None:
    (cause,) = findings("horovod", image(), facts=replace(FACTS, mpi=("none", "pmi2")))
    assert "offers none, pmi2" in cause
    assert "speaks pmix" in cause


def test_gloo_uses_the_interface_of_the_site() -> None:
    decided = plan(inputs({"launcher": "horovod-gloo"}))
    assert decided.environment["HOROVOD_GLOO_IFACE"] == "eth0"
    assert decided.launch.mpi is None
    unknown = plan(inputs({"launcher": "horovod-gloo"}, site=replace(inputs().site, interface=None)))
    assert "HOROVOD_GLOO_IFACE" not in unknown.environment


@pytest.mark.parametrize("launcher", ["horovod", "horovod-gloo"])
def test_the_task_that_srun_names_first_is_the_one_that_failed(launcher: str) -> None:
    lines = ["srun: error: nid002: task 2: Exited with exit code 3", "srun: error: nid001: tasks 0-1: Terminated"]
    failure = get(launcher).first_failure([("", lines)])
    assert failure is not None
    assert (failure.rank, failure.host, failure.exit_code) == (2, "nid002", 3)
