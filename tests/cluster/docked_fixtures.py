"""Tiny images that are built from a base in a real registry, by Docker or by Apptainer, in a store of their own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.cluster.engine_fixtures import TestEngine, TestRegistry
from tests.cluster.image_fixtures import Tiny, tidied


@dataclass
class Docked(Tiny):
    """Tiny images whose base is in a registry."""

    def begins(self) -> str:
        return f'kind = "docker"\nimage = "{self.base}"'

    def build(self, recipe: Path, *options: str) -> CompletedProcess[str]:
        return self.run("build", recipe, "--engine", "docker", *options)


@contextmanager
def store_of(engine: TestEngine, registry: TestRegistry, reference: str) -> Iterator[Docked]:
    """A store of its own for an engine."""
    with tempfile.TemporaryDirectory(prefix="toolkit-test-", dir="/var/tmp") as place:
        store = Docked(Path(place), reference)
        # A newer client without its plugin buildx may lie before Debian's.
        path = f"/usr/bin:{os.environ['PATH']}"
        mirrors = f"registry.example.org={registry.name}"
        store.extra = {**engine.environment, "TOOLKIT_REGISTRIES": mirrors, "PATH": path}
        for _ in tidied(store):
            yield store


@pytest.fixture
def docked(
    docker_engine: TestEngine, registry: TestRegistry, tiny_reference: str
) -> Iterator[Docked]:
    """A store of its own beside the tests' engine, in which no image of the store is left."""
    with store_of(docker_engine, registry, tiny_reference) as made:
        yield made
    docker_engine.client("rmi", "-f", "toolkit/tiny:latest", check=False)
