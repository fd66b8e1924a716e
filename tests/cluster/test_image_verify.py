"""`toolkit image verify`: the real image on two nodes of the real Slurm, and tiny images that are broken on purpose."""

from __future__ import annotations

import json

import pytest

from tests.cluster.image_fixtures import manifest_in


def outcomes(text: str) -> dict[str, tuple[str, str]]:
    return {one["name"]: (one["outcome"], one["detail"]) for one in json.loads(text)["verdicts"]}


@pytest.mark.usefixtures("cluster")
def test_the_real_image_is_proven_on_two_nodes(toolkit, pytorch_image, shared_dir):
    done = toolkit(
        "image", "verify", str(pytorch_image), "--nodes", "2", "--json", cwd=shared_dir, timeout=400
    )
    assert done.returncode == 0, done.stderr
    found = outcomes(done.stdout)
    passed = {name for name, (outcome, _) in found.items() if outcome == "passed"}
    here = {
        "manifest",
        "size",
        "labels",
        "entrypoint",
        "imports",
        "user-site",
        "openmpi",
        "horovod-build",
        "ranks-mpi",
        "ranks-gloo",
    }
    assert here | {"pmi", "nodes-mpi", "nodes-gloo"} <= passed, found
    assert "nid001, nid002" in found["nodes-mpi"][1]
    assert {name for name, (outcome, _) in found.items() if outcome == "unchecked"} == {
        "gpu-code",
        "ranks-nccl",
        "nodes-nccl",
    }
    assert found["ranks-nccl"][1] == "no CUDA is in it"
    kept = manifest_in(pytorch_image)["verified"]
    assert {"nodes-mpi", "imports"} <= {one["name"] for one in kept if one["outcome"] == "passed"}
    assert "local" in {one.get("site") for one in kept if one["name"] == "nodes-mpi"}


def test_an_image_that_is_wrong_is_found_before_it_is_kept(tiny):
    noisy = 'printf "#!/bin/sh\\necho welcome\\n" > /.singularity.d/env/99-noise.sh'
    built = tiny.run("build", tiny.recipe("mkdir -p /.singularity.d/env", noisy))
    assert built.returncode == 74
    assert "| entrypoint: by run: it prints 1 line of its own, first: welcome" in built.stderr
    assert not (tiny.images / "tiny.sif").exists()
    assert tiny.run("build", tiny.recipe("true")).returncode == 0
    found = outcomes(tiny.run("verify", "tiny", "--json").stdout)
    assert found["entrypoint"] == (
        "passed",
        "prints nothing of its own by run, as jobs start it",
    ), found
    assert found["imports"][0] == "unchecked"
    assert found["ranks-mpi"][0] == "unchecked"
