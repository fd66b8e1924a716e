"""Tiny images that are built from a base in a real registry, by Docker or by Apptainer, in a store of their own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.engine_fixtures import TestEngine, TestRegistry
from tests.cluster.image_fixtures import Tiny, manifest_in, quoted, tidied


@dataclass
class Docked(Tiny):
    """Tiny images whose base is in a registry."""

    def recipe(
        self, *commands: str, checks: str = "", more: str = "", name: str = "tiny", base: str = ""
    ) -> Path:
        path = self.place / f"{name}.toml"
        lines = "".join(f"    {quoted(command)},\n" for command in commands)
        path.write_text(
            f'summary = "tiny"\n[base]\nkind = "docker"\n{base or f"image = {quoted(self.base)}"}\n[space]\nimage = 10\nbuild = 20\n{more}'
            f'[[steps]]\nblock = "run"\nname = "act"\ncommands = [\n{lines}]\nchecks = {{{checks}}}\n'
        )
        return path

    def build(self, recipe: Path, *options: str) -> subprocess.CompletedProcess[str]:
        return self.run("build", recipe, "--engine", "docker", *options)

    @property
    def manifest(self) -> dict[str, object]:
        return manifest_in(self.images / "tiny.sif")


@contextmanager
def store_of(
    environment: dict[str, str], registry: TestRegistry, reference: str
) -> Iterator[Docked]:
    """A store of its own for an engine."""
    place = Path(
        subprocess.run(
            ["mktemp", "-d", "/var/tmp/toolkit-test-XXXXXX"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    )
    store = Docked(place, reference)
    # A newer client without its plugin buildx may lie before Debian's.
    path = f"/usr/bin:{os.environ['PATH']}"
    mirrors = f"registry.example.org={registry.name}"
    store.extra = {**environment, "TOOLKIT_REGISTRIES": mirrors, "PATH": path}
    for made in tidied(store):
        assert isinstance(made, Docked)
        yield made
    subprocess.run(["rm", "-rf", place], check=True)


@pytest.fixture
def docked(
    docker_engine: TestEngine, registry: TestRegistry, tiny_reference: str
) -> Iterator[Docked]:
    """A store of its own beside the tests' engine, in which no image of the store is left."""
    with store_of(docker_engine.environment, registry, tiny_reference) as made:
        yield made
    docker_engine.client("rmi", "-f", "toolkit/tiny:latest", check=False)
