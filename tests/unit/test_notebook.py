"""Notebooks before they are submitted: what is refused, and what the script holds."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.samples import LOCAL, MANIFEST, inputs
from toolkit import shell
from toolkit.cli.forward import Entrance, require_free
from toolkit.cli.notebook import idle_seconds
from toolkit.errors import (
    BusyError,
    CommandFailedError,
    JobLostError,
    PlanError,
    UntrustedError,
    UsageError,
)
from toolkit.model.image import Packages
from toolkit.model.run import JobState
from toolkit.model.site import Access
from toolkit.planning.plan import plan
from toolkit.records.store import Paths
from toolkit.runs import forward, status
from toolkit.runs import notebook as notebooks
from toolkit.scripts import script
from toolkit.slurm.client import Client

_JUPYTER = replace(MANIFEST, packages=Packages(pip={"jupyterlab": "4.6.6", "torch": "2.13.0"}))


def notebook(job: dict[str, Any] | None = None, **changes: Any) -> Any:
    given = {
        "launcher": "notebook",
        "arguments": ("0", "."),
        "ntasks_per_node": None,
        "nodes": 1,
        **(job or {}),
    }
    settings = {"script": "jupyter", "program": True, "manifest": _JUPYTER, **changes}
    return inputs(given, **settings)


def refusal(given: Any) -> str:
    with pytest.raises(PlanError) as caught:
        plan(given)
    return " ".join(f"{each.place} {each.cause} {each.next_step}" for each in caught.value.findings)


@pytest.mark.parametrize(
    ("text", "seconds"), [(None, 0), ("30m", 1800), ("2h", 7200), ("90s", 90), ("30", 1800)]
)
def test_times_without_use(text: str | None, seconds: int) -> None:
    assert idle_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0m", "1.5h", "-1m", "30 m", "1d", "٣m", "9999999m"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        idle_seconds(text)


def test_an_image_without_jupyterlab_is_refused_with_the_feature_that_adds_it() -> None:
    bare = replace(MANIFEST, packages=Packages(pip={"torch": "2.13.0"}))
    assert "--with jupyter" in refusal(notebook(manifest=bare))
    plan(notebook(manifest=None))  # what is not known is not refused


def test_a_sites_limit_of_notebooks_is_kept() -> None:
    site = replace(LOCAL, notebook_minutes=1440)
    assert "1440 minutes at most" in refusal(notebook({"time": "2-0:00:00"}, site=site))
    plan(notebook({"time": "24:00:00"}, site=site))


def test_a_job_array_of_notebooks_is_refused() -> None:
    assert "--array" in refusal(notebook({"array": "0-3"}))


def test_the_script_holds_no_token_and_no_port() -> None:
    text = script(plan(notebook()))
    assert "umask 077" in text
    assert "--port" not in text
    assert '"KernelManager.transport": "ipc"' in text


def test_a_place_that_cannot_be_had_is_refused_before_the_job_queues(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(UntrustedError):
        require_free(Entrance(8888, tmp_path / "door"))
    with pytest.raises(UsageError, match="not at both"):
        require_free(Entrance(8888, tmp_path / "door", 8888))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(BusyError, match="is not available"):
            require_free(Entrance(8888, None, other.getsockname()[1]))


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> forward.Door:
    """The way to a server of an array of two elements on one node."""
    states = [JobState(job_id=number, state="RUNNING", nodes="nid001") for number in (71, 72)]
    monkeypatch.setattr(status, "running", lambda _: states)
    monkeypatch.setattr(status, "submission_of", lambda _: None)
    monkeypatch.setattr(status, "client_of", lambda _: Client(Access()))
    return forward.locate(Paths(tmp_path / "runs/notebook-0001"), "8888")


def test_the_first_element_of_an_array_is_reached(door: forward.Door) -> None:
    assert (door.node, door.job_id) == ("nid001", 71)


def test_a_job_that_was_requeued_to_another_node_has_ended(door: forward.Door) -> None:
    assert door.is_running()
    assert not door._replace(node="nid002").is_running()
    assert not door._replace(job_id=70).is_running()  # another element, which has ended


def test_a_step_of_the_relay_opens_no_port_for_mpi(door: forward.Door) -> None:
    assert "--mpi=none" in door.transport(("true",))


def test_a_server_that_does_not_listen_yet(
    door: forward.Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebooks, "is_notebook", lambda _: True)
    with pytest.raises(JobLostError, match="not listen yet"):
        notebooks.server(door.paths)


def test_a_server_is_proven_beside_a_prolog_and_within_another_job(
    door: forward.Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(
        argv: Sequence[str], *, env: Mapping[str, str], input: str, **_: Any
    ) -> shell.Result:
        assert "SLURM_MEM_PER_CPU" not in env
        assert "secret" in input
        assert not any("secret" in word for word in argv)
        return shell.Result(tuple(argv), 0, f"Welcome to nid001\n403 {code}\n", "")

    monkeypatch.setenv("SLURM_MEM_PER_CPU", "100")
    monkeypatch.setattr("toolkit.shell.run", answer)
    code = "200"
    notebooks.prove(door, token="secret")
    code = "403"
    with pytest.raises(CommandFailedError):
        notebooks.prove(door, token="secret")
