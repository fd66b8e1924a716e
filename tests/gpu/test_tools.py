"""The tools that show the GPUs of nodes: doctor, cluster status, site init."""

from __future__ import annotations

import json

import pytest

from tests.gpu.conftest import CLUSTER, toolkit


@pytest.mark.usefixtures("cluster", "gpus")
def test_a_site_is_written_from_the_node(facts, place):
    """Toolkit site init --probe finds the driver on the node."""
    words = "site init here --probe --dry-run --site local".split()
    written = toolkit(*words, cwd=place)
    assert written.returncode == 0, written.stderr
    assert facts.driver in written.stdout


@pytest.mark.usefixtures("cluster")
def test_the_doctor_sees_gpus_and_driver(gpus, place, small_image):
    """Toolkit doctor passes its items about GPUs and driver."""
    words = ("--nodes", "1", "--gpus-per-node", str(gpus), "--image", str(small_image))
    shown = {"APPTAINER_BIND": "/usr:/usr:ro,/opt"}  # the image has nothing of its own
    found = json.loads(toolkit("doctor", "--json", *words, cwd=place, env=shown).stdout)["findings"]
    of = {finding["name"]: finding for finding in found}
    assert of["gpus"]["outcome"] == "PASS", of["gpus"]
    assert of["driver"]["outcome"] == "PASS", of["driver"]


@pytest.mark.usefixtures("cluster")
def test_the_cluster_says_which_gpus_it_has(facts, place):
    """A local cluster has this machine's GPUs, or says that they are simulated."""
    shown = json.loads(toolkit("cluster", "status", "--name", CLUSTER, "--json", cwd=place).stdout)
    assert shown["real_gpus"] is bool(facts.devices)
    asked = toolkit(
        "cluster",
        "exec",
        "--name",
        CLUSTER,
        "--",
        *"srun --gres=gpu:1 printenv".split(),
        "CUDA_VISIBLE_DEVICES",
        cwd=place,
    )
    assert asked.stdout.strip() == "0", asked.stderr
