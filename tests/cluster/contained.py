"""What ranks without Apptainer tell, and what holds of them in containers of Docker's engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cluster.engine_fixtures import TestEngine
from tests.cluster.ranks import none_left, wait_for
from tests.hostile import HOSTILE, MULTILINE

TELL = """\
import json, os, sys
sys.stdout.write(json.dumps({"argv": sys.argv[1:], "environment": dict(os.environ), "path": sys.path, "python": sys.executable,
                             "directory": os.getcwd(), "user": os.getuid(), "host": os.uname().nodename,
                             "task": os.environ.get("SLURM_PROCID")}) + "\\n")
"""
# Does not end when it is told to.
STAYS = """\
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: print("told to end", flush=True))
print("is there", flush=True)
while True:
    time.sleep(1)
"""


def told(directory: Path, name: str) -> list[dict[str, Any]]:
    """What each rank of a run said with TELL; the last line of a log may be written just now."""
    logs = sorted((directory / "runs" / name / "logs").glob("*-*.log"))
    return [
        json.loads(line)
        for log in logs
        for line in log.read_text().split("\n")[:-1]
        if line.startswith("{")
    ]


def hostile() -> tuple[list[str], dict[str, str]]:
    """Words, and variables, each with one of the hostile strings."""
    words = [*HOSTILE, *MULTILINE, ""]
    return words, {f"V{index}": word for index, word in enumerate(words)}


def options_of(variables: dict[str, str]) -> list[str]:
    return [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]


def containers_end_with_their_job(
    toolkit: Any, env: dict[str, str], engine: TestEngine, image: str, place: Path
) -> None:
    """Cancelled, a rank is told to end; one that does not is killed, with nobody left to remove its container but the container itself."""
    (place / "stays.py").write_text(STAYS)
    options = ("--detach", "--runtime", "docker", "--image", image, "--launcher", "none")
    done = toolkit("run", *options, "--ntasks-per-node", "2", "stays.py", cwd=place, env=env)
    assert done.returncode == 0, done.stderr
    number = json.loads((place / "runs/stays-0001/run.json").read_text())["job_id"]

    def said() -> str:
        return "".join(log.read_text() for log in (place / "runs/stays-0001/logs").glob("*"))

    wait_for(lambda: said().count("is there") == 2, "both ranks", says=said)
    assert sorted(engine.containers()) == [f"toolkit-test-{number}.0.{task}" for task in (0, 1)]
    cancelled = toolkit("cancel", "stays-0001", cwd=place)
    assert cancelled.returncode == 0, cancelled.stderr
    wait_for(lambda: engine.containers() == [], "no container to be left", says=said)
    logs = [log.read_text() for log in (place / "runs/stays-0001/logs").glob("*-*.log")]
    assert len(logs) == 2
    assert all("told to end" in log for log in logs)
    none_left(place)
