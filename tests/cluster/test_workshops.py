"""A workshop with real users on a real Slurm: rehearsed, joined by another user, and nothing left."""

from __future__ import annotations

import json
import pwd
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.image_fixtures import wait_for

ROOT = Path(__file__).parents[2]
NEURON = ROOT / "workshops" / "neuron-2022"


def accounts() -> list[str]:
    return [entry.pw_name for entry in pwd.getpwall() if entry.pw_name.startswith("tkw")]


def places() -> list[str]:
    return [path.name for path in Path("/var/tmp").glob("toolkit-rehearsal-*")]


@pytest.mark.long
def test_six_people_rehearse_the_workshop_of_2022(
    pytorch_image: Path, toolkit: Any, tmp_path: Path
) -> None:
    """Six users go through two exercises on the imitated Neuron, and nothing of them is left."""
    del pytorch_image
    before = places()
    report = tmp_path / "report.html"
    only = ("--only", "02-horovod-pytorch", "--only", "10-ddp")
    done = toolkit(
        *("workshop", "rehearse", str(NEURON), "--people", "6", "--json", "--html", str(report)),
        *only,
        timeout=1200,
    )
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    found = json.loads(done.stdout)
    attempts = found["attempts"]
    assert len(attempts) == 6 * 3
    assert all(each["ok"] for each in attempts)
    trained = [each for each in attempts if each["exercise"] != "join"]
    assert {each["exercise"] for each in trained} == {"02-horovod-pytorch", "10-ddp"}
    assert all(each["accuracy"] > 0.9 and each["queued"] >= 0 for each in trained)
    assert "like neuron-2022" in found["cluster"]
    assert found["controller_cpu"] > 0
    assert len(found["disk"]) == 6
    assert "0.9" in report.read_text()
    assert accounts() == []
    assert places() == before


@pytest.fixture
def light(tmp_path: Path) -> Path:
    """A workshop whose exercises run without an image: one succeeds, one fails, one does not end."""
    scripts = {
        "good": "print('{\"accuracy\": 0.5}')",
        "bad": "labels = {}; labels['label']",
        "endless": "import time; time.sleep(3600)",
    }
    folder = tmp_path / "light"
    text = 'title = "Light"\n'
    for name, script in scripts.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "train.py").write_text(script + "\n")
        job = 'launcher = "none"\nruntime = "none"\ntime = "10"\n'
        (folder / name / "job.toml").write_text(job)
        text += f'[[exercises]]\nname = "{name}"\nfolder = "{name}"\n'
    (folder / "workshop.toml").write_text(text)
    return folder


def test_who_got_what_and_why_not_is_reported(toolkit: Any, light: Path) -> None:
    before = places()
    only = ("--only", "good", "--only", "bad")
    done = toolkit(
        "workshop", "rehearse", str(light), "--people", "3", *only, "--json", timeout=400
    )
    assert done.returncode == 92, done.stderr[-3000:]
    attempts = json.loads(done.stdout)["attempts"]
    good = [each for each in attempts if each["exercise"] == "good"]
    bad = [each for each in attempts if each["exercise"] == "bad"]
    assert [each["accuracy"] for each in good] == [0.5] * 3
    assert [each["ok"] for each in bad] == [False] * 3
    assert all("KeyError: 'label'" in each["cause"] for each in bad)
    assert all(each["fix"] for each in bad)
    assert accounts() == []
    assert places() == before


def test_after_an_interrupt_no_user_and_no_cluster_is_left(
    toolkit_env: dict[str, str], light: Path, tmp_path: Path
) -> None:
    before, log = places(), tmp_path / "log"
    argv = ("workshop", "rehearse", str(light), "--people", "2", "--only", "endless")
    with log.open("w") as stream:
        process = subprocess.Popen(
            (sys.executable, "-m", "toolkit", *argv),
            env=toolkit_env,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
        try:
            wait_for(
                lambda: "rehearsal  2 participants" in log.read_text(), "participants", seconds=120
            )
            assert len(accounts()) == 2
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 130, log.read_text()
        finally:
            process.kill()
            process.wait()
    assert accounts() == []
    assert places() == before
