"""A shape becomes the files of Slurm: whole files against those in tests/golden/localcluster."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest

from toolkit import sites
from toolkit.localcluster import config
from toolkit.localcluster.imitation import imitate
from toolkit.localcluster.shape import Nodes, PartitionShape, Shape, check

GOLDEN = Path(__file__).parents[1] / "golden" / "localcluster"
SHAPES = {
    "usual": Shape(),
    "imitation": Shape(
        nodes=(
            Nodes(
                names="gpu[01-02]",
                cpus=40,
                memory=380000,
                gpus=4,
                gpu_type="v100",
                features=("v100", "fast"),
            ),
            Nodes(names="amd01", cpus=64, memory=512000, gpus=1),
            Nodes(names="cpu01", cpus=40, memory=190000),
        ),
        partitions=(
            PartitionShape(
                name="cas_v100_4",
                nodes="gpu[01-02]",
                max_nodes=2,
                max_time="2-0",
                options=("DefCpuPerGPU=10",),
            ),
            PartitionShape(name="debug", nodes="cpu01", max_time="30:00", default_time="5:00"),
        ),
        extra=("PriorityType=priority/multifactor",),
        accounting=True,
    ),
    "like-neuron": imitate(
        sites.load("neuron"), most=1, chosen=("cas_v100_4", "jupyter"), accounting=True
    ).shape,
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_files_of_a_shape(name: str) -> None:
    nsswitch = "passwd: files systemd\nhosts:  files dns\n"
    found = config.files(
        check(SHAPES[name]),
        name="local",
        directory=PurePosixPath("/var/c/local"),
        user="ada",
        nsswitch=nsswitch,
    )
    if os.environ.get("TOOLKIT_UPDATE_GOLDEN"):
        for file, text in found.items():
            (GOLDEN / name).mkdir(parents=True, exist_ok=True)
            (GOLDEN / name / file).write_text(text)
    assert sorted(found) == sorted(path.name for path in (GOLDEN / name).iterdir())
    for file, text in found.items():
        assert text == (GOLDEN / name / file).read_text(), file


def test_hosts_are_looked_up_in_the_file_only() -> None:
    found = config.files(
        Shape(), name="local", directory=PurePosixPath("/c"), user="ada", nsswitch=""
    )
    assert found["nsswitch.conf"] == "hosts: files\n"
