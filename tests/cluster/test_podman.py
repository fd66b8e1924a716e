"""What ranks run in the containers of a real podman."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.contained import containers_end_with_their_job, hostile_strings_arrive
from tests.cluster.podman_fixtures import TestPodman


@pytest.fixture
def podman_env(toolkit_env: dict[str, str], podman: TestPodman) -> dict[str, str]:
    """For a user whose Docker is set to the tests' podman."""
    return {**toolkit_env, **podman.environment}


@pytest.mark.long  # beside it: the same in Docker's containers
@pytest.mark.usefixtures("cluster")
def test_hostile_strings_reach_ranks_in_podman(
    toolkit: Any,
    podman_env: dict[str, str],
    podman: TestPodman,
    podman_python: str,
    shared_dir: Path,
) -> None:
    hostile_strings_arrive(toolkit, podman_env, podman, podman_python, shared_dir)


@pytest.mark.long  # beside it: the same of Docker's containers
@pytest.mark.usefixtures("cluster")
def test_containers_of_podman_end_with_their_job(
    toolkit: Any,
    podman_env: dict[str, str],
    podman: TestPodman,
    podman_python: str,
    shared_dir: Path,
) -> None:
    containers_end_with_their_job(toolkit, podman_env, podman, podman_python, shared_dir)
