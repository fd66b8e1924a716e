"""Real recipes by both engines: the same packages, the same checks passed; and verified from outside."""

from __future__ import annotations

import json

import pytest

from tests.cluster.image_fixtures import manifest_in, real_image
from toolkit.model.base import from_json
from toolkit.model.image import Manifest


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("recipe", ["pytorch_cpu", "tensorflow_cpu", "ray_cpu"])
def test_the_same_recipe_has_the_same_packages_by_either_engine(recipe, docked):
    """What Apptainer compiled is lent to Docker's build, the rest of it is done anew.

    A recipe leaves versions open: where a package was released after the image of the store was
    built, that is built again, every step of it, and compared once more.
    """
    image = real_image(recipe)
    (docked.images / ".cache").symlink_to(image.parent / ".cache")
    del docked.extra["TOOLKIT_REGISTRIES"]
    done = docked.run("build", recipe, "--engine", "docker", seconds=1500)
    assert done.returncode == 0, done.stderr
    by_docker = manifest_in(docked.images / f"{recipe}.sif")
    assert by_docker["builder"].startswith("docker ")
    known = manifest_in(image)
    if by_docker["packages"] != known["packages"]:
        known = manifest_in(real_image(recipe, "--force"))
    assert by_docker["packages"]["apt"] == known["packages"]["apt"]
    assert by_docker["packages"]["pip"] == known["packages"]["pip"]
    proven = {verdict.name for verdict in from_json(json.dumps(known), Manifest).verdicts}
    assert {each["name"] for each in by_docker["verified"]} <= proven
    assert all(each["outcome"] != "failed" for each in by_docker["verified"])
    for fact in ("recipe_hash", "frameworks", "mpi", "horovod", "system"):
        assert by_docker.get(fact) == known.get(fact), fact
    verified = docked.run("verify", recipe, "--json", seconds=600)
    assert verified.returncode == 0, verified.stderr
    assert "imports" in {
        one["name"] for one in json.loads(verified.stdout)["verdicts"] if one["outcome"] == "passed"
    }
