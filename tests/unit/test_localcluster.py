"""The local cluster without Slurm: its shape, also after a site, its files, its directory, its processes, its logs."""

from __future__ import annotations

import ipaddress
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from tests.progress import Silent
from toolkit import sites
from toolkit.errors import (
    BusyError,
    ClusterError,
    ConfigError,
    SlurmUnreachableError,
    UnknownPartitionError,
    UsageError,
)
from toolkit.localcluster import access, config, directory, options, packages, processes
from toolkit.localcluster.imitation import adapt_site, imitate, submit_rules
from toolkit.localcluster.lifecycle import down
from toolkit.localcluster.paths import Paths, paths_in, paths_of
from toolkit.localcluster.shape import Nodes, Shape, all_nodes, check, partitions_of, summary
from toolkit.localcluster.waiting import fatal_errors
from toolkit.model.site import OptionRule

SHAPES = {
    "usual": Shape(),
    "imitation": options.from_file(Path(__file__).parents[1] / "golden" / "imitation.toml"),
    "light": Shape(
        nodes=(Nodes(names="nid[001-250]"), Nodes(names="gpu[1-10]", gpus=2, gpu_type="v100"))
    ),
}
# The lines that a shape decides; that they are valid, the real Slurm says.
LINES = {
    "usual": """
NodeName=nid[001-002] NodeAddr=10.77.0.[11-12] CPUs=4 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=1-00:00:00 DefaultTime=30:00 State=UP
AccountingStorageType=accounting_storage/none
10.77.0.12 nid002
passwd: files systemd
hosts: files""",
    "imitation": """
NodeName=gpu[01-02] NodeAddr=10.77.0.[11-12] CPUs=40 RealMemory=380000 Gres=gpu:v100:4 Feature=v100,fast State=UNKNOWN
NodeName=amd01 NodeAddr=10.77.0.[13-13] CPUs=64 RealMemory=512000 Gres=gpu:1 State=UNKNOWN
PartitionName=cas_v100_4 Nodes=gpu[01-02] Default=YES MaxNodes=2 MaxTime=2-0 DefCpuPerGPU=10 State=UP
PartitionName=debug Nodes=cpu01 Default=NO MaxTime=30:00 DefaultTime=5:00 State=UP
PriorityType=priority/multifactor
DefMemPerCPU=4750
AccountingStorageType=accounting_storage/slurmdbd
NodeName=gpu[01-02] Name=gpu Type=v100 File=/var/c/local/dev/gpu[0,1,2,3]
NodeName=amd01 Name=gpu File=/var/c/local/dev/gpu[0]
DbdAddr=127.0.0.1""",
    # Few, since every slurmd reads them.
    "light": """
NodeName=nid[001-250] NodeAddr=10.77.0.[11-255],10.77.1.[0-4] CPUs=4 RealMemory=4000 State=UNKNOWN Port=[17035-17284]
NodeName=gpu[1-10] NodeAddr=10.77.1.[5-14] CPUs=4 RealMemory=4000 Gres=gpu:v100:2 State=UNKNOWN Port=[17285-17294]
NodeName=gpu[1-10] Name=gpu Type=v100 File=/var/c/local/dev/gpu[0,1]
MessageTimeout=31
10.77.1.14 gpu10""",
}


def from_options(**changed: Any) -> Shape:
    usual = {"nodes": 2, "cpus": 4, "memory": "4000", "gpus": 0, "gpu_type": None}
    return options.from_options(**{**usual, "partitions": (), "accounting": False, **changed})


def files(shape: Shape, nsswitch: str = "", gpus: Sequence[int] = ()) -> dict[str, str]:
    place = PurePosixPath("/var/c/local")
    return config.files(
        check(shape), name="local", directory=place, user="ada", nsswitch=nsswitch, gpus=gpus
    )


@pytest.mark.parametrize("name", SHAPES)
def test_the_files_of_a_shape(name):
    found = files(SHAPES[name], "passwd: files systemd\nhosts:  files dns\n")
    rows = [row for text in found.values() for row in text.splitlines()]
    assert {*LINES[name].strip().splitlines()} - {*rows} == set()
    assert sum(" NodeAddr=" in row for row in rows) == len(SHAPES[name].nodes)
    assert "hosts:  files dns" not in rows


def test_the_gpus_of_this_machine_are_shared_out(tmp_path):
    for number in (10, 2, 0, 1):
        (tmp_path / f"nvidia{number}").symlink_to("/dev/null")
    (tmp_path / "nvidiactl").symlink_to("/dev/null")
    (tmp_path / "nvidia3").touch()
    shape = Shape(nodes=(Nodes(names="a1", gpus=2), Nodes(names="a2", gpus=2)))
    found = packages.gpus_of(shape, tmp_path)
    assert found == (0, 1, 2, 10)
    assert files(shape, gpus=found)["gres.conf"].splitlines()[1:] == [
        "NodeName=a1 Name=gpu File=/dev/nvidia[0,1]",
        "NodeName=a2 Name=gpu File=/dev/nvidia[2,10]",
    ]
    assert packages.gpus_of(Shape(nodes=(Nodes(names="a[1-5]", gpus=1),)), tmp_path) == ()


def test_options_make_equal_nodes():
    assert from_options() == Shape()
    for words, default in {("a", "b"): "a", (): "main"}.items():
        parts = partitions_of(from_options(partitions=words))
        assert [part.name for part in parts if part.default] == [default]
    assert from_options(nodes=1).nodes[0].names == "nid001"
    assert from_options(nodes=12).nodes[0].names == "nid[001-012]"
    assert summary(from_options(nodes=4)) == "4 nodes, 1 partition"
    for text, megabytes in {"4G": 4096, "512M": 512, "1t": 1048576}.items():
        assert from_options(memory=text).nodes[0].memory == megabytes


def test_nodes_are_light_above_200_or_where_that_is_asked():
    light = {count: from_options(nodes=count).is_light for count in (1, 200, 201, 1000)}
    assert light == {1: False, 200: False, 201: True, 1000: True}
    assert options.with_light(from_options(), True).is_light
    assert not options.with_light(from_options(nodes=200), False).is_light
    with pytest.raises(UsageError, match="1 to 200") as caught:
        options.with_light(from_options(nodes=201), False)
    assert caught.value.place == "--no-light"
    nodes = all_nodes(from_options(nodes=1000))
    ports, addresses = map(config.light_port, nodes), {node.address for node in nodes}
    assert len(set(ports)) == len(addresses) == 1000
    assert all(17000 < config.light_port(node) < 32768 for node in nodes)
    assert all(ipaddress.ip_address(address).is_private for address in addresses)


@pytest.mark.parametrize(
    ("changed", "place", "words"),
    [
        ({"partitions": ("a\nNodeName=x",)}, "--partition", "a name of letters"),
        ({"gpu_type": "v100 x"}, "--gpu-type", "a name of letters"),
        ({"memory": "4 apples"}, "--mem-per-node", "not a size"),
        ({"memory": "1"}, "--mem-per-node", "at least 100"),
        ({"nodes": 1001}, None, "1 to 1000"),
    ],
)
def test_options_that_are_off(changed, place, words):
    with pytest.raises(UsageError) as caught:
        from_options(**changed)
    assert (caught.value.place, words in caught.value.cause) == (place, True), caught.value.cause
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[nodes]]\nname = "a"\n', "no key 'name'"),
        ('[[nodes]]\nnames = "a[2-1]"\n', "range"),
        ('[[nodes]]\nnames = "a[1-99999999]"\n', "range"),
        ('[[nodes]]\nnames = "a,a"\n', "node a is listed twice"),
        ('[[nodes]]\nnames = "login"\n', "it is reserved"),
        ('[[nodes]]\nnames = "a_b;c"\n', "cannot be the name of a node"),
        ("nodes = []\n", "0 nodes"),
        ('extra = ["a\\nb"]\n', "one line"),
        ('partitions = [{ name = "a" }, { name = "a" }]\n', "listed twice"),
        ('[[partitions]]\nname = "a"\noptions = ["x y"]\n', "Name=value"),
        ('[[partitions]]\nname = "a"\nmax_time = "soon"\n', "a time such as"),
        ('[[partitions]]\nname = "a"\nnodes = "nid009"\n', "nid009 that does not exist"),
        ('partitions = [{name = "a", default = true}, {name = "b", default = true}]\n', "only one"),
        ("nodes =\n", "not valid TOML"),
    ],
)
def test_shape_files_that_are_broken(text, words, tmp_path):
    file = tmp_path / "shape.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        options.from_file(file)
    assert words in caught.value.cause
    assert str(file) in (caught.value.place or "")


@given(some.text(max_size=12), some.text(max_size=12))
def test_nothing_that_is_accepted_can_break_a_line(names, kind):
    """Whatever passes is made of characters that slurm.conf, gres.conf and scripts can carry."""
    try:
        shape = check(Shape(nodes=(Nodes(names=names, gpus=1, gpu_type=kind),)))
    except ValueError:
        return
    for node in all_nodes(shape):
        text = node.name + (node.group.gpu_type or "")
        assert text.isascii()
        assert all(character.isalnum() or character in "-._" for character in text)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return paths_in(tmp_path / "local")


@pytest.mark.parametrize(
    ("root", "name", "words"),
    [
        *[(root, "local", "export TOOLKIT_") for root in ("/a b", "/a;b", "/a'b", "/ä")],
        ("/" + "x" * 53, "imitation", "a shorter name; or export TOOLKIT_"),
        *[("/r", name, "--name local") for name in ("", "../x", "A", "a b", "-a", "x" * 21, "a\n")],
    ],
)
def test_directories_and_names_that_cannot_be(root, name, words, monkeypatch):
    monkeypatch.setenv("TOOLKIT_CLUSTER_DIR", root)
    with pytest.raises((ClusterError, UsageError)) as caught:
        paths_of(name)
    assert (caught.value.next_step or "").startswith(words)


def test_the_directory_of_a_cluster(monkeypatch, tmp_path):
    for name in ("TOOLKIT_CLUSTER_DIR", "TOOLKIT_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/ada")
    found = paths_of(access.default_name())
    assert found.directory == Path("/home/ada/.local/state/toolkit/clusters/local")
    monkeypatch.setenv("TOOLKIT_CLUSTER_DIR", "/var/c")
    monkeypatch.setenv("TOOLKIT_CLUSTER", "mine")
    assert paths_of(access.default_name()).conf == Path("/var/c/mine/etc/slurm.conf")
    monkeypatch.setenv("TOOLKIT_CLUSTER_DIR", str(tmp_path)[:40])
    for name, step in {"mine": "", "nowhere": " --name nowhere"}.items():
        with pytest.raises(SlurmUnreachableError, match="is not up") as caught:
            access.access(name)
        assert caught.value.next_step == f"toolkit cluster up{step}"


def test_a_process_of_somebody_else_is_not_ours(paths):
    """Neither a process that has our number by chance, nor one that only looks alike, is killed."""
    script = f"/x/{processes.CLUSTER_INIT}"
    wait = (sys.executable, "-c", "import time; time.sleep(60)")
    alike = [
        subprocess.Popen((*wait, *words))
        for words in (("bash", script, f"{paths.directory}2"), (script, str(paths.directory)))
    ]
    ours = subprocess.Popen((*wait, "bash", script, str(paths.directory)))
    try:
        until = time.monotonic() + 30  # a process that has just begun has no words for a moment
        while not processes.inits(paths) and time.monotonic() < until:
            time.sleep(0.01)
        assert processes.inits(paths) == (ours.pid,)
        assert processes.stop(paths) is True
        assert ours.wait(timeout=10) == -9
        assert [process.poll() for process in alike] == [None, None]
        assert processes.stop(paths) is False
    finally:
        for process in (*alike, ours):
            process.kill()
            process.wait()


def test_a_node_that_ends_meanwhile_has_no_other_processes_killed(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number may belong to a process of the machine by then, with all that run there."""
    seen, pids, killed = iter([{"nid001": 4242}, {}]), iter([[4242], []]), list[int]()
    monkeypatch.setattr(processes, "node_processes", lambda _: next(seen))
    monkeypatch.setattr(processes, "all_pids", lambda: next(pids))
    monkeypatch.setattr(processes, "_host_namespace", lambda _: "uts:[4026531838]")
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    processes.kill_node(paths, "nid001")
    assert killed == []


def test_one_at_a_time_and_a_lock_goes_with_its_holder(paths):
    with directory.locked(paths), pytest.raises(BusyError), directory.locked(paths):
        pass
    assert not paths.directory.exists()
    code = "import sys, time, pathlib; from toolkit.localcluster import directory, paths\n"
    code += "with directory.locked(paths.paths_in(pathlib.Path(sys.argv[1]))):\n"
    code += "    print('held', flush=True); time.sleep(60)"
    words = (sys.executable, "-c", code, str(paths.directory))
    holder = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(BusyError), directory.locked(paths):
        pass
    holder.kill()
    holder.communicate()
    with directory.locked(paths):
        (paths.directory / "file").touch()
    assert {entry.name for entry in paths.directory.iterdir()} == {"file", paths.marker.name}


def contents(directory: Path) -> dict[Path, str]:
    return {path: path.read_text() if path.is_file() else "" for path in directory.rglob("*")}


@pytest.mark.parametrize("made", ["files", "copy", "renamed", "link", "file", "forged"])
def test_only_a_cluster_s_own_directory_is_touched(made, tmp_path, monkeypatch):
    """`up` and `down` refuse any other, whatever it holds, and leave it as it was."""
    root = tmp_path / "r"
    other, here = paths_in(root / "other"), paths_in(root / "local")
    with directory.locked(other):
        (other.directory / "log").mkdir()
    if made == "files":
        (here.directory / "lock").mkdir(parents=True)
    elif made == "copy":
        shutil.copytree(other.directory, here.directory)
    elif made == "renamed":
        other.directory.rename(here.directory)
    elif made == "link":
        here.directory.symlink_to(other.directory)
    elif made == "file":
        here.directory.write_text("mine")
    else:
        here.directory.mkdir()
        here.marker.write_text("{}")
    if here.directory.is_dir():
        (here.directory / "thesis.tex").write_text("years of work")
    before = contents(root)
    monkeypatch.setattr("toolkit.localcluster.lifecycle.paths_of", lambda _: here)
    with pytest.raises(ClusterError, match="nothing in it was touched"):
        down("local", Silent())
    with pytest.raises(ClusterError, match="nothing in it was touched"), directory.locked(here):
        pass
    assert contents(root) == before


@pytest.mark.parametrize("left", ["nothing", "a marker that was being written"])
def test_an_empty_directory_is_used_by_up_and_left_by_down(left, paths, monkeypatch):
    paths.directory.mkdir()
    if left != "nothing":
        (paths.directory / f".{paths.marker.name}.x1").touch()
    monkeypatch.setattr("toolkit.localcluster.lifecycle.paths_of", lambda _: paths)
    assert down("local", Silent()) is False
    assert paths.directory.is_dir()
    with directory.locked(paths):
        directory.remove_files(paths)
        assert directory.is_ours(paths)
    assert not paths.directory.exists()


def test_why_a_daemon_gave_up_is_quoted(paths):
    paths.logs.mkdir(parents=True)
    rows = ("error: no gres.conf", "error: slurmd initialization failed")
    paths.log_of("slurmd.n1").write_text("\n".join(rows))
    paths.log_of("slurmd.n2").write_text("fatal: no slurm.conf\n")
    stopped = ["slurmd.n1 stopped: no gres.conf", "slurmd.n2 stopped: no slurm.conf"]
    assert fatal_errors(paths) == stopped


def test_what_is_missing_is_named_by_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ("slurmd", "mariadbd")
    monkeypatch.setattr(packages, "which", lambda name: None if name in missing else f"/bin/{name}")
    monkeypatch.setattr(packages, "_any", lambda *_: True)
    assert packages.needed() == ("slurmd",)
    assert packages.needed(accounting=True) == ("mariadb-server", "slurmd")


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
