"""podman in the place of Docker, a real one: what its socket and its client build, and what ranks run in its containers."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.cluster.contained import containers_end_with_their_job, hostile_strings_arrive
from tests.cluster.docked_fixtures import Docked
from tests.cluster.image_fixtures import command_lines
from tests.cluster.podman_fixtures import TestPodman
from tests.cluster.ranks import wait_for
from tests.cluster.test_image_docker import BUILT
from tests.progress import Silent
from toolkit.images.builder.docker import docker
from toolkit.images.builder.docker.clients import ClientLog, find_client
from toolkit.images.builder.docker.host_files import add_mounts
from toolkit.images.builder.follow import BuildContext
from toolkit.images.host.workspace import Workspace
from toolkit.images.store.settings import inspect
from toolkit.runtimes.docker import find_engine

FIRST = '[[steps]]\nblock = "run"\nname = "first"\ncommands = ["echo first > /first"]\n'


def files_of(saved: Path) -> Iterator[str]:
    """Every file of every layer, and what a layer takes away."""
    with tarfile.open(saved) as archive:
        for member in archive:
            stream = (
                archive.extractfile(member)
                if member.isreg() and member.name.endswith(".tar")
                else None
            )
            if stream:
                with tarfile.open(fileobj=stream) as layer:
                    yield from (name.removeprefix("./") for name in layer.getnames())


def named(podman: TestPodman) -> str:
    return podman.client("images", "-q", "localhost/toolkit/tiny")


def test_podman_builds_an_image_a_sif_and_its_manifest_and_keeps_what_has_not_changed(
    podded: Docked, podman: TestPodman
) -> None:
    recipe = podded.recipe("echo one > /greeting", checks='greeting = "cat /greeting"', more=FIRST)
    done = podded.build(recipe)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(podded.images / "tiny.sif")
    assert podded.left() == BUILT
    known = podded.manifest
    assert str(known["builder"]).startswith("podman ")
    own = cast("Any", known["verified"])[0]
    assert (own["name"], own["outcome"], own["detail"]) == ("greeting", "passed", "one")
    assert isinstance(known["base"], dict)
    assert known["base"]["reference"] == podded.base
    for step in ("base", "first", "act", "clean", "convert", "checks", "pack"):
        assert re.search(rf"^{step} .* done +\d+:\d\d$", done.stderr, re.MULTILINE), done.stderr
    said = inspect(str(podded.images / "tiny.sif"))["labels"]
    assert said["toolkit.recipe"] == "tiny"
    assert said["org.opencontainers.image.description"].startswith("stand-in")
    assert (
        podman.client("run", "--rm", "--network=none", "toolkit/tiny", "cat", "/greeting") == "one"
    )
    assert json.loads(podded.build(recipe, "--json").stdout)["kept"] is True

    changed = podded.build(
        podded.recipe("echo two > /greeting", checks='greeting = "cat /greeting"', more=FIRST)
    )
    assert changed.returncode == 0, changed.stderr
    assert re.search(r"^first .* kept ", changed.stderr, re.MULTILINE), changed.stderr
    assert re.search(r"^act .* done ", changed.stderr, re.MULTILINE), changed.stderr
    assert podded.inside("/bin/cat", "/greeting", "/first") == "two\nfirst\n"
    anew = podded.build(recipe, "--force")
    assert anew.returncode == 0, anew.stderr
    assert " kept " not in anew.stderr
    assert podman.containers() == []


STAGES = """\
ARG BASE=nothing
FROM ${BASE} AS common

FROM common AS build
RUN set -ex; \\
    echo '==> compile: part'; \\
    mkdir -p /opt/wheels /opt/empty; \\
    echo made of $(cat /mnt/wheels/x.whl) > /opt/wheels/made

FROM common
RUN --mount=type=bind,from=build,source=/opt/wheels,target=/opt/wheels set -ex; \\
    echo '==> install: part'; \\
    cat /opt/wheels/made > /made
"""


def test_a_stage_that_compiles_is_no_part_of_the_image_and_its_wheels_come_from_the_context(
    podman: TestPodman, podded: Docked, tiny_base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", podman.address)
    packed = subprocess.run(
        ["tar", "-C", tiny_base, "-c", "."], capture_output=True, check=True
    ).stdout
    podman.client(
        "import", "--change", "ENV PATH=/bin", "-", "localhost/stand-in/plain", input=packed
    )
    found = find_engine()
    for number, wheel in enumerate(("x", "y")):
        place = Workspace(podded.place / f"output-{number}", podded.place / f"scratch-{number}", ())
        for directory in (place.output, place.scratch, place.scratch / "wheels"):
            directory.mkdir()
        (place.scratch / "wheels/x.whl").write_text(wheel)
        (place.scratch / "Dockerfile").write_text(add_mounts(STAGES, tmpfs=False))
        client, result = find_client(found), place.output / "id"
        context = BuildContext("tiny", place, place.output / "log", Silent(), {})
        follower = context.follower({}, ())
        command = client.command(place.scratch, "localhost/stand-in/plain", {}, result, fresh=True)
        log = ClientLog(follower, {})
        image = docker.run_client(client, command, result, context, follower, log)
        follower.end()
        assert log.cached == []
        inside = podman.client(
            *"run --rm --network=none".split(),
            image,
            *"/bin/sh -c".split(),
            "cat /made; ls /opt; ls -d /mnt",
        )
        assert inside.splitlines() == [f"made of {wheel}", "/mnt"]
    podman.client("rmi", "-f", "localhost/stand-in/plain")
    assert podman.containers() == []


def test_what_the_host_lends_to_podman_is_there_in_the_build_and_nowhere_afterwards(
    podded: Docked, podman: TestPodman
) -> None:
    wheels = podded.place / "wheels, and more"
    wheels.mkdir()
    (wheels / "x.whl").touch()
    podded.extra |= {
        "PIP_FIND_LINKS": f"file://{str(wheels).replace(' ', '%20')}",
        "PIP_INDEX_URL": "https://reader:t0psecret@packages.example.org/simple",
        "http_proxy": "http://proxied:t1p$(x);secret@proxy.example.org:3128",
        "LEAKED": "yes",
    }
    shows = ("cat /mnt/pip.conf", "echo $http_proxy $no_proxy", "env", "ls /mnt")
    process = podded.start(
        "build",
        podded.recipe(*shows, "while test ! -e /mnt/never; do sleep 1; done"),
        *"--engine docker".split(),
    )
    log = podded.images / "tiny.failed.log"
    wait_for(lambda: log.exists() and "+ sleep 1" in log.read_text(), "the step that waits")
    lines = command_lines()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    place = str(podded.place).encode()
    assert any(b"--secret" in line and place in line for line in lines)
    assert not any(b"t0psecret" in line or b"t1p$(x);secret" in line for line in lines)
    done = podded.build(podded.recipe(*shows))
    assert done.returncode == 0, done.stderr
    text = (podded.images / "tiny.log").read_text()
    assert "https://reader:****@packages.example.org/simple" in text
    assert re.search(r"find-links = http://127\.0\.0\.1:\d+/\*\*\*\*/find-links/\d+", text)
    assert re.search(
        r"^http://proxied:\*\*\*\*@proxy\.example\.org:3128 \S*127\.0\.0\.1$", text, re.MULTILINE
    )
    assert "LEAKED" not in text
    assert podded.inside("/bin/find", "/mnt") == "/mnt\n"
    everything = text.encode() + (podded.images / "tiny.sif").read_bytes()
    everything += (
        podman.client("history", "--no-trunc", "toolkit/tiny")
        + podman.client("inspect", "toolkit/tiny")
    ).encode()
    everything += podman.daemon.log.read_bytes()
    saved = podded.place / "saved.tar"
    podman.client("save", "-o", str(saved), "toolkit/tiny")
    names = list(files_of(saved))
    assert "bin/cat" in names
    assert not [name for name in names if name.startswith(("mnt/", ".wh."))]
    everything += saved.read_bytes()
    for secret in (b"t0psecret", b"t1p$(x);secret", b"t1p%24", b"t1p$", str(wheels).encode()):
        assert secret not in everything
    assert b"packages.example.org" not in everything.replace(text.encode(), b"")
    kept = [
        path
        for path in podman.directory.rglob("*")
        if path.is_file() and b"t0psecret" in path.read_bytes()
    ]
    assert kept == [], "what podman keeps for itself"


def steps_of(word: str) -> list[int]:
    """The processes with a word in their command line, wherever they are."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended meanwhile
    return found


def test_a_build_by_podman_that_is_stopped_leaves_nothing_and_goes_on_the_next_time(
    podded: Docked, podman: TestPodman
) -> None:
    duration = f"3{podded.place.name.encode().hex()[-6:]}".translate(
        str.maketrans("abcdef", "123456")
    )
    process = podded.start(
        "build", podded.recipe(f"sleep {duration}", more=FIRST), "--engine", "docker"
    )
    log = podded.images / "tiny.failed.log"
    wait_for(
        lambda: log.exists() and "+ sleep" in log.read_text() and steps_of(duration),
        "the step that sleeps",
    )
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    wait_for(lambda: not (podded.processes() or steps_of(duration)), "the end of everything")
    wait_for(lambda: podded.left() == ["tiny.failed.log"], "the work directory to go")
    wait_for(lambda: podman.containers() == [], "podman to take its containers away")
    assert named(podman) == ""
    done = podded.build(podded.recipe("true", more=FIRST))
    assert done.returncode == 0, done.stderr
    assert re.search(r"^first .* kept ", done.stderr, re.MULTILINE), done.stderr
    assert podded.left() == BUILT


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
