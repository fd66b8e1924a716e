"""The local cluster that is meant: named after any verb, and offered where another one is up."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.unit.test_cli import said
from toolkit import shell
from toolkit.cli.main import cli
from toolkit.errors import SlurmUnreachableError
from toolkit.planning import settings


def all_commands(
    command: click.Command, context: click.Context, name: str
) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found
            yield from all_commands(found, context, f"{name} {below}")


def test_every_command_takes_the_name_of_a_cluster():
    commands = dict(all_commands(cli, click.Context(cli), "toolkit"))
    assert len(commands) > 50
    lacking = [
        name
        for name, one in commands.items()
        if not any("--cluster" in parameter.opts for parameter in one.params)
    ]
    assert lacking == []


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a path that is short enough for clusters."""
    with tempfile.TemporaryDirectory(prefix="c", dir="/var/tmp") as name:
        monkeypatch.setenv("TOOLKIT_CLUSTER", "")
        monkeypatch.setenv("TOOLKIT_CLUSTER_DIR", name)
        yield Path(name)


@pytest.mark.parametrize(
    "words", [("--cluster", "nu", "cluster", "status"), ("cluster", "status", "--cluster", "nu")]
)
def test_the_name_is_meant_by_everything(here, words):
    del here
    code, _, error = said(*words)
    assert (code, "the local cluster 'nu' is not up" in error) == (69, True)


def test_a_cluster_that_was_named_is_not_exchanged_for_another_slurm(here, monkeypatch):
    del here
    monkeypatch.setattr(shell, "which", lambda _: "/opt/slurm/bin/sbatch")
    assert settings.find_cluster("auto").origin == "the Slurm on PATH"
    monkeypatch.setenv("TOOLKIT_CLUSTER", "nu")
    with pytest.raises(SlurmUnreachableError, match="'nu' is not up"):
        settings.find_cluster("auto")
    assert os.environ["TOOLKIT_CLUSTER"] == "nu"
