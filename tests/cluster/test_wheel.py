"""An installed wheel in an empty directory does what a checkout does: all data is in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.ranks import ran

CHECKOUT = Path(__file__).parent.parent.parent
PLAIN = """Traceback (most recent call last):
  File "train.py", line 2, in step
KeyError: 'weights'
"""
TINY = """summary = "tiny"
[base]
kind = "localimage"
path = "{base}"
[[steps]]
block = "run"
name = "act"
commands = ["true"]
"""

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(scope="module")
def installed(toolkit_env: dict[str, str]) -> Path:
    """Install the wheel alone into a virtual environment that the nodes see; return its programs."""
    place = Path(toolkit_env["TOOLKIT_CLUSTER_DIR"]) / "wheel"
    place.mkdir()
    pip = (sys.executable, *"-m pip --quiet --disable-pip-version-check".split())
    build = "wheel --no-deps --no-build-isolation --wheel-dir"
    subprocess.run([*pip, *build.split(), place, CHECKOUT], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "venv"], check=True)
    (wheel,) = place.glob("*.whl")
    install = ("--python", place / "venv/bin/python", "install", f"{wheel}[submit]")
    subprocess.run([*pip, *install], check=True)
    return place / "venv/bin"


@pytest.fixture
def say(installed, shared_dir, toolkit_env):
    """Return what `toolkit ARGUMENTS` of the installed wheel prints."""

    def call(*arguments: str, program: str = "toolkit", **env: str) -> str:
        env = {**toolkit_env, **env}
        done = ran(installed / program, *arguments, env=env, cwd=shared_dir, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return call


def test_recipes_jobs_sites_and_templates_are_in_it(say, pytorch_image):
    rendered = (CHECKOUT / "containers/pytorch_cpu.def").read_text()
    assert say("image", "render", "pytorch_cpu") == rendered
    assert "pytorch_cpu" in say("image", "list")
    dry = ("run", "--dry-run", "--image", str(pytorch_image))
    assert "#SBATCH --nodes=2" in say(*dry, "jobs/digits-ddp")
    assert "--mpi=" in say(*dry, "jobs/digits-horovod")
    assert "cas_v100_4" in say("site", "show", "neuron")
    assert "toolkit explain" in say("docs", "pending")


def test_it_builds_explains_examines_and_submits(say, pytorch_image, shared_dir, tiny_base):
    (shared_dir / "tiny.toml").write_text(TINY.format(base=tiny_base))
    built = say("image", "build", "tiny.toml", TOOLKIT_IMAGES=str(shared_dir / "images"))
    assert Path(built.strip()) == shared_dir / "images/tiny.sif"
    (shared_dir / "train.log").write_text(PLAIN)
    match = json.loads(say("explain", "--json", "train.log"))["match"]
    assert match["cause"].startswith("KeyError: 'weights'")
    assert json.loads(say("doctor", "--json"))["findings"]
    call = f"toolkit.submit(len, 'abc', image={str(pytorch_image)!r}).result()"
    (shared_dir / "call.py").write_text(f"import toolkit\nprint({call})")
    assert say("call.py", program="python").splitlines()[-1] == "3"


def test_the_demo_trains_on_a_cluster_of_its_own(say, pytorch_image, shared_dir, toolkit_env):
    assert pytorch_image.is_file()
    shown = say("demo")
    outcome = json.loads((shared_dir / "runs/digits-ddp-0001/outcome.json").read_text())
    assert outcome["results"]["accuracy"] >= 0.93
    assert outcome["ranks"] == {"nid001": [0, 1], "nid002": [2, 3]}
    assert str(outcome["results"]["accuracy"]) in shown
    assert not Path(toolkit_env["TOOLKIT_CLUSTER_DIR"], "demo/run/slurmctld.pid").exists()
