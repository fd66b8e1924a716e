"""Finding a Docker engine and a client that can build, on stand-ins for both; the real ones are in tests/cluster."""

from __future__ import annotations

import json
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Thread

import pytest

from toolkit.errors import NeedsInstallError
from toolkit.images.builder import docker
from toolkit.runtimes import docker as docker_engine
from toolkit.runtimes.docker import find_engine


@contextmanager
def answering(sock: Path, component: str, version: str) -> Iterator[str]:
    """What looks like an engine to who asks for its version."""
    answers = {
        "/version": {
            "ApiVersion": "1.41",
            "MinAPIVersion": "1.24",
            "Version": version,
            "Components": [{"Name": component, "Version": version}],
        },
        "/info": {"DockerRootDir": "/nowhere"},
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = next(
                (answer for path, answer in answers.items() if self.path.endswith(path)), {}
            )
            body = json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def address_string(self) -> str:
            return "a socket"

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with socketserver.ThreadingUnixStreamServer(str(sock), Handler) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"unix://{sock}"
        server.shutdown()


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without any setting of Docker's."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / ".docker"))
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(
        "toolkit.runtimes.docker._SYSTEM_SOCKETS",
        (str(tmp_path / "docker.sock"), str(tmp_path / "podman.sock")),
    )
    return tmp_path


def test_what_the_user_chose_is_the_only_one_that_is_asked(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{alone}/other.sock")
    with (
        answering(alone / "docker.sock", "Engine", "1"),
        pytest.raises(NeedsInstallError) as raised,
    ):
        find_engine()
    assert raised.value.details == (f"unix://{alone}/other.sock: no such socket",)


def test_the_context_of_the_user_is_followed(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"  # sha256 of its name, as Docker files it
    meta = alone / ".docker/contexts/meta" / identity
    meta.mkdir(parents=True)
    described = {
        "Name": "test",
        "Metadata": {},
        "Endpoints": {"docker": {"Host": f"unix://{alone}/chosen.sock", "SkipTLSVerify": False}},
    }
    (meta / "meta.json").write_text(json.dumps(described))
    (alone / ".docker/config.json").write_text('{"currentContext": "test"}')
    with answering(alone / "chosen.sock", "Engine", "27.1") as address:
        assert find_engine().address == address
        (alone / ".docker/config.json").write_text("{}")
        monkeypatch.setenv("DOCKER_CONTEXT", "test")
        assert find_engine().address == address


def test_no_engine_says_what_was_tried_and_what_to_do(alone: Path) -> None:
    with pytest.raises(NeedsInstallError, match="no Docker engine answers") as raised:
        find_engine()
    assert raised.value.details == ("no socket is at any of the usual places",)
    (alone / "docker.sock").touch()
    with pytest.raises(NeedsInstallError) as raised:
        find_engine()
    assert len(raised.value.details) == 1
    assert "--engine apptainer" in str(raised.value.next_step)


def test_podman_is_no_engine_that_builds(alone: Path) -> None:
    with (
        answering(alone / "podman.sock", "Podman Engine", "4.3.1"),
        pytest.raises(NeedsInstallError, match="by which no image is built") as raised,
    ):
        docker.find_builder()
    assert "build by Apptainer" in str(raised.value.next_step)


def test_podmans_client_is_told_the_socket_of_another_user(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(alone / "podman.sock", "Podman Engine", "4.3.1") as address:
        found = find_engine()
        assert (found.is_ours, docker_engine.address_for_client(found)) == (True, "")
        monkeypatch.setattr("os.geteuid", lambda: 4242)
        assert (found.is_ours, docker_engine.address_for_client(found)) == (False, address)
        monkeypatch.setenv("DOCKER_HOST", "unix:///chosen")
        assert docker_engine.address_for_client(found) == "unix:///chosen"
    with answering(alone / "docker.sock", "Engine", "27.1"):
        monkeypatch.delenv("DOCKER_HOST")
        assert docker_engine.address_for_client(find_engine()) == ""
