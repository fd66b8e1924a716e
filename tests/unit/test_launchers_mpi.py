"""The launchers of MPI and Horovod: what they refuse before anything is queued, and how they read their failures."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.samples import FACTS, MANIFEST, first, make_case
from toolkit.errors import LauncherMismatchError, PlanError
from toolkit.launchers import get
from toolkit.model.image import Check, Manifest, Verdict
from toolkit.model.source import Source
from toolkit.planning.plan import decide

BUILD = "built for pytorch 2.13.0+cpu, with {}"


def image(
    *,
    frameworks: dict[str, str] | None = None,
    mpi: tuple[str, ...] = ("pmix",),
    operations: str = "mpi, gloo",
) -> Manifest:
    held = {"horovod": "0.28.1", "torch": "2.13.0"} if frameworks is None else frameworks
    verdict = Verdict(name="horovod-build", outcome="passed", detail=BUILD.format(operations))
    return replace(MANIFEST, frameworks=held, mpi=mpi, verified=(verdict,))


OPEN_MPI = replace(FACTS, mpirun="mpirun (Open MPI) 4.1.4")


def findings(launcher: str, manifest: Manifest | None, **changes: Any) -> list[str]:
    """The causes for which a job is refused with the code of a launcher that does not fit; none where it is not."""
    try:
        decide(make_case({"launcher": launcher}, manifest=manifest, **changes))
    except PlanError as error:
        return [
            finding.cause
            for finding in error.findings
            if error.exit_code == LauncherMismatchError.exit_code
        ]
    return []


@pytest.mark.parametrize("launcher", ["horovod", "horovod-gloo", "horovod-elastic"])
def test_an_image_without_horovod_is_refused(launcher: str) -> None:
    (cause,) = findings(launcher, image(frameworks={"torch": "2.13.0"}))
    assert f"{launcher} needs horovod" in cause
    assert findings(launcher, image()) == []
    assert findings(launcher, None) == [], "of a foreign image nobody knows what it holds"


@pytest.mark.parametrize(
    ("launcher", "operations", "lacks"),
    [
        ("horovod", "gloo", "MPI"),
        ("horovod-gloo", "mpi", "Gloo"),
        ("horovod-elastic", "mpi", "Gloo"),
    ],
)
def test_a_horovod_built_without_what_carries_it_is_refused(
    launcher: str, operations: str, lacks: str
) -> None:
    (cause,) = findings(launcher, image(operations=operations))
    assert f"built with {lacks}" in cause
    assert findings(launcher, image(operations="mpi, gloo, nccl")) == []


@pytest.mark.parametrize("launcher", ["horovod", "horovod-gloo", "mpirun"])
def test_a_horovod_built_for_another_framework_is_refused(launcher: str) -> None:
    script = Source(python=True, imports=("horovod.tensorflow.keras", "tensorflow"))
    (cause,) = findings(launcher, image(), source=script, facts=OPEN_MPI)
    assert "imports horovod.tensorflow" in cause
    assert "built for pytorch" in cause
    both = replace(
        image(),
        verified=(
            replace(
                image().verified[0],
                detail="built for pytorch 2.13.0, tensorflow 2.21.0, with mpi, gloo",
            ),
        ),
    )
    assert findings(launcher, both, source=script, facts=OPEN_MPI) == []


def test_what_a_build_said_is_read_from_old_manifests_too() -> None:
    old = replace(
        MANIFEST, checks=(Check(name="horovod-build", passed=True, detail=BUILD.format("mpi")),)
    )
    (cause,) = findings("horovod-gloo", old)
    assert "this image's has MPI" in cause
    assert findings("horovod-gloo", MANIFEST) == [], "of this build nothing was recorded"


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
def test_the_pmi_that_both_speak(
    offered: tuple[str, ...] | None, spoken: tuple[str, ...], chosen: str
) -> None:
    decided = decide(
        make_case(
            {"launcher": "horovod"}, manifest=image(mpi=spoken), facts=replace(FACTS, mpi=offered)
        )
    )
    assert decided.launch.mpi == chosen


def test_no_common_pmi_is_refused() -> None:
    (cause,) = findings("horovod", image(), facts=replace(FACTS, mpi=("none", "pmi2")))
    assert "offers none, pmi2" in cause
    assert "speaks pmix" in cause


def test_gloo_uses_the_interface_of_the_site() -> None:
    decided = decide(make_case({"launcher": "horovod-gloo"}))
    assert decided.environment["HOROVOD_GLOO_IFACE"] == "eth0"
    assert decided.launch.mpi is None
    unknown = decide(
        make_case({"launcher": "horovod-gloo"}, site=replace(make_case().site, interface=None))
    )
    assert "HOROVOD_GLOO_IFACE" not in unknown.environment


@pytest.mark.parametrize("launcher", ["horovod", "horovod-gloo", "mpi"])
def test_the_task_that_srun_names_first_is_the_one_that_failed(launcher: str) -> None:
    lines = [
        "srun: error: nid002: task 2: Exited with exit code 3",
        "srun: error: nid001: tasks 0-1: Terminated",
    ]
    failure = first(get(launcher).failures([("", lines)]))
    assert failure is not None
    assert (failure.rank, failure.host, failure.exit_code) == (2, "nid002", 3)


@pytest.mark.parametrize("launcher", ["mpi", "mpirun"])
def test_an_image_without_mpi_is_refused(launcher: str) -> None:
    (cause,) = findings(launcher, image(mpi=()), facts=OPEN_MPI)
    assert f"{launcher} needs an MPI" in cause
    assert findings(launcher, image(frameworks={}), facts=OPEN_MPI) == []


def test_a_script_of_mpi4py_needs_it_in_the_image() -> None:
    script = Source(python=True, imports=("mpi4py", "mpi4py.MPI"))
    (cause,) = findings("mpi", image(), source=script)
    assert "needs mpi4py" in cause
    assert findings("mpi", image(frameworks={"mpi4py": "4.1.2"}), source=script) == []


def test_mpirun_needs_the_horovod_of_a_script_that_uses_it() -> None:
    script = Source(python=True, imports=("horovod.torch",))
    assert (
        "needs horovod"
        in findings("mpirun", image(frameworks={}), facts=OPEN_MPI, source=script)[0]
    )
    assert (
        "built with MPI"
        in findings("mpirun", image(operations="gloo"), facts=OPEN_MPI, source=script)[0]
    )


def test_a_site_without_mpirun_is_refused_unless_a_module_may_bring_it() -> None:
    with pytest.raises(PlanError) as caught:
        decide(make_case({"launcher": "mpirun"}))
    (finding,) = caught.value.findings
    assert "no mpirun" in finding.cause
    assert "--launcher horovod" in str(finding.next_step)
    assert (
        decide(
            make_case(
                {"launcher": "mpirun"}, site=replace(make_case().site, modules=("openmpi/4.1.4",))
            )
        ).warnings
        == ()
    )


def test_another_mpirun_than_that_of_open_mpi_is_refused() -> None:
    (cause,) = findings("mpirun", image(), facts=replace(FACTS, mpirun="HYDRA build details:"))
    assert "not Open MPI" in cause


@pytest.mark.parametrize(
    ("outside", "warned"), [("4.1.4", False), ("4.0.2", False), ("5.0.1", False), ("3.1.0", True)]
)
def test_open_mpi_of_another_major_version_is_warned_of_unless_it_was_tried(
    outside: str, warned: bool
) -> None:
    said = Verdict(name="openmpi", outcome="passed", detail="Open MPI 4.1.4 speaks pmix")
    decided = decide(
        make_case(
            {"launcher": "mpirun"},
            manifest=replace(image(), verified=(said,)),
            facts=replace(FACTS, mpirun=f"mpirun (Open MPI) {outside}"),
        )
    )
    assert any("Open MPI" in warning for warning in decided.warnings) is warned


def test_mpirun_fills_each_node_with_its_ranks() -> None:
    words = decide(make_case({"launcher": "mpirun"}, facts=OPEN_MPI)).launch.options
    assert words[:6] == ("-n", "4", "--map-by", "ppr:2:node", "--bind-to", "none")
    assert words[words.index("btl_tcp_if_include") : words.index("btl_tcp_if_include") + 2] == (
        "btl_tcp_if_include",
        "eth0",
    )


@pytest.mark.parametrize(
    ("lines", "rank", "host", "code"),
    [
        (
            [
                "The first process to do so was:",
                "  Process name: [[20446,1],2]",
                "  Exit code:    3",
            ],
            2,
            None,
            3,
        ),
        (["Process name: [prterun-nid001-681@1,1]", "   Exit code:    1"], 1, None, 1),
        (
            [
                "mpirun noticed that process rank 1 with PID 1314 on node nid002 exited on signal 9 (Killed)."
            ],
            1,
            "nid002",
            137,
        ),
        (
            [
                "prterun noticed that process rank 1 with PID 60 on node nid001 exited on",
                "signal 9 (Killed).",
            ],
            1,
            "nid001",
            137,
        ),
        (
            ["MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD", "with errorcode 7."],
            3,
            None,
            7,
        ),
    ],
)
def test_mpirun_tells_the_rank_that_failed_first(
    lines: list[str], rank: int, host: str | None, code: int
) -> None:
    failure = first(get("mpirun").failures([("", ["-----", *lines, "-----"])]))
    assert failure is not None
    assert (failure.rank, failure.host, failure.exit_code) == (rank, host, code)
    assert first(get("mpirun").failures([("", ["all is well"]), ("nid001", lines)])) is None


def test_elastic_ranks_follow_the_range_of_nodes() -> None:
    decided = decide(make_case({"launcher": "horovod-elastic", "nodes": "1:3", "max_restarts": 4}))
    assert decided.launch.options == ("2", "6", "4")
    assert dict(decided.directives)["nodes"] == "1-3"
    assert ("no-kill", "") in decided.directives
    assert decide(make_case({"launcher": "horovod-elastic"})).launch.options == ("4", "4", "")


def test_a_script_that_could_not_go_on_is_refused() -> None:
    fixed = Source(python=True, imports=("horovod.torch",), calls=("horovod.torch.init",))
    (cause,) = findings("horovod-elastic", image(), source=fixed)
    assert "elastic.run" in cause
    assert (
        findings(
            "horovod-elastic", image(), source=fixed._replace(calls=("horovod.torch.elastic.run",))
        )
        == []
    )


def test_the_failure_that_ends_an_elastic_run_is_the_one_that_counts() -> None:
    survived = ["elastic: rank 3 on nid002: killed by signal 9", "elastic: 2 ranks on nid001"]
    ended = [
        "elastic: rank 1 on nid001: exit code 4",
        "elastic: failed: rank 1 on nid001: exit code 4",
    ]
    failure = first(get("horovod-elastic").failures([("", [*survived, *ended])]))
    assert failure is not None
    assert (failure.rank, failure.host, failure.exit_code) == (1, "nid001", 4)
    assert first(get("horovod-elastic").failures([("", survived)])) is None
    others = ["elastic: rank 0 on nid001: killed by signal 6", *ended]
    failures = get("horovod-elastic").failures([("", [*survived, *others])])
    assert [(failure.rank, failure.exit_code) for failure in failures] == [(1, 4), (0, 134)]
