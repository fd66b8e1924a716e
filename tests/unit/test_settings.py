"""Precedence: default < site < project < job < environment < flag."""

from __future__ import annotations

import pytest

from toolkit.errors import UsageError
from toolkit.model.job import Job
from toolkit.planning.settings import DEFAULTS, Layer, demands, from_environment, layer, merge


def test_each_layer_has_its_say_and_is_remembered() -> None:
    layers = [
        layer("default", DEFAULTS),
        Layer("site neuron", {"partition": "a", "comment": "site", "nodes": 2}),
        layer("toolkit.toml", Job(comment="project", nodes=3)),
        layer("job.toml", Job(nodes=4, gpus=1)),
        Layer("environment", {"nodes": 5}),
        Layer("flag", {"nodes": 6}),
    ]
    for count, (nodes, origin) in enumerate(
        [
            (1, "default"),
            (2, "site neuron"),
            (3, "toolkit.toml"),
            (4, "job.toml"),
            (5, "environment"),
            (6, "--nodes"),
        ],
        1,
    ):
        merged = merge(layers[:count])
        assert (merged.job.nodes, merged.origins["nodes"]) == (nodes, origin)
    assert merge(layers).job.partition == "a"
    assert merge(layers).job.comment == "project"
    assert merge(layers).origins["gpus"] == "job.toml"


def test_arguments_and_binds_are_joined_and_variables_by_name() -> None:
    merged = merge(
        [
            layer(
                "job.toml",
                Job(arguments=("--epochs", "12"), bind=("/a:/a",), env={"A": "1", "B": "1"}),
            ),
            Layer("flag", {"arguments": ("--lr", "1"), "bind": ("/b:/b",), "env": {"B": "2"}}),
        ]
    )
    assert merged.job.arguments == ("--epochs", "12", "--lr", "1")
    assert merged.job.bind == ("/a:/a", "/b:/b")
    assert merged.job.env == {"A": "1", "B": "2"}


@pytest.mark.parametrize(
    ("said", "ranks"),
    [({"gpus": "2,1"}, None), ({"gpus": "2"}, 2), ({"gpus": "2,1", "ntasks_per_node": 3}, 3)],
)
def test_gpus_of_each_node_say_how_many_ranks_it_starts_whatever_the_job_says_of_all(
    said: dict[str, object], ranks: int | None
) -> None:
    merged = merge([layer("job.toml", Job(ntasks_per_node=2)), Layer("flag", said)])
    assert merged.job.ntasks_per_node == ranks
    assert ("ntasks_per_node" in merged.origins) == (ranks is not None)


def test_variables_of_the_environment_are_settings() -> None:
    found = from_environment(
        {"TOOLKIT_NODES": "3", "TOOLKIT_PARTITION": "7", "TOOLKIT_IMAGES": "/x", "HOME": "/root"}
    )
    assert found.values == {"nodes": 3, "partition": "7"}


@pytest.mark.parametrize(
    ("name", "value"), [("TOOLKIT_NODES", "many"), ("TOOLKIT_NODES", "0"), ("TOOLKIT_GPUS", "-1")]
)
def test_a_wrong_variable_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_environment({name: value})
    assert caught.value.place == name


def test_nobody_relaxes_what_a_site_demands() -> None:
    site = Layer(
        "site strict", {"require_signed": True, "signature_key": "/etc/site.pub", "nodes": 2}
    )
    relaxing = {"require_signed": False, "signature_key": "mine.pub", "nodes": 3}
    for origin in ("your toolkit.toml", "toolkit.toml", "job.toml", "environment", "flag"):
        merged = merge([layer("default", DEFAULTS), site, Layer(origin, relaxing), demands(site)])
        assert (merged.job.require_signed, merged.job.signature_key, merged.job.nodes) == (
            True,
            "/etc/site.pub",
            3,
        )
        assert merged.origins["require_signed"] == merged.origins["signature_key"] == "site strict"


def test_a_site_that_demands_nothing_leaves_the_choice() -> None:
    for values in ({}, {"require_signed": False}, {"signature_key": "/etc/site.pub"}):
        site = Layer("site mild", values)
        merged = merge(
            [
                layer("default", DEFAULTS),
                site,
                Layer("flag", {"signature_key": "mine.pub"}),
                demands(site),
            ]
        )
        assert (bool(merged.job.require_signed), merged.job.signature_key) == (False, "mine.pub")
    keyless = Layer("site strict", {"require_signed": True})
    merged = merge(
        [
            layer("default", DEFAULTS),
            keyless,
            Layer("flag", {"signature_key": "mine.pub"}),
            demands(keyless),
        ]
    )
    assert (merged.job.require_signed, merged.job.signature_key) == (True, "mine.pub")
