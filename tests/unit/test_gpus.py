"""`--gpus`, `--gpus-per-node`, `--mem` and `--env NAME`: what they mean here and in Slurm."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.samples import FACTS, make_case
from toolkit.cli.options import flags
from toolkit.errors import PlanError, ToolkitError, UsageError
from toolkit.model.case import Case
from toolkit.model.job import Job
from toolkit.model.plan import Plan
from toolkit.model.site import Facts
from toolkit.planning import settings
from toolkit.planning.plan import decide, with_gpus
from toolkit.planning.settings import Layer, Settings
from toolkit.rules import Judgement, judge
from toolkit.units import megabytes

ON_4 = {"partition": "cas_v100_4", "ntasks_per_node": None}  # its nodes have 4 GPUs


def planned(job: dict[str, Any]) -> Plan:
    return decide(make_case({**ON_4, **job}))


@pytest.mark.parametrize(
    ("job", "on_each", "says"),
    [
        ({"gpus": 4}, 4, "4 on each of 2 nodes, 8 in all"),  # as it has always been here
        ({"gpus": 2}, 2, "2 on each of 2 nodes, 4 in all"),
        ({"gpus": 8}, 4, "number for the job, as in Slurm: 4 on each of 2 nodes"),
        ({"gpus": 6}, 3, "number for the job, as in Slurm: 3 on each of 2 nodes"),
        ({"gpus": 12, "nodes": 3}, 4, "4 on each of 3 nodes"),
        ({"gpus": 4, "nodes": "1:2", "launcher": "torchrun"}, 4, "4 on each node"),
        ({"gpus": 4, "nodes": 1}, 4, ""),  # both readings are the same
        ({"gpus_per_node": 4}, 4, ""),
        ({"gpus_per_node": 4, "gpus": 8}, 4, ""),
        ({"gpus": 0}, 0, ""),
    ],
)
def test_gpus_are_read_as_slurm_does_where_that_can_be_told(
    job: dict[str, Any], on_each: int, says: str
) -> None:
    decided = planned(job)
    assert decided.gpus_per_node == on_each
    assert dict(decided.directives).get("gres") == (f"gpu:{on_each}" if on_each else None)
    assert says in " ".join(decided.notes)
    assert bool(decided.notes) == bool(says)


@pytest.mark.parametrize(
    ("job", "place", "says"),
    [
        ({"gpus_per_node": 8}, "--gpus-per-node", "has 4 GPU"),  # never the number for the job
        ({"gpus": 10}, "--gpus", "has 4 GPU"),  # 5 each are too many as well
        ({"gpus": 7}, "--gpus", "has 4 GPU"),  # cannot be shared evenly
        ({"gpus": 8, "nodes": 1}, "--gpus", "has 4 GPU"),
        ({"gpus": 8, "gpus_per_node": 2}, "--gpus", "gives 4 GPUs, --gpus asks for 8"),
        ({"gpus": "4,2", "gpus_per_node": 2}, "--gpus", "gives 4 GPUs, --gpus asks for 4,2"),
        ({"gpus_per_node": "4,0", "nodes": 1}, "--gpus-per-node", "has no GPU"),
    ],
)
def test_gpus_that_no_reading_allows_are_refused_at_the_option_that_was_used(
    job: dict[str, Any], place: str, says: str
) -> None:
    with pytest.raises(PlanError) as caught:
        planned(job)
    assert [finding.place for finding in caught.value.findings] == [place]
    assert says in caught.value.findings[0].cause


def test_a_reading_never_gives_a_node_more_than_was_said_nor_a_job_something_else() -> None:
    for gpus, nodes, has in product(range(1, 40), range(1, 6), (None, 0, 1, 4, 8)):
        job, _ = with_gpus(Job(gpus=gpus, nodes=nodes), has)
        assert job.most_gpus in (gpus, gpus / nodes)
        if job.most_gpus != gpus:
            assert has is not None
            assert job.most_gpus <= has < gpus, "only where the other reading could not run"
            assert job.most_gpus * nodes == gpus


def test_the_last_layer_that_names_gpus_has_said_all_of_it() -> None:
    layers = [
        settings.layer("default", settings.DEFAULTS),
        Layer("job.toml", {"gpus": 2}),
        Layer("flag", {"gpus_per_node": 4}),
    ]
    merged = settings.merge(layers)
    assert (merged.job.gpus, merged.job.gpus_per_node, merged.origins["gpus_per_node"]) == (
        None,
        4,
        "--gpus-per-node",
    )
    assert "gpus" not in merged.origins
    merged = settings.merge([*layers, Layer("flag", {"gpus": 8, "gpus_per_node": 4})])
    assert (merged.job.gpus, merged.job.gpus_per_node) == (8, 4)
    unequal = settings.merge(
        [Layer("a", {"ntasks_per_node": 2}), Layer("flag", {"gpus_per_node": "8,4"})]
    )
    assert unequal.job.ntasks_per_node is None


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("5G", 5120),
        ("4000", 4000),
        ("4000M", 4000),
        ("3.9G", None),
        ("1024K", 1),
        ("1K", 1),
        ("2t", 2 << 20),
        ("16GB", 16384),
        ("0", 0),
    ],
)
def test_memory_is_read_as_slurm_reads_it(text: str, size: int | None) -> None:
    if size is None:
        with pytest.raises(ValueError, match="not a size"):
            megabytes(text)
    else:
        assert megabytes(text) == size


@pytest.mark.parametrize(
    ("mem", "says"),
    [
        ("5G", "has 4000 MB of memory per node, 5120 were asked for"),
        ("4001", "4001"),
        ("lots", "not a size"),
    ],
)
def test_memory_that_no_node_has_is_refused_before_the_queue(mem: str, says: str) -> None:
    with pytest.raises(PlanError) as caught:
        decide(make_case({"mem": mem}))
    assert [finding.place for finding in caught.value.findings] == ["--mem"]
    assert says in caught.value.findings[0].cause


@pytest.mark.parametrize("mem", ["3G", "4000M", 4000, "0", None])
def test_memory_that_a_node_has_is_not(mem: str | int | None) -> None:
    assert dict(decide(make_case({"mem": mem})).directives).get("mem") == (
        None if mem is None else str(mem)
    )


def test_memory_is_not_judged_where_slurm_does_not_know_it() -> None:
    partition = replace(FACTS.partitions[0], memory=0)
    facts = Facts(partitions=(partition,))
    assert judge(Case(Job(mem="5G"), make_case().site, facts=facts)) == Judgement()


def passed(*names: str, **given: Any) -> tuple[Settings, list[ToolkitError]]:
    return settings.with_variables(
        settings.merge([Layer("below", given), flags({"env": names}, ())])
    )


def test_env_with_a_name_alone_passes_the_variable_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTION_A", "line one\nline 'two'")
    monkeypatch.setenv("OPTION_EMPTY", "")
    monkeypatch.delenv("OPTION_B", raising=False)
    found, findings = passed("OPTION_A", "OPTION_EMPTY", "X=1", env={"OPTION_A": "of the project"})
    assert found.job.env == {"OPTION_A": "line one\nline 'two'", "OPTION_EMPTY": "", "X": "1"}
    assert not findings
    found, findings = passed("OPTION_B")
    assert [(one.place, one.cause) for one in findings] == [
        ("--env", "the variable OPTION_B is not set in this shell")
    ]
    with pytest.raises(UsageError, match="expects NAME=VALUE"):
        passed("")


def test_with_conda_a_name_that_is_no_variable_is_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPTION_A", "a")
    found, findings = passed("OPTION_A", "torch", runtime="conda")
    assert (found.job.conda_env, found.job.env, findings) == ("torch", {"OPTION_A": "a"}, [])
    found, findings = passed("torch", "vision", runtime="conda")
    assert (found.job.conda_env, [one.cause for one in findings]) == (
        "torch",
        ["the variable vision is not set in this shell"],
    )
    found, _ = passed("OPTION_A", runtime="conda", conda_env="base")
    assert (found.job.conda_env, found.job.env) == ("base", {"OPTION_A": "a"})


def test_a_value_that_was_passed_on_is_kept_with_the_run(tmp_path: Path) -> None:
    from toolkit.api.run import repeatable

    given = make_case(
        {"env": {"OPTION_A": "then", "MY_TOKEN": "x"}, "pass_env": ("OPTION_A", "MY_TOKEN")},
        cwd=str(tmp_path),
    )
    decided = decide(given)
    kept = repeatable(given, decided)
    assert (kept.env, kept.pass_env) == ({"OPTION_A": "then"}, ()), "a secret is not written down"
    assert decided.origins["env OPTION_A"] == "this shell"
    assert "MY_TOKEN" in decided.secrets
