"""Every recipe on a base of NVIDIA's, built by both engines from a stand-in for that base through the real code path.

No CUDA is here, and no network to NGC: see tests/cluster/standin/STAND-IN for what in these bases
is real and what is not.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cluster.image_fixtures import manifest_in
from toolkit.images.recipe import library
from toolkit.images.recipe.bases import Ngc
from toolkit.images.recipe.names import list_recipes
from toolkit.images.store.settings import inspect

RECIPES = [name for name in list_recipes() if isinstance(library.load(name).base, Ngc)]
_CHECKS = {
    "nccl-tests": ["nccl-tests"],
    "pytorch_22.03": ["imports", "horovod-build", "ranks-gloo", "ranks-mpi"],
    "pytorch_25.06": ["imports", "horovod-build", "ranks-gloo", "ranks-mpi"],
    "ray": ["imports"],
    "tensorflow_22.03": ["imports", "horovod-build", "ranks-mpi", "ranks-gloo"],
    "tensorflow_25.02": ["imports", "horovod-build", "ranks-mpi", "ranks-gloo"],
}


@pytest.fixture(scope="module")
def kept(engine_directory: Path) -> Path:
    """What the builds of one recipe keep for the next: three of them begin with the same base."""
    directory = engine_directory / "kept"
    directory.mkdir()
    return directory


def inside(image: Path, *argv: str) -> str:
    command = ["apptainer", "--silent", "run", "--cleanenv", "--containall", str(image), *argv]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout


def test_there_is_a_stand_in_for_every_recipe():
    assert sorted(_CHECKS) == sorted(RECIPES)


# One of PyTorch and one of TensorFlow; the others have the same blocks.
@pytest.mark.parametrize("recipe", ["pytorch_22.03", "tensorflow_25.02"])
@pytest.mark.slow("four builds of real recipes")
@pytest.mark.timeout(1800)
def test_a_recipe_of_ngc_builds_from_a_stand_in(docked, docker_engine, ngc_stand_ins, kept, recipe):
    docked.extra["TOOLKIT_REGISTRIES"] = f"nvcr.io={ngc_stand_ins}"
    (docked.images / ".cache").symlink_to(kept)
    path = (
        docked.place / f"{recipe}.toml"
    )  # the same recipe, but for what NVIDIA's bases take on disk
    path.write_text(
        f'summary = "stand-in"\nextends = "{recipe}"\n[space]\nimage = 100\nbuild = 500\n'
    )
    image, packages = docked.images / f"{recipe}.sif", {}
    for engine in ("docker", "apptainer"):
        image.unlink(missing_ok=True)
        # A minute each on two idle cores.
        done = docked.run("build", path, "--engine", engine, seconds=850)
        assert done.returncode == 0, done.stderr
        known = manifest_in(image)
        own = known["verified"][: len(_CHECKS[recipe])]
        assert sorted(check["name"] for check in own) == sorted(_CHECKS[recipe])
        assert all(check["outcome"] == "passed" for check in own)
        assert known["builder"].startswith(f"{engine} ")
        assert known["base"]["reference"] == library.load(recipe).base.output().dockerfile
        assert known["base"]["digest"].startswith("sha256:")
        packages[engine] = known["packages"]
        said = inspect(str(image))["labels"]
        assert said["org.opencontainers.image.description"].startswith(
            "stand-in for an image of NVIDIA"
        )
        assert said["toolkit.recipe-hash"] == library.hash_recipe(library.load(str(path)))
        assert inside(image, "cat", "/STAND-IN").startswith("This image is a stand-in")
        assert "entrypoint" not in inside(image, "python3", "-c", "print('quiet')")
    assert packages["docker"] == packages["apptainer"]
    if recipe == "pytorch_25.06":  # the base's constraints are respected
        assert packages["docker"]["pip"]["cloudpickle"] == "3.1.1"
    docker_engine.client("rmi", "-f", f"toolkit/{recipe}:latest", check=False)
