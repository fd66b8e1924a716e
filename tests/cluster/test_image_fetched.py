"""Jobs that name their image by its place in a registry: it is fetched once, kept with a manifest, and run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cluster.engine_fixtures import TestRegistry
from tests.cluster.image_fixtures import manifest_in


@pytest.fixture
def environment(
    toolkit_env: dict[str, str], shared_dir: Path, registry: TestRegistry
) -> dict[str, str]:
    """An image directory of its own, and the registry in the place of one with a name."""
    return {
        **toolkit_env,
        "TOOLKIT_IMAGES": str(shared_dir / "images"),
        "TOOLKIT_REGISTRIES": f"registry.example.org={registry.name}",
    }


def test_an_image_of_a_registry_is_fetched_once_and_kept(
    toolkit, cluster, environment, shared_dir, docker_engine, registry, tiny_reference
):
    del cluster
    reference = f"docker://{tiny_reference}"
    images = Path(environment["TOOLKIT_IMAGES"])
    job = ("run", "--image", reference, "--launcher", "none")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return toolkit(*words, cwd=shared_dir, env=environment)

    dry = run(*job, "--dry-run", "--", "cat", "/etc/passwd")
    assert dry.returncode == 0, dry.stderr
    assert "has not been fetched: its content was not checked" in dry.stderr
    assert not images.exists(), "a dry run fetches nothing"
    refused = run(*job, "--partition", "nosuch", "--", "cat", "/etc/passwd")
    assert refused.returncode == 80, refused.stderr
    assert not images.exists(), "a job that cannot run fetches nothing"

    first = run(*job, "--", "cat", "/etc/passwd")
    assert first.returncode == 0, first.stderr
    assert "root:x:0:0:root:" in first.stdout
    (sif,) = images.glob("*.sif")
    assert sif.name == "registry.example.org_stand-in_tiny_22.03-py3.sif"
    manifest = manifest_in(sif)
    digest = docker_engine.client(
        "inspect",
        "--format",
        "{{index .RepoDigests 0}}",
        f"{registry.name}/stand-in/tiny:22.03-py3",
    )
    assert manifest["base"] == {"reference": tiny_reference, "digest": digest.partition("@")[2]}
    assert (manifest["origin"], manifest["runscript"]) == (reference, False)
    assert digest.partition("@")[2] in manifest["command"], (
        "the command fetches the very same image again"
    )

    before = sif.stat()
    second = run(*job, "--", "cat", "/etc/passwd")
    assert second.returncode == 0, second.stderr
    assert (sif.stat().st_ino, sif.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert "pull" not in second.stderr
    shown = run("image", "show", sif.stem)
    assert shown.returncode == 0, shown.stderr
    assert not [path for path in images.iterdir() if path.name.startswith(".toolkit")]


def test_an_image_that_was_pushed_is_run_from_where_it_is(
    toolkit, cluster, environment, shared_dir, registry, tiny_base
):
    del cluster
    sif = shared_dir / "by-hand.sif"
    build = ["apptainer", "build", "--fakeroot", str(sif), tiny_base]
    subprocess.run(
        build,
        check=True,
        capture_output=True,
        env={**environment, "APPTAINER_TMPDIR": str(shared_dir)},
    )
    place = f"oras://{registry.name}/images/by-hand:1"
    subprocess.run(
        ["apptainer", "push", "-U", "--no-https", str(sif), place], check=True, capture_output=True
    )
    done = toolkit(
        *"run --image".split(),
        place,
        *"--launcher none -- cat /etc/group".split(),
        cwd=shared_dir,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert "root:x:0:" in done.stdout
    (image,) = Path(environment["TOOLKIT_IMAGES"]).glob("*.sif")
    assert manifest_in(image)["origin"] == place
