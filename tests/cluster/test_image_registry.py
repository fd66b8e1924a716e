"""Bases in real registries and in archives, by both engines: which image a tag is, logins, and what nobody may see."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from tests.cluster.docked_fixtures import Docked
from tests.cluster.engine_fixtures import REGISTRY_PASSWORD, REGISTRY_USER, TestEngine, TestRegistry
from tests.cluster.image_fixtures import command_lines
from tests.cluster.ranks import wait_for
from tests.stand_in import standing_in


@pytest.fixture
def guarded(
    docked: Docked,
    docker_engine: TestEngine,
    guarded_registry: TestRegistry,
    registry: TestRegistry,
) -> Iterator[Docked]:
    """A store whose base is in the registry that wants a login."""
    name = f"{guarded_registry.name}/stand-in/tiny:22.03-py3"
    guarded_registry.login(docked.place)
    docker_engine.client("tag", f"{registry.name}/stand-in/tiny:22.03-py3", name)
    docker_engine.client("--config", str(docked.place / ".docker"), "push", name)
    docker_engine.client("rmi", name)
    shutil.rmtree(docked.place / ".docker")
    docked.extra["TOOLKIT_REGISTRIES"] = f"registry.example.org={guarded_registry.name}"
    yield docked
    docker_engine.client("rmi", "-f", name, check=False)


@pytest.mark.parametrize("engine", ["docker", "apptainer"])
def test_a_registry_that_wants_a_login(guarded, guarded_registry, docker_engine, engine):
    waits = guarded.recipe("true", "sleep 3")
    refused = guarded.run("build", waits, "--engine", engine)
    assert refused.returncode == 77
    assert f"the registry {guarded_registry.name} requires a login" in refused.stderr
    assert f"docker login {guarded_registry.name}" in refused.stderr
    guarded_registry.login(guarded.place)  # the home of who builds
    process = guarded.start("build", waits, "--engine", engine)
    lines: set[bytes] = set()

    def looked() -> bool:
        lines.update(command_lines())
        return process.poll() is not None

    wait_for(looked, "the build to end", seconds=120)  # as every other build may take
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert any(b"build" in line and str(guarded.place).encode() in line for line in lines)
    inspected = docker_engine.client("inspect", "toolkit/tiny") if engine == "docker" else ""
    files = [path.read_bytes() for path in guarded.images.rglob("*") if path.is_file()]
    everything = b"\n".join([*lines, *files, said.encode(), inspected.encode()])
    for secret in (REGISTRY_PASSWORD.encode(), b"cmVhZGVyOnN0YW5kLWluIHBhc3N3b3Jk"):
        assert secret not in everything
    assert REGISTRY_USER not in said


@pytest.mark.parametrize(
    ("engine", "kind"),
    [("docker", "docker-archive"), ("docker", "oci-archive"), ("apptainer", "oci-archive")],
)
def test_a_base_in_an_archive_needs_no_registry(docked, docker_engine, registry, engine, kind):
    """Of Docker's archives by Apptainer: test_image_bases.py."""
    saved, archive = docked.place / "saved.tar", docked.place / "base.tar"
    docker_engine.client("save", "-o", str(saved), f"{registry.name}/stand-in/tiny:22.03-py3")
    words = ("skopeo", "--insecure-policy", "copy", f"docker-archive:{saved}", f"{kind}:{archive}")
    subprocess.run(words, check=True, capture_output=True)
    name = "nowhere.example.org/stand-in/tiny:22.03-py3"
    base = f'kind = "docker"\nimage = "{name}"\narchive = "{kind}:{archive}"'
    recipe = docked.recipe("echo hello > /greeting", base=base)
    docked.built(recipe, "--engine", engine)
    assert docked.inside("/bin/cat", "/greeting") == "hello\n"
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert docked.manifest["base"] == {"reference": name, "digest": f"sha256:{digest}"}
    archive.write_bytes(b"x" * 1000)
    broken = docked.run("build", recipe, "--engine", engine, "--force")
    assert broken.returncode in (71, 74), broken.stderr  # the engine's own error, or ours
    archive.unlink()
    assert docked.run("build", recipe, "--engine", engine, "--force").returncode == 68


def test_a_locked_build_takes_the_image_that_was_locked_wherever_its_tag_is_now(
    docked, docker_engine, registry
):
    name, reference = f"{registry.name}/stand-in/moving:1", "registry.example.org/stand-in/moving:1"
    docker_engine.client("tag", f"{registry.name}/stand-in/tiny:22.03-py3", name)
    docker_engine.client("push", name)
    docked.base = reference
    recipe = docked.recipe("true")
    docked.built(recipe)
    locked = docked.manifest["base"]
    done = docked.run("lock", recipe)
    assert done.returncode == 0, done.stderr
    moved = f"FROM {name}\nLABEL moved=yes\n"
    docker_engine.client("build", "-q", "-t", name, "-", input=moved.encode())
    docker_engine.client("push", name)
    docked.built(recipe, "--locked", "--force")
    assert docked.manifest["base"] == locked
    again = docked.run("build", recipe, "--force")
    assert again.returncode == 0, again.stderr
    now = docked.manifest["base"]
    assert now != locked
    was = f"and was {locked['digest']} in the build before"
    assert f"{reference} is {now['digest']}, {was}" in again.stderr


@pytest.mark.parametrize(("variable", "scheme"), [("HTTPS_PROXY", "docker"), ("all_proxy", "oras")])
def test_a_pull_goes_through_the_proxy_of_the_environment(tiny, variable, scheme):
    """Skopeo and Apptainer themselves obey no ``all_proxy``."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(60)
        names = ("http", "https", "all", "no")
        tiny.extra = {f"{name}_proxy": "" for name in names}
        tiny.extra |= {name.upper(): "" for name in tiny.extra}
        tiny.extra[variable] = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        pulling = tiny.start("pull", f"{scheme}://registry.example.org/tiny:1")
        connection, _ = proxy.accept()
        with connection:
            assert connection.recv(4096).startswith(b"CONNECT registry.example.org:443 ")
            proxy.close()
        pulling.communicate(timeout=120)
    assert pulling.returncode == 71
    assert tiny.left() == []


@pytest.mark.parametrize("scheme", ["docker", "oras"])
def test_an_identity_token_reaches_skopeo_and_apptainer(tiny, scheme):
    config = json.dumps({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers"}})
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    digest = f"sha256:{hashlib.sha256(config.encode()).hexdigest()}"
    layer = {"mediaType": "application/vnd.docker.container.image.v1+json", "digest": digest}
    manifest = {"schemaVersion": 2, "mediaType": kind, "layers": []}
    manifest["config"] = {**layer, "size": len(config)}
    bodies = {"": "", "a/b/manifests/1": json.dumps(manifest), f"a/b/blobs/{digest}": config}
    with standing_in() as stand_in:

        def guarded(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
            if request.headers.get("Authorization") == "Bearer given":
                body = bodies[request.path.removeprefix("/v2/")]
                return 200, {"Content-Type": kind}, body.encode()
            challenge = f'Bearer realm="http://{stand_in.name}/token",service="tests"'
            return 401, {"WWW-Authenticate": challenge}, b""

        def token(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
            given = b'{"access_token": "given", "token": "given"}'
            is_asked = request.command == "POST"
            return (
                (200, {"Content-Type": "application/json"}, given) if is_asked else (401, {}, b"")
            )

        stand_in.answers = {"/token": token, **{f"/v2/{path}": guarded for path in bodies}}
        own = tiny.place / "own"  # where Apptainer does not look by itself
        own.mkdir()
        tiny.extra["DOCKER_CONFIG"] = str(own)
        entry = {"auth": "PHRva2VuPjo=", "identitytoken": "t0ken"}  # <token>:
        (own / "config.json").write_text(json.dumps({"auths": {stand_in.name: entry}}))
        pulled = tiny.run("pull", f"{scheme}://{stand_in.name}/a/b:1")
        assert pulled.returncode != 0, "the stand-in has no image"
        asked = [body for path, _, body in stand_in.asked if path.startswith("/token")]
        assert len(asked) >= (2 if scheme == "docker" else 1), pulled.stderr
        assert "unauthorized" not in pulled.stderr
    assert "t0ken" not in pulled.stderr
    assert not list(tiny.place.rglob("docker-config.json"))
