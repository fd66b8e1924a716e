"""Plans: what is decided where nobody says, and everything that is refused before a job queues."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.samples import LOCAL, findings, make_case
from toolkit.errors import (
    ImageMissingError,
    PlanError,
    ShapeError,
    ToolkitError,
    UnknownLauncherError,
    UnknownPartitionError,
    UsageError,
)
from toolkit.model.base import from_json, to_json
from toolkit.model.plan import Container, Plan
from toolkit.planning.plan import decide


def test_torchrun_starts_one_agent_with_the_cpus_of_all_its_ranks() -> None:
    decided = decide(make_case({"cpus_per_task": 2}))
    assert dict(decided.directives)["ntasks-per-node"] == "1"
    assert dict(decided.directives)["cpus-per-task"] == "4"
    assert decided.ranks_per_node == 2
    assert decided.environment["OMP_NUM_THREADS"] == "2"


def test_ranks_and_cpus_follow_the_gpus() -> None:
    decided = decide(make_case({"gpus": 4, "ntasks_per_node": None, "partition": "cas_v100_4"}))
    assert (decided.ranks_per_node, decided.cpus_per_rank) == (4, 10)
    assert dict(decided.directives)["gres"] == "gpu:4"
    assert decided.origins["ntasks_per_node"] == "one per GPU"
    assert decided.shape == "2 nodes x 4 GPUs"


def test_a_foreign_image_is_entered_by_exec_and_ours_by_run() -> None:
    assert decide(make_case()).container.action == "run"
    assert decide(make_case(manifest=None)).container.action == "exec"


def test_a_plan_survives_being_written() -> None:
    decided = decide(make_case({"gpus": 2, "bind": ("/data:/d:ro",), "env": {"A": "b"}}))
    assert from_json(to_json(decided), Plan) == decided


@pytest.mark.parametrize(
    ("job", "kind", "words"),
    [
        ({"nodes": 3}, ShapeError, "has 2 node"),
        ({"gpus": 8}, ShapeError, "has 2 GPU"),
        ({"cpus_per_task": 9}, ShapeError, "CPU"),
        ({"time": "2-00:00:00"}, ShapeError, "1440 minutes"),
        ({"time": "soon"}, UsageError, "not a time"),
        ({"partition": "mian"}, UnknownPartitionError, "no partition"),
        ({"launcher": "torchrn"}, UnknownLauncherError, "no launcher"),
        ({"env": {"A B": "c"}}, UsageError, "variable"),
        ({"bind": ("/a:b",)}, UsageError, "absolute"),
        ({"bind": ("/a:/b:rx",)}, UsageError, "SRC:DST"),
        ({"bind": ("/tmp:/../../x",)}, UsageError, "absolute path without .."),
        ({"bind": ("/tmp:/data/../x:ro",)}, UsageError, "--bind /tmp:/x"),
        ({"comment": ""}, UsageError, "empty"),
    ],
)
def test_what_cannot_run_is_refused(
    job: dict[str, Any], kind: type[ToolkitError], words: str
) -> None:
    found = findings(job)
    assert [type(finding) for finding in found] == [kind]
    assert words in f"{found[0].cause} {found[0].next_step}"
    assert found[0].place
    assert found[0].next_step


def test_a_source_above_the_directory_is_seen_at_its_own_place() -> None:
    bind = decide(
        make_case({"bind": ("../data", "x/../y:/y")}, cwd="/home/me/project")
    ).container.binds
    assert [(one.source, one.target) for one in bind[-2:]] == [
        ("/home/me/project/../data", "/home/me/data"),
        ("/home/me/project/x/../y", "/y"),
    ]


def test_the_nearest_partition_and_launcher_are_named() -> None:
    assert findings({"partition": "mian"})[0].close == "main"
    assert findings({"launcher": "torchrn"})[0].close == "torchrun"


def test_everything_wrong_is_said_at_once_with_the_code_for_several() -> None:
    missing = ImageMissingError("not built", place="--image")
    with pytest.raises(PlanError) as caught:
        decide(make_case({"nodes": 9, "gpus": 8, "launcher": "mpirum"}, findings=[missing]))
    kinds = {type(finding) for finding in caught.value.findings}
    assert kinds == {ImageMissingError, ShapeError, UnknownLauncherError}
    assert caught.value.exit_code == PlanError.exit_code


def test_findings_of_one_kind_keep_its_exit_code() -> None:
    with pytest.raises(PlanError) as caught:
        decide(make_case({"nodes": 9, "gpus": 8}))
    assert caught.value.exit_code == ShapeError.exit_code


def test_no_directory_is_bound_twice() -> None:
    decided = decide(make_case(folder="/home/user/project/src", run="/scratch/runs/x-0001"))
    assert [bind.source for bind in decided.container.binds] == [
        "/home/user/project",
        "/scratch/runs/x-0001",
    ]


def test_the_site_and_the_user_have_their_say_over_the_environment() -> None:
    decided = decide(make_case({"env": {"OMP_NUM_THREADS": "7"}}))
    assert decided.environment["OMP_NUM_THREADS"] == "7"
    assert (
        decided.environment["OMPI_MCA_mpi_yield_when_idle"]
        == LOCAL.environment["OMPI_MCA_mpi_yield_when_idle"]
    )


def test_data_of_the_site_is_bound_where_it_has_it() -> None:
    from msgspec.structs import replace

    site = replace(LOCAL, datasets={"imagenet": "/apps/imagenet"})
    assert (
        str(decide(make_case({"datasets": ("imagenet",)}, site=site)).container.binds[-1])
        == "/apps/imagenet:/data/imagenet:ro"
    )
    assert len(decide(make_case({"datasets": ("imagenet",)})).container.binds) == 1, (
        "a site without it"
    )
    own = decide(
        make_case({"datasets": ("imagenet",), "bind": ("/mine:/data/imagenet",)}, site=site)
    ).container.binds
    assert [str(bind) for bind in own[1:]] == ["/mine:/data/imagenet"]


def test_a_plan_of_an_older_version_shows_the_file_of_its_image() -> None:
    old = {"name": "pytorch", "where": "in pytorch", "prefix": "APPTAINERENV_"}
    shown = [
        from_json(json.dumps(old | more).encode(), Container).shown
        for more in ({"image": "/images/pytorch.sif"}, {"image": "docker.io/pytorch:2"}, {})
    ]
    assert shown == ["pytorch.sif", "pytorch", "pytorch"]
