"""`toolkit image build --engine docker` with a real engine: what is built, what is kept, what is lent, and what is left when it fails."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.cluster.docked_fixtures import Docked
from tests.cluster.engine_fixtures import TestEngine, TestRegistry, engine_in, start_engine
from tests.cluster.image_fixtures import command_lines
from tests.cluster.ordinary_user import becoming, change_accounts
from tests.cluster.ranks import wait_for
from toolkit.images.store.settings import inspect

BUILT = ["tiny.log", "tiny.sif"]


def _names(saved: Path) -> Iterator[str]:
    """Yield every file of every layer; of Docker since 25, layers are blobs among others."""
    with tarfile.open(saved) as archive:
        for member in archive:
            is_layer = member.isfile() and (
                member.name.endswith("layer.tar") or member.name.startswith("blobs/")
            )
            stream = archive.extractfile(member) if is_layer else None
            if stream:
                with contextlib.suppress(tarfile.ReadError), tarfile.open(fileobj=stream) as layer:
                    yield from (name.removeprefix("./") for name in layer.getnames())


def named(engine: TestEngine) -> str:
    """What the engine has under the name of the recipe."""
    return engine.client("images", "-q", "toolkit/tiny")


def test_a_build_makes_an_image_a_sif_and_its_manifest(
    docked: Docked, docker_engine: TestEngine, registry: TestRegistry
) -> None:
    # No other test of this engine builds these very words: a cached step shows no line.
    recipe = docked.recipe("echo hello >/greeting", checks='greeting = "cat /greeting"')
    done = docked.build(recipe)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(docked.images / "tiny.sif")
    assert docked.left() == BUILT
    assert docked.inside("/bin/cat", "/greeting") == "hello\n"
    known = docked.manifest
    assert str(known["builder"]).startswith("docker ")
    own = cast("Any", known["verified"])[0]
    assert (own["name"], own["outcome"], own["detail"]) == ("greeting", "passed", "hello")
    digest = docker_engine.client(
        *"image inspect --format".split(),
        "{{index .RepoDigests 0}}",
        f"{registry.name}/stand-in/tiny:22.03-py3",
    )
    assert known["base"] == {"reference": docked.base, "digest": digest.partition("@")[2]}
    for step in ("base", "act", "convert", "checks", "pack"):
        assert re.search(rf"^{step} .* done +\d+:\d\d$", done.stderr, re.MULTILINE), done.stderr
    said = inspect(str(docked.images / "tiny.sif"))["labels"]
    assert said["toolkit.recipe"] == "tiny"
    assert said["org.opencontainers.image.description"].startswith("stand-in")
    run = [
        *"apptainer --silent run --containall".split(),
        str(docked.images / "tiny.sif"),
        *"printf %s|".split(),
        "two words",
        "$HOME",
    ]
    assert (
        subprocess.run(run, capture_output=True, text=True, check=True).stdout == "two words|$HOME|"
    )
    assert (
        docker_engine.client("run", "--rm", "--network=none", "toolkit/tiny", "cat", "/greeting")
        == "hello"
    )


def test_what_the_host_lends_is_there_in_the_build_and_nowhere_afterwards(
    docked: Docked, docker_engine: TestEngine
) -> None:
    docked.extra |= {
        "PIP_INDEX_URL": "https://reader:t0psecret@packages.example.org/simple",
        "http_proxy": "http://proxied:t1psecret@proxy.example.org:3128",
        "LEAKED": "yes",
    }
    recipe = docked.recipe(
        "cat /mnt/pip.conf",
        "echo $http_proxy",
        "env",
        "ls /mnt",
        "while test ! -e /mnt/never; do sleep 1; done",
    )
    process = docked.start("build", recipe, "--engine", "docker")
    log = docked.images / "tiny.failed.log"
    wait_for(lambda: log.exists() and "+ sleep 1" in log.read_text(), "the step that waits")
    lines = command_lines()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    place = str(docked.place).encode()
    assert any(b"--secret" in line and place in line for line in lines)
    assert not any(b"t0psecret" in line or b"t1psecret" in line for line in lines)
    done = docked.build(docked.recipe("cat /mnt/pip.conf", "echo $http_proxy", "env", "ls /mnt"))
    assert done.returncode == 0, done.stderr
    text = (docked.images / "tiny.log").read_text()
    assert "https://reader:****@packages.example.org/simple" in text
    assert "proxied:****@proxy.example.org" in text
    assert "LEAKED" not in text
    assert docked.inside("/bin/find", "/mnt") == "/mnt\n"
    everything = text.encode() + (docked.images / "tiny.sif").read_bytes()
    everything += (
        docker_engine.client("history", "--no-trunc", "toolkit/tiny").encode()
        + docker_engine.client("inspect", "toolkit/tiny").encode()
    )
    saved = docked.place / "saved.tar"
    docker_engine.client("save", "-o", str(saved), "toolkit/tiny")
    names = list(_names(saved))
    assert "bin/cat" in names
    assert not [name for name in names if name.startswith("mnt/")]
    everything += saved.read_bytes()
    for secret in (b"t0psecret", b"t1psecret"):
        assert secret not in everything
    assert b"packages.example.org" not in everything.replace(text.encode(), b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_build_that_is_stopped_leaves_nothing_and_goes_on_the_next_time(
    docked: Docked, docker_engine: TestEngine, number: signal.Signals
) -> None:
    first = '[[steps]]\nblock = "run"\nname = "first"\ncommands = ["echo first > /first"]\n'
    recipe = docked.recipe("sleep 300", more=first)
    process = docked.start("build", recipe, "--engine", "docker")
    log = docked.images / "tiny.failed.log"
    wait_for(lambda: log.exists() and "+ sleep 300" in log.read_text(), "the step that sleeps")
    process.send_signal(number)
    process.communicate(timeout=120)
    wait_for(lambda: not docked.processes(), "the end of everything")
    if number != signal.SIGKILL:  # then the next build removes it
        wait_for(lambda: docked.left() == ["tiny.failed.log"], "the work directory to go")
    assert named(docker_engine) == ""
    done = docked.build(docked.recipe("true", more=first))
    assert done.returncode == 0, done.stderr
    assert docked.left() == BUILT


def test_an_engine_that_stops_in_the_middle(docked: Docked, engine_directory: Path) -> None:
    with engine_in(engine_directory / "stops") as engine:
        docked.extra |= engine.environment
        recipe = docked.recipe("sleep 300")
        process = docked.start("build", recipe, "--engine", "docker")
        log = docked.images / "tiny.failed.log"
        wait_for(lambda: log.exists() and "+ sleep 300" in log.read_text(), "the step that sleeps")
        engine.end()
        _, said = process.communicate(timeout=120)
        assert process.returncode == 74
        assert "tiny could not be built: the step act failed" in said
        assert docked.left() == ["tiny.failed.log"]
        gone = docked.build(recipe)
        assert gone.returncode == 72
        assert "no Docker engine answers" in gone.stderr
        assert "--engine apptainer" in gone.stderr
        again = start_engine(engine.directory)
        try:
            assert named(again) == ""
            done = docked.build(docked.recipe("true"))
            assert done.returncode == 0, done.stderr
        finally:
            again.end()


def test_a_reader_builds_the_definition_by_docker_alone(
    docked: Docked, docker_engine: TestEngine, registry: TestRegistry
) -> None:
    recipe = docked.recipe("echo 'two  words' > /greeting", checks='greeting = "cat /greeting"')
    said = docked.run("render", recipe, "--format", "docker")
    assert said.returncode == 0, said.stderr
    assert "--mount=type=secret" not in said.stdout
    base = f"BASE={registry.name}/stand-in/tiny:22.03-py3"
    image = docker_engine.client(
        "build", "-q", "--network=host", "--build-arg", base, "-", input=said.stdout.encode()
    )
    assert docker_engine.client(
        "run", "--rm", "--network=none", image, "sh", "/opt/toolkit/checks/run"
    ).splitlines() == ["two  words", "toolkit-check: greeting passed: two  words"]


def test_docker_builds_where_apptainer_may_not(docked: Docked, docker_engine: TestEngine) -> None:
    """A user without subordinate ids, who may talk to Docker."""
    name = f"tk-plain-{os.getpid()}"
    change_accounts("useradd", "--create-home", "--home-dir", f"/var/tmp/{name}", name)
    sock = Path(docker_engine.address.removeprefix("unix://"))
    try:
        for file in ("/etc/subuid", "/etc/subgid"):
            change_accounts("sed", "-i", f"/^{name}:/d", file)
        sock.chmod(0o666)
        subprocess.run(["chown", "-R", name, docked.place], check=True)
        docked.become = becoming(name)
        recipe = docked.recipe("echo hello > /greeting", checks='greeting = "cat /greeting"')
        done = docked.build(recipe)
        assert done.returncode == 0, done.stderr
        assert docked.inside("/bin/cat", "/greeting") == "hello\n"
        own = cast("Any", docked.manifest["verified"])[0]
        assert (own["name"], own["outcome"], own["detail"]) == ("greeting", "passed", "hello")
        neither = docked.run("build", recipe, "--force")
        assert neither.returncode == 77, neither.stderr
    finally:
        sock.chmod(0o660)
        change_accounts("userdel", "--remove", name, check=False)
