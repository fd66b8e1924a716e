"""Builds by Docker: what is lent to them, what the client is told, and which engine is found (a stand-in)."""

from __future__ import annotations

import hashlib
import json
import shlex
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Thread
from typing import Any, cast

import pytest

from toolkit.errors import ConfigError, ImageMissingError, NeedsInstallError
from toolkit.images.builder.docker import (
    client_environment,
    engine_image_name,
    find_builder,
    write_secrets,
)
from toolkit.images.builder.remote_base import resolve_base
from toolkit.images.host.host_config import HostConfig
from toolkit.images.recipe.bases import Docker
from toolkit.runtimes import docker as runtime

DOCKER = runtime.Engine(cast(Any, None), "unix:///d", "Docker", "20")


def test_nothing_lent_is_an_argument_or_a_variable_of_the_client(tmp_path, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://me:it's secret@proxy")
    for name in ("https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CONTAINER_HOST", "unix:///another")
    monkeypatch.setenv("DOCKER_CONTEXT", "another")
    mirror, config = "http://mirror.site/debian", HostConfig(files={"pip.conf": "secret"})
    files = write_secrets(config, tmp_path, mirror=mirror, release="bookworm")
    assert sorted(files) == "apt.conf pip.conf sources.list variables".split()
    assert files["sources.list"].read_text() == f"deb {mirror} bookworm main\n"
    assert "/mnt/sources.list" in files["apt.conf"].read_text()
    assert shlex.split(files["variables"].read_text()) == [
        "export",
        "http_proxy=http://me:it's secret@proxy",
    ]
    environment = client_environment(DOCKER)
    assert not {"http_proxy", "CONTAINER_HOST", "NO_PROXY", "DOCKER_CONTEXT"} & set(environment)
    assert environment["DOCKER_HOST"] == "unix:///d"


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        ("pytorch_22.03", "toolkit/pytorch_22.03"),
        ("A+b..-y.", "toolkit/a-b-y"),
        ("-+x", "toolkit/x"),
    ],
)
def test_the_name_of_an_image_in_the_engine(recipe, name):
    assert engine_image_name(recipe) == name


def test_a_base_in_an_archive_is_told_by_its_bytes(tmp_path):
    (tmp_path / "x.tar").write_bytes(b"x")
    digest = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    base = Docker(image="nvcr.io/nvidia/pytorch:22.03-py3", archive=f"oci-archive:{tmp_path}/x.tar")
    found = resolve_base(base)
    assert found
    assert (found.image.reference, found.image.digest) == (base.image, f"sha256:{digest}")
    assert found.base.output().header == ("Bootstrap: oci-archive", f"From: {tmp_path}/x.tar")
    with pytest.raises(ImageMissingError):
        resolve_base(Docker(image="a.site/x:1", archive=f"docker-archive:{tmp_path}/missing"))
    with pytest.raises(ConfigError):
        resolve_base(Docker(image="a.site/x:1", archive="dir:/x"))


@contextmanager
def answering(sock: Path, component: str, version: str) -> Iterator[str]:
    """What looks like an engine to who asks for its version."""
    told = {"ApiVersion": "1.41", "MinAPIVersion": "1.24", "Version": version}
    body = json.dumps({**told, "Components": [{"Name": component, "Version": version}]}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = body if self.path.endswith("/version") else b"{}"
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with socketserver.ThreadingUnixStreamServer(str(sock), Handler) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"unix://{sock}"
        server.shutdown()


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A user without any setting of Docker's."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / ".docker"))
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    sockets = tuple(str(tmp_path / f"{name}.sock") for name in ("docker", "podman"))
    monkeypatch.setattr(runtime, "_SYSTEM_SOCKETS", sockets)
    return tmp_path


def test_what_the_user_chose_is_the_only_one_that_is_asked(alone, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{alone}/other.sock")
    with answering(alone / "docker.sock", "Engine", "1"), pytest.raises(NeedsInstallError) as error:
        runtime.find_engine()
    assert error.value.details == (f"unix://{alone}/other.sock: no such socket",)


def test_the_context_of_the_user_is_followed(alone, monkeypatch):
    identity = hashlib.sha256(b"test").hexdigest()  # as Docker files it
    place = {"docker": {"Host": f"unix://{alone}/chosen.sock", "SkipTLSVerify": False}}
    described = {"Name": "test", "Metadata": {}, "Endpoints": place}
    meta = alone / ".docker/contexts/meta" / identity / "meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text(json.dumps(described))
    (alone / ".docker/config.json").write_text('{"currentContext": "test"}')
    with answering(alone / "chosen.sock", "Engine", "27.1") as address:
        assert runtime.find_engine().address == address
        (alone / ".docker/config.json").write_text("{}")
        monkeypatch.setenv("DOCKER_CONTEXT", "test")
        assert runtime.find_engine().address == address


def test_no_engine_says_what_was_tried_and_what_to_do(alone):
    with pytest.raises(NeedsInstallError, match="no Docker engine answers") as raised:
        runtime.find_engine()
    assert raised.value.details == ("no socket is at any of the usual places",)
    (alone / "docker.sock").touch()
    with pytest.raises(NeedsInstallError) as raised:
        runtime.find_engine()
    assert len(raised.value.details) == 1
    assert "--engine apptainer" in str(raised.value.next_step)


def test_podman_is_no_engine_that_builds(alone):
    podman = answering(alone / "podman.sock", "Podman Engine", "4.3.1")
    with podman, pytest.raises(NeedsInstallError, match="by which no image is built") as raised:
        find_builder()
    assert "build by Apptainer" in str(raised.value.next_step)


def test_podmans_client_is_told_the_socket_of_another_user(alone, monkeypatch):
    with answering(alone / "podman.sock", "Podman Engine", "4.3.1") as address:
        found = runtime.find_engine()
        assert (found.is_ours, runtime.address_for_client(found)) == (True, "")
        monkeypatch.setattr("os.geteuid", lambda: 4242)
        assert (found.is_ours, runtime.address_for_client(found)) == (False, address)
        monkeypatch.setenv("DOCKER_HOST", "unix:///chosen")
        assert runtime.address_for_client(found) == "unix:///chosen"
    monkeypatch.delenv("DOCKER_HOST")
    with answering(alone / "docker.sock", "Engine", "27.1"):
        assert runtime.address_for_client(runtime.find_engine()) == ""
