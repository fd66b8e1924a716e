"""What the tests of a GPU share: the toolkit, a local cluster with the machine's GPUs, the report."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

from tests.gpu import report
from tests.gpu.facts import Facts, gather

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
CLUSTER = "gpu-tests"


Record = Callable[[str, object], None]  # pytest's record_property


class Ran(NamedTuple):
    """How a script ended: its exit code, what all ranks printed, and what explain says of it."""

    code: int
    text: str
    explain: Callable[[], dict[str, Any]]


class Start(Protocol):
    """Starts a script with so many ranks on one node."""

    def __call__(self, script: Path, *arguments: str, ranks: int, gpus: int) -> Ran: ...


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(report.Report(ROOT / "build"), "report of the GPU")


@pytest.fixture(scope="session")
def facts() -> Facts:
    return gather()


@pytest.fixture(scope="session")
def gpus(facts: Facts) -> int:
    """The number of GPUs that PyTorch can use; what needs one is not run where there is none."""
    if not facts.torch:
        pytest.skip(f"{sys.executable} has no torch: PYTHON=/path/to/python3 names another")
    if not facts.gpus:
        pytest.skip("PyTorch can use no GPU here")
    return len(facts.gpus)


@pytest.fixture(scope="session")
def place() -> Path:
    """A directory that the nodes of a local cluster see."""
    directory = ROOT / "build" / "gpu-runs"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def toolkit(
    *words: str, cwd: Path, timeout: float = 300, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the toolkit on the cluster of these tests, with further variables."""
    return subprocess.run(
        [sys.executable, "-m", "toolkit", *words],
        cwd=cwd,
        env={**os.environ, "TOOLKIT_CLUSTER": CLUSTER, "TOOLKIT_SITE": "local", **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.fixture(scope="session")
def cluster(facts: Facts, place: Path) -> Iterator[str]:
    """A real Slurm with one node that has this machine's GPUs; simulated ones where it has none."""
    if shutil.which("slurmctld") is None:
        pytest.skip("Slurm is neither installed nor in a pack: make gpu-pack")
    shape = ("--nodes", "1", "--cpus-per-node", str(os.cpu_count()), "--mem-per-node", "16G")
    count = ("--gpus-per-node", str(max(1, len(facts.devices))))
    up = toolkit("cluster", "up", "--name", CLUSTER, *shape, *count, cwd=place)
    try:
        assert up.returncode == 0, up.stderr
        yield CLUSTER
    finally:
        toolkit("cluster", "down", "--name", CLUSTER, cwd=place)


@pytest.fixture
def start(request: pytest.FixtureRequest, place: Path, tmp_path: Path) -> Start:
    """Starts ranks by a job on the local cluster; by torchrun alone where there is no Slurm."""
    if shutil.which("slurmctld"):
        request.getfixturevalue("cluster")
        return _by_slurm(place)
    return _by_torchrun(tmp_path)


def _by_torchrun(directory: Path) -> Start:
    def start(script: Path, *arguments: str, ranks: int, gpus: int) -> Ran:
        meeting = ("--standalone", "--local-addr=127.0.0.1")
        words = ["-m", "torch.distributed.run", *meeting, f"--nproc-per-node={ranks}"]
        ended = subprocess.run(
            [sys.executable, *words, str(script), *arguments],
            cwd=directory,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus)))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        log = directory / "ranks.log"
        log.write_text(ended.stdout, encoding="utf-8")
        return Ran(ended.returncode, ended.stdout, lambda: explained(str(log), directory=directory))

    return start


def _by_slurm(directory: Path) -> Start:
    def start(script: Path, *arguments: str, ranks: int, gpus: int) -> Ran:
        shape = ("--nodes", "1", "--ntasks-per-node", str(ranks), "--gpus-per-node", str(gpus))
        options = ("--launcher", "torchrun", "--runtime", "none", "--time", "5", *shape)
        ended = toolkit("run", *options, str(script), *arguments, cwd=directory)
        return Ran(
            ended.returncode,
            ended.stdout + ended.stderr,
            lambda: explained(directory=directory),
        )

    return start


def explained(*words: str, directory: Path) -> dict[str, Any]:
    """Return what explain says of a log, or of the newest run of a directory."""
    said = toolkit("explain", "--json", *words, cwd=directory)
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def compiled(name: str, place: Path) -> Path:
    """Compile what is in the pack for this GPU, and return where the result is."""
    sources = sorted(Path(os.environ.get("GPU_PACK", "build/gpu-pack")).glob(f"{name}-*.tar.gz"))
    if not sources:
        pytest.skip(f"the source of {name} is not in the pack")
    built = place.parent / f"gpu-{name}"
    script = str(Path(__file__).parent / "compile.sh")
    ended = subprocess.run(
        [script, name, sys.executable, str(sources[-1]), str(built)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return built


@pytest.fixture(scope="session")
def small_image(facts: Facts, place: Path) -> Path:
    """An image with nothing but directories, onto which the host's own are bound."""
    if shutil.which("apptainer") is None:
        pytest.skip("Apptainer is neither installed nor in a pack: make gpu-pack")
    if not facts.torch:
        pytest.skip(f"{sys.executable} has no torch: PYTHON=/path/to/python3 names another")
    tree, image = place / "small", place / "small.sif"
    for name in "dev etc home opt proc root run sys tmp usr var/tmp".split():
        (tree / name).mkdir(parents=True)
    for name in "bin lib lib64 sbin".split():
        (tree / name).symlink_to(f"usr/{name}")
    (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")  # Apptainer adds the user
    (tree / "etc/group").write_text("root:x:0:\n")
    built = subprocess.run(
        ["apptainer", "build", str(image), str(tree)], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return image


def binds(image: Path) -> tuple[str, ...]:
    """Return the options of a run in the small image: the host's Python, and what it needs."""
    places = {"/usr", "/opt", "/etc/alternatives", *map(os.path.realpath, _prefixes())}
    shown = [
        word
        for each in sorted(places)
        if Path(each).is_dir()
        for word in ("-B", f"{each}:{each}:ro")
    ]
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    return ("--image", str(image), *shown, "--env", f"PATH={path}")


def _prefixes() -> tuple[str, ...]:
    return sys.prefix, sys.base_prefix
