"""`toolkit image build --engine docker` with a real engine: what is built, what is kept, what is lent, and what is left when it fails."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.docked_fixtures import Docked
from tests.cluster.engine_fixtures import TestEngine, TestRegistry, start_engine
from tests.cluster.image_fixtures import command_lines, outcomes, steps
from tests.cluster.ordinary_user import becoming, change_accounts
from toolkit.images.store.settings import inspect

BUILT = ["tiny.log", "tiny.sif"]


def _names(saved: Path) -> Iterator[str]:
    """Yield every file of every layer; of Docker since 25, layers are blobs among others."""
    with tarfile.open(saved) as archive:
        for member in archive:
            is_layer = member.name.endswith("layer.tar") or member.name.startswith("blobs/")
            stream = archive.extractfile(member) if is_layer and member.isfile() else None
            if stream:
                with contextlib.suppress(tarfile.ReadError), tarfile.open(fileobj=stream) as layer:
                    yield from (name.removeprefix("./") for name in layer.getnames())


def started(docked: Docked, recipe: Path, until: str) -> subprocess.Popen[str]:
    return docked.started(recipe, "--engine", "docker", until=until)


def greeted(docked: Docked) -> tuple[str, str, str]:
    """What is known of the first check of an image."""
    check = docked.manifest["verified"][0]
    return check["name"], check["outcome"], check["detail"]


def test_a_build_makes_an_image_a_sif_and_its_manifest(
    docked: Docked, docker_engine: TestEngine, registry: TestRegistry
) -> None:
    # No other test of this engine builds these very words: a cached step shows no line.
    recipe = docked.recipe("echo 'two  words' >/greeting", checks='greeting = "cat /greeting"')
    done = docked.build(recipe)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(docked.sif)
    assert docked.left() == BUILT
    assert docked.inside("/bin/cat", "/greeting") == "two  words\n"
    known = docked.manifest
    assert known["builder"].startswith("docker ")
    assert greeted(docked) == ("greeting", "passed", "two  words")
    base = f"{registry.name}/stand-in/tiny:22.03-py3"
    digest = docker_engine.client(
        *"image inspect --format".split(), "{{index .RepoDigests 0}}", base
    )
    assert known["base"] == {"reference": docked.base, "digest": digest.partition("@")[2]}
    names = ("base", "act", "convert", "checks", "pack")
    assert outcomes(done.stderr) == dict.fromkeys(names, "done")
    labels = inspect(str(docked.sif))["labels"]
    assert labels["toolkit.recipe"] == "tiny"
    assert labels["org.opencontainers.image.description"].startswith("stand-in")
    run = f"apptainer --silent run --containall {docked.sif} printf %s|".split()
    said = subprocess.run([*run, "two words", "$HOME"], capture_output=True, text=True, check=True)
    assert said.stdout == "two words|$HOME|"
    # A reader builds the definition by Docker alone.
    definition = docked.run("render", recipe, "--format", "docker").stdout
    assert "--mount=type=secret" not in definition
    words = ("build", "-q", "--network=host", "--build-arg", f"BASE={base}", "-")
    image = docker_engine.client(*words, input=definition.encode())
    for made in ("toolkit/tiny", image):
        checked = docker_engine.client(
            *"run --rm --network=none".split(), made, "sh", "/opt/toolkit/checks/run"
        )
        assert checked == "two  words\ntoolkit-check: greeting passed: two  words"


def test_what_the_host_lends_is_there_in_the_build_and_nowhere_afterwards(
    docked: Docked, docker_engine: TestEngine
) -> None:
    docked.extra |= {
        "PIP_INDEX_URL": "https://reader:t0psecret@packages.example.org/simple",
        "http_proxy": "http://proxied:t1psecret@proxy.example.org:3128",
        "LEAKED": "yes",
    }
    commands = ("cat /mnt/pip.conf", "echo $http_proxy", "env", "ls /mnt")
    process = started(docked, docked.recipe(*commands, "sleep 300"), "+ sleep 300")
    lines = command_lines()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    place = str(docked.place).encode()
    assert any(b"--secret" in line and place in line for line in lines)
    assert not any(b"t0psecret" in line or b"t1psecret" in line for line in lines)
    docked.idle()
    assert docked.left() == ["tiny.failed.log"]
    done = docked.build(docked.recipe(*commands))
    assert done.returncode == 0, done.stderr
    text = (docked.images / "tiny.log").read_text()
    assert "https://reader:****@packages.example.org/simple" in text
    assert "proxied:****@proxy.example.org" in text
    assert "LEAKED" not in text
    assert docked.inside("/bin/find", "/mnt") == "/mnt\n"
    saved = docked.place / "saved.tar"
    docker_engine.client("save", "-o", str(saved), "toolkit/tiny")
    names = list(_names(saved))
    assert "bin/cat" in names
    assert not [name for name in names if name.startswith("mnt/")]
    everything = saved.read_bytes() + docked.sif.read_bytes()
    for words in (("history", "--no-trunc"), ("inspect",)):
        everything += docker_engine.client(*words, "toolkit/tiny").encode()
    assert b"packages.example.org" not in everything
    for secret in (b"t0psecret", b"t1psecret"):
        assert secret not in everything + text.encode()


def test_a_build_that_is_killed_leaves_nothing_and_goes_on_the_next_time(
    docked: Docked, docker_engine: TestEngine
) -> None:
    def recipe(last: str) -> Path:
        return docked.recipe("echo first > /first", more=steps(("last", last)))

    process = started(docked, recipe("sleep 300"), "+ sleep 300")
    process.kill()
    process.communicate(timeout=120)
    docked.idle()
    assert docker_engine.client("images", "-q", "toolkit/tiny") == ""
    done = docked.build(recipe("true"))
    assert done.returncode == 0, done.stderr
    assert docked.left() == BUILT


def test_an_engine_that_stops_in_the_middle(docked: Docked, engine_directory: Path) -> None:
    directory = engine_directory / "stops"
    directory.mkdir()
    engine = start_engine(directory)
    try:
        docked.extra |= engine.environment
        recipe = docked.recipe("sleep 300")
        process = started(docked, recipe, "+ sleep 300")
    finally:
        engine.end()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 74
    assert "tiny could not be built: the step act failed" in said
    assert docked.left() == ["tiny.failed.log"]
    gone = docked.build(recipe)
    assert gone.returncode == 72
    assert "no Docker engine answers" in gone.stderr
    assert "--engine apptainer" in gone.stderr


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
        assert greeted(docked) == ("greeting", "passed", "hello")
        neither = docked.run("build", recipe, "--force")
        assert neither.returncode == 77, neither.stderr
    finally:
        sock.chmod(0o660)
        change_accounts("userdel", "--remove", name, check=False)
