"""A real recipe by both engines: the same packages, the same checks passed."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cluster.docked_fixtures import Docked


def test_the_same_recipe_has_the_same_packages_by_either_engine(docked: Docked, pytorch_image: Path) -> None:
    """pytorch_cpu, with Horovod: what Apptainer compiled is lent to Docker's build, the rest of it is done anew."""
    by_apptainer = json.loads(pytorch_image.with_suffix(".json").read_text())
    (docked.images / ".cache").symlink_to(pytorch_image.parent / ".cache")
    del docked.extra["TOOLKIT_REGISTRIES"]
    done = docked.run("build", "pytorch_cpu", "--engine", "docker", seconds=1500)
    assert done.returncode == 0, done.stderr
    by_docker = json.loads((docked.images / "pytorch_cpu.json").read_text())
    assert by_docker["builder"].startswith("docker ")
    assert by_docker["packages"]["apt"] == by_apptainer["packages"]["apt"]
    assert by_docker["packages"]["pip"] == by_apptainer["packages"]["pip"]
    assert {check["name"]: check["passed"] for check in by_docker["checks"]} == {
        check["name"]: True for check in by_apptainer["checks"] if check["name"] != "labels"
    }
    for fact in ("recipe_hash", "frameworks", "mpi", "horovod", "system"):
        assert by_docker.get(fact) == by_apptainer.get(fact), fact
