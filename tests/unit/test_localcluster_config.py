"""A shape becomes the files of Slurm: whole files against those in tests/golden/localcluster."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest

from toolkit import sites
from toolkit.localcluster import config
from toolkit.localcluster.devices import gpus_of
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
    # Their lines are few, since every slurmd reads them: one for each network of 256 addresses.
    "light": Shape(
        nodes=(
            Nodes(names="nid[001-250]"),
            Nodes(names="gpu[1-10]", gpus=2, gpu_type="v100"),
        ),
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
    if name == "light":  # a line for each node
        hosts = found.pop("hosts").splitlines()
        assert (len(hosts), hosts[2], hosts[-1]) == (262, "10.77.0.11 nid001", "10.77.1.14 gpu10")
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


def test_the_gpus_of_this_machine_are_shared_out(tmp_path: Path) -> None:
    for number in (10, 2, 0, 1):
        (tmp_path / f"nvidia{number}").symlink_to("/dev/null")
    (tmp_path / "nvidiactl").symlink_to("/dev/null")
    (tmp_path / "nvidia3").touch()
    shape = check(Shape(nodes=(Nodes(names="a1", gpus=2), Nodes(names="a2", gpus=2))))
    found = gpus_of(shape, tmp_path)
    assert found == (0, 1, 2, 10)
    assert config.gres_conf(shape, PurePosixPath("/c"), found).splitlines()[1:] == [
        "NodeName=a1 Name=gpu File=/dev/nvidia[0-1]",
        "NodeName=a2 Name=gpu File=/dev/nvidia[2,10]",
    ]
    more = check(Shape(nodes=(Nodes(names="a[1-5]", gpus=1),)))
    assert gpus_of(more, tmp_path) == ()
