"""What a local cluster can look like: options, the grammar of partitions, shape files, and everything that is refused."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from toolkit.errors import ConfigError, UsageError
from toolkit.localcluster import options
from toolkit.localcluster.config import light_port
from toolkit.localcluster.shape import (
    Nodes,
    PartitionShape,
    Shape,
    all_nodes,
    check,
    partitions_of,
    summary,
)
from toolkit.model.base import BadDataError


def from_options(**changed: Any) -> Shape:
    usual = {
        "nodes": 2,
        "cpus": 4,
        "memory": "4000",
        "gpus": "0",
        "gpu_type": None,
        "partitions": (),
        "accounting": False,
    }
    return options.from_options(**{**usual, **changed})


def test_equal_nodes_are_one_group() -> None:
    assert from_options() == Shape()
    assert from_options(nodes=1).nodes[0].names == "nid001"
    assert from_options(nodes=12).nodes[0].names == "nid[001-012]"


def test_nodes_are_light_above_200_or_where_that_is_asked() -> None:
    assert [from_options(nodes=count).is_light for count in (1, 200, 201, 1000)] == [
        False,
        False,
        True,
        True,
    ]
    assert options.with_light(from_options(), True).is_light
    assert not options.with_light(from_options(nodes=200), False).is_light
    with pytest.raises(UsageError) as caught:
        options.with_light(from_options(nodes=201), False)
    assert (caught.value.place, "1 to 200" in caught.value.cause) == ("--no-light", True)


def test_a_thousand_nodes_have_addresses_and_ports_of_their_own() -> None:
    nodes = all_nodes(from_options(nodes=1000))
    assert (nodes[0].name, nodes[-1].name) == ("nid0001", "nid1000")
    assert (
        len({node.address for node in nodes}) == len({light_port(node) for node in nodes}) == 1000
    )
    assert all(
        17000 < light_port(node) < 32768 and ipaddress.ip_address(node.address).is_private
        for node in nodes
    )


def test_unequal_gpus() -> None:
    shape = from_options(nodes=4, gpus="4,2,2,0", gpu_type="v100")
    assert [(node.name, node.gpus, node.address, node.link) for node in all_nodes(shape)] == [
        ("nid001", 4, "10.77.0.11", "ve11"),
        ("nid002", 2, "10.77.0.12", "ve12"),
        ("nid003", 2, "10.77.0.13", "ve13"),
        ("nid004", 0, "10.77.0.14", "ve14"),
    ]
    assert summary(shape).startswith("nid001: 4 CPUs, 4.0 GB, 4 v100 GPUs; nid[002-003]: ")


@pytest.mark.parametrize(
    ("text", "megabytes"),
    [("4000", 4000), ("4G", 4096), ("512M", 512), ("1.5GB", 1536), ("1t", 1048576)],
)
def test_memory(text: str, megabytes: int) -> None:
    assert from_options(memory=text).nodes[0].memory == megabytes


def test_the_whole_grammar_of_a_partition() -> None:
    text = "gpu:nodes=nid[001-002,004],max-nodes=2,max-time=1:00:00,default-time=10:00,default"
    assert options.partition(text) == PartitionShape(
        name="gpu",
        nodes="nid[001-002,004]",
        max_nodes=2,
        max_time="1:00:00",
        default_time="10:00",
        default=True,
    )
    assert options.partition("plain") == PartitionShape(name="plain")


def test_one_partition_is_the_default() -> None:
    assert [part.default for part in partitions_of(from_options(partitions=("a", "b")))] == [
        True,
        False,
    ]
    assert [
        part.default for part in partitions_of(from_options(partitions=("a", "b:default")))
    ] == [False, True]
    assert [part.name for part in partitions_of(Shape())] == ["main"]


@pytest.mark.parametrize(
    ("changed", "place", "words"),
    [
        ({"partitions": ("a:max-node=2",)}, "--partition", "no setting 'max-node'"),
        ({"partitions": ("a:max-nodes",)}, "--partition", "has no value"),
        ({"partitions": ("a:max-nodes=two",)}, "--partition", "not a number"),
        ({"partitions": ("a:max-nodes=0",)}, "--partition", "at least one node"),
        ({"partitions": ("a:max-time=soon",)}, "--partition", "not a time"),
        ({"partitions": ("a:nodes=nid009",)}, "--partition", "nid009 that does not exist"),
        ({"partitions": ("a:nodes=nid[001",)}, "--partition", "bracket"),
        ({"partitions": ("a", "a")}, "--partition", "listed twice"),
        ({"partitions": ("a:default", "b:default")}, "--partition", "only one"),
        ({"partitions": ("default",)}, "--partition", "cannot be the name"),
        ({"partitions": ("a b",)}, "--partition", "cannot be the name"),
        ({"partitions": ("a\nNodeName=x",)}, "--partition", "cannot be the name"),
        ({"gpus": "4,2,1"}, "--gpus-per-node", "3 numbers of GPUs for 2 nodes"),
        ({"gpus": "some"}, "--gpus-per-node", "not a number"),
        ({"gpus": "65"}, "--gpus-per-node", "0 to 64"),
        ({"gpu_type": "v100 x"}, "--gpu-type", "not a type"),
        ({"memory": "4 apples"}, "--mem-per-node", "not a size"),
        ({"memory": "1"}, "--mem-per-node", "at least 100"),
        ({"nodes": 1001}, "--nodes", "more than 1000 nodes"),
        ({"cpus": 0}, "--cpus-per-node", "0 CPUs"),
    ],
)
def test_options_that_are_off(changed: dict[str, Any], place: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_options(**changed)
    assert (caught.value.place, words in caught.value.cause) == (place, True), caught.value.cause
    assert caught.value.next_step


def test_a_shape_file(tmp_path: Path) -> None:
    file = tmp_path / "shape.toml"
    file.write_text(
        'extra = ["PriorityType=priority/multifactor"]\n'
        '[[nodes]]\nnames = "gpu[01-02]"\ncpus = 40\nmemory = 380000\ngpus = 4\ngpu_type = "v100"\nfeatures = ["v100"]\n'
        '[[nodes]]\nnames = "cpu01"\n'
        '[[partitions]]\nname = "v100"\nnodes = "gpu[01-02]"\nmax_time = "2-0"\noptions = ["DefCpuPerGPU=10"]\n'
    )
    shape = options.from_file(file)
    assert [node.name for node in all_nodes(shape)] == ["gpu01", "gpu02", "cpu01"]
    assert shape.partitions[0].options == ("DefCpuPerGPU=10",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[nodes]]\nname = "a"\n', "no key 'name'"),
        ('[[nodes]]\nnames = "a[2-1]"\n', "range"),
        ('[[nodes]]\nnames = "a[1-99999999]"\n', "more than 1000"),
        ('[[nodes]]\nnames = "a,a"\n', "node a is listed twice"),
        ('[[nodes]]\nnames = "login"\n', "it is reserved"),
        ('[[nodes]]\nnames = "a_b;c"\n', "cannot be the name of a node"),
        ('[[nodes]]\nnames = ""\n', "not a list of nodes"),
        ("nodes = []\n", "at least one node"),
        ('extra = ["a\\nb"]\n', "one line"),
        ('[[partitions]]\nname = "a"\noptions = ["x y"]\n', "Name=value"),
        ("nodes =\n", "not valid TOML"),
    ],
)
def test_shape_files_that_are_broken(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "shape.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        options.from_file(file)
    assert words in caught.value.cause
    assert str(file) in (caught.value.place or "")


@given(some.text(max_size=12), some.text(max_size=12))
def test_nothing_that_is_accepted_can_break_a_line(names: str, kind: str) -> None:
    """Whatever passes is made of characters that slurm.conf, gres.conf and the scripts can carry."""
    try:
        shape = check(Shape(nodes=(Nodes(names=names, gpus=1, gpu_type=kind),)))
    except BadDataError:
        return
    for node in all_nodes(shape):
        assert all(
            character.isalnum() or character in "-._"
            for character in node.name + (node.gpu_type or "")
        )
        assert node.name.isascii()
        assert (node.gpu_type or "").isascii()
