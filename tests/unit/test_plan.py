"""Plans: what is decided where nobody says, and everything that is refused before a job queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.samples import LOCAL, findings, make_case
from toolkit.errors import (
    ImageMissingError,
    PlanError,
    ShapeError,
    UnknownLauncherError,
    UnknownPartitionError,
    UsageError,
)
from toolkit.model.run import Plan
from toolkit.planning.plan import decide


def sources(plan: Plan) -> list[str]:
    return [str(bind) for bind in plan.container.binds]


PROJECT, DATA = "/home/user/project", replace(LOCAL, datasets={"imagenet": "/apps/imagenet"})
ON_GPUS = {"gpus": 4, "ntasks_per_node": None, "partition": "cas_v100_4"}
MINE = {"datasets": ("imagenet",), "bind": ("/mine:/data/imagenet",)}
# The settings, the rest of the case, and what is decided.
DECIDED: list[tuple[dict[str, Any], dict[str, Any], Callable[[Plan], Any], Any]] = [
    # ranks and CPUs follow the GPUs
    (ON_GPUS, {}, lambda plan: (plan.ranks_per_node, plan.cpus_per_rank), (4, 10)),
    (ON_GPUS, {}, lambda plan: plan.origins["ntasks_per_node"], "one per GPU"),
    # a foreign image is entered by exec, and ours by run
    ({}, {}, lambda plan: plan.container.action, "run"),
    ({}, {"manifest": None}, lambda plan: plan.container.action, "exec"),
    # the site and the user have their say over the environment
    ({"env": {"OMP_NUM_THREADS": "7"}}, {}, lambda plan: plan.environment["OMP_NUM_THREADS"], "7"),
    ({}, {}, lambda plan: plan.environment["OMPI_MCA_mpi_yield_when_idle"], "1"),
    # a source above the directory is seen at its own place, and no directory is bound twice
    ({"bind": ("../data", "x/../y:/y")}, {"cwd": "/home/me/project"}, lambda plan: sources(plan)[-2:],
     ["/home/me/project/../data:/home/me/data", "/home/me/project/x/../y:/y"]),
    ({}, {"folder": f"{PROJECT}/src", "run": "/scratch/runs/x-0001"}, sources, [PROJECT, "/scratch/runs/x-0001"]),
    # data of the site is bound where it has it, and the user does not bind it
    ({"datasets": ("imagenet",)}, {"site": DATA}, lambda plan: sources(plan)[-1], "/apps/imagenet:/data/imagenet:ro"),
    ({"datasets": ("imagenet",)}, {}, sources, [PROJECT]),
    (MINE, {"site": DATA}, lambda plan: sources(plan)[1:], ["/mine:/data/imagenet"]),
]  # fmt: skip


@pytest.mark.parametrize(("job", "given", "value", "expected"), DECIDED, ids=range(len(DECIDED)))
def test_what_is_decided(job, given, value, expected):
    assert value(decide(make_case(job, **given))) == expected


@pytest.mark.parametrize(
    ("job", "kind", "words"),
    [
        ({"time": "soon"}, UsageError, "not a time"),
        ({"partition": "mian"}, UnknownPartitionError, "close: main"),
        ({"launcher": "torchrn"}, UnknownLauncherError, "close: torchrun"),
        ({"env": {"A B": "c"}}, UsageError, "variable"),
        ({"bind": ("/a:b",)}, UsageError, "absolute"),
        ({"bind": ("/a:/b:rx",)}, UsageError, "SRC:DST"),
        ({"bind": ("/tmp:/../../x",)}, UsageError, "absolute path without .."),
        ({"bind": ("/tmp:/data/../x:ro",)}, UsageError, "--bind /tmp:/x"),
        ({"comment": ""}, UsageError, "empty"),
    ],
)
def test_what_cannot_run_is_refused(job, kind, words):
    found = findings(job)
    assert [type(finding) for finding in found] == [kind]
    assert words in f"{found[0].cause} {found[0].next_step} close: {found[0].close}"
    assert found[0].place
    assert found[0].next_step


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
