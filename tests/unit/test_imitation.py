"""The shape of a local cluster after a site: what it keeps and what it leaves out."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from toolkit import sites
from toolkit.errors import UnknownPartitionError
from toolkit.localcluster.imitation import adapt_site, imitate, submit_rules
from toolkit.localcluster.shape import all_nodes
from toolkit.model.site import OptionRule

NEURON = sites.load("neuron")


def test_partitions_keep_names_gpus_and_times_and_lose_nodes():
    shape = imitate(NEURON)
    nodes = {node.name: node.group for node in all_nodes(shape)}
    partitions = {partition.name: partition for partition in shape.partitions}
    assert set(partitions) == set(NEURON.partitions)
    v100 = partitions["cas_v100_4"]
    assert (v100.nodes, v100.max_time, v100.max_nodes) == ("gpu10,gpu11", "2880", 2)
    assert (nodes["gpu10"].cpus, nodes["gpu10"].gpus, nodes["gpu10"].gpu_type) == (40, 4, "v100")
    assert (nodes["cpu01"].gpus, nodes["cpu01"].gpu_type) == (0, None)
    assert [name for name, partition in partitions.items() if partition.default] == ["cas_v100nv_8"]


def test_some_partitions_only():
    shape = imitate(NEURON, most=1, chosen=("amd_h100_2",))
    assert [partition.name for partition in shape.partitions] == ["amd_h100_2"]
    assert [node.name for node in all_nodes(shape)] == ["gpu57"]
    with pytest.raises(UnknownPartitionError) as raised:
        imitate(NEURON, chosen=("amd_h100_4",))
    assert raised.value.close == "amd_h100_2"


def test_the_plugin_counts_jobs_of_users_and_knows_closed_partitions():
    shape = imitate(NEURON, chosen=("amd_h100_2", "jupyter"))
    assert 'local MOST = { ["amd_h100_2"] = 2, }' in shape.job_submit
    assert 'local CLOSED = { "jupyter" }' in shape.job_submit


def test_a_site_without_partitions_has_one_and_its_kinds_of_nodes():
    shape = imitate(sites.load("perlmutter-like"))
    assert [partition.name for partition in shape.partitions] == ["main"]
    assert all_nodes(shape)[0].group.features == ("gpu",)
    rule = '["account"] = "node hours are charged to a project",'
    assert rule in shape.job_submit


def test_hostile_words_stay_words_of_lua():
    rule = OptionRule(why='"]] os.execute("x") --\n\\')
    text = submit_rules(
        replace(NEURON, forbidden={"mem": rule}), {}, default='a"b', directory="/a b"
    )
    assert r'["mem"] = "\034]] os.execute(\034x\034) --\010\092"' in text
    assert r'local DEFAULT = "a\034b"' in text
    assert 'local DIRECTORY = "/a b"' in text


def test_an_imitation_has_this_machines_commands_and_directories(tmp_path):
    site = replace(NEURON, scratch=str(tmp_path), datasets={"a": str(tmp_path), "b": "/not/there"})
    found = adapt_site(site, sites.load("local"), str)
    own = (found.name, found.access, found.modules, found.interface)
    assert own == ("neuron", "local-cluster", (), "eth0")
    assert (found.scratch, found.submit_directory) == (str(tmp_path), None)
    assert found.datasets == {"a": str(tmp_path)}
    assert found.comment == NEURON.comment
    assert found.partitions == NEURON.partitions
