"""Jobs that name their image by its place in a registry: it is fetched once, kept with a manifest, and run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.engine_fixtures import TestRegistry
from tests.cluster.image_fixtures import manifest_in

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def images(shared_dir: Path) -> Path:
    """An image directory of its own."""
    return shared_dir / "images"


@pytest.fixture
def run(
    toolkit: Run,
    cluster: object,
    toolkit_env: dict[str, str],
    shared_dir: Path,
    images: Path,
    registry: TestRegistry,
) -> Run:
    """Run with that directory, and with the registry in the place of one with a name."""
    del cluster
    mirrors = f"registry.example.org={registry.name}"
    env = {**toolkit_env, "TOOLKIT_IMAGES": str(images), "TOOLKIT_REGISTRIES": mirrors}
    return lambda *words: toolkit(*words, cwd=shared_dir, env=env)


def test_an_image_of_a_registry_is_fetched_once_and_kept(
    run, images, docker_engine, registry, tiny_reference
):
    reference = f"docker://{tiny_reference}"
    job = ("run", "--image", reference, "--launcher", "none")
    program = ("--", "cat", "/etc/passwd")
    dry = run(*job, "--dry-run", *program)
    assert dry.returncode == 0, dry.stderr
    assert "has not been fetched: its content was not checked" in dry.stderr
    assert not images.exists(), "a dry run fetches nothing"
    refused = run(*job, "--partition", "nosuch", *program)
    assert refused.returncode == 80, refused.stderr
    assert not images.exists(), "a job that cannot run fetches nothing"

    first = run(*job, *program)
    assert first.returncode == 0, first.stderr
    assert "root:x:0:0:root:" in first.stdout
    (sif,) = images.glob("*.sif")
    assert sif.name == "registry.example.org_stand-in_tiny_22.03-py3.sif"
    manifest = manifest_in(sif)
    name = f"{registry.name}/stand-in/tiny:22.03-py3"
    said = docker_engine.client("inspect", "--format", "{{index .RepoDigests 0}}", name)
    digest = said.partition("@")[2]
    assert manifest["base"] == {"reference": tiny_reference, "digest": digest}
    assert (manifest["origin"], manifest["runscript"]) == (reference, False)
    assert digest in manifest["command"], "the command fetches the very same image again"

    before = sif.stat()
    second = run(*job, *program)
    assert second.returncode == 0, second.stderr
    assert (sif.stat().st_ino, sif.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert "pull" not in second.stderr
    shown = run("image", "show", sif.stem)
    assert shown.returncode == 0, shown.stderr
    assert not list(images.glob(".toolkit*"))


def test_an_image_that_was_pushed_is_run_from_where_it_is(
    run, images, shared_dir, registry, tiny_base
):
    sif, place = shared_dir / "by-hand.sif", f"oras://{registry.name}/images/by-hand:1"
    env = {**os.environ, "APPTAINER_TMPDIR": str(shared_dir)}
    for words in (
        ("build", "--fakeroot", sif, tiny_base),
        ("push", "-U", "--no-https", sif, place),
    ):
        subprocess.run(["apptainer", *words], env=env, check=True, capture_output=True)
    done = run(*f"run --image {place} --launcher none -- cat /etc/group".split())
    assert done.returncode == 0, done.stderr
    assert "root:x:0:" in done.stdout
    (image,) = images.glob("*.sif")
    assert manifest_in(image)["origin"] == place
