"""What builds by Docker and podman mount into a Dockerfile, what their clients are told, and what they print."""

from __future__ import annotations

import shlex
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from toolkit.errors import ConfigError, ImageMissingError
from toolkit.images.builder.docker.clients import Client, ClientLog
from toolkit.images.builder.docker.docker import engine_image_name
from toolkit.images.builder.docker.host_files import add_mounts, host_files
from toolkit.images.builder.remote_base import resolve_base
from toolkit.images.host.host_config import Bind, HostConfig
from toolkit.images.recipe.bases import Docker
from toolkit.runtimes.docker import Engine

GOLDEN = Path(__file__).parents[1] / "golden"
DOCKERFILE = """\
# x
ARG BASE=debian:bookworm-slim
FROM ${BASE} AS common

RUN set -ex; \\
    # a comment, which ends no command
    echo '==> apt: python3'; \\
    true

FROM common AS build
RUN set -ex; \\
    cp /mnt/wheels/x.whl /opt/wheels

FROM common
RUN --mount=type=bind,from=build,source=/opt/wheels,target=/opt/wheels set -ex; \\
    echo 'RUN x'; \\
    ls /opt/wheels
LABEL a="/mnt/wheels"
"""


IMAGES = SimpleNamespace(get=lambda name: SimpleNamespace(id=f"id of {name}"))
SDK = cast(Any, SimpleNamespace(images=IMAGES))
DOCKER = Client(Engine(SDK, "unix:///d", "Docker", "20"), "/usr/bin/docker")
PODMAN = Client(Engine(SDK, "unix:///p", "Podman", "4"), "/usr/bin/podman", "toolkit-x.invalid")


@pytest.mark.parametrize("tmpfs", [True, False])
def test_what_is_lent_is_mounted_for_each_step_and_nothing_else_is_changed(tmpfs: bool) -> None:
    """Podman would take a directory under a tmpfs out of the image."""
    changed = add_mounts(DOCKERFILE, tmpfs=tmpfs)
    assert changed.count("--mount=type=tmpfs,target=/mnt ") == (3 if tmpfs else 0)
    for name in ("pip.conf", "variables"):
        assert changed.count(f"--mount=type=secret,id={name},target=/mnt/{name},mode=0444") == 3
    assert "RUN x" in changed
    first, second, third = (line for line in changed.splitlines() if line.startswith("RUN "))
    begins = "[ ! -f /mnt/variables ] || . /mnt/variables; exec 2>&1; "
    assert first.endswith(f" {begins}set -ex; \\")
    assert "from=toolkit-wheels" not in first + third
    assert f"--mount=type=bind,from=toolkit-wheels,target=/mnt/wheels {begins}" in second
    own = "--mount=type=bind,from=build,source=/opt/wheels,target=/opt/wheels"
    assert third.endswith(f"{own} {begins}set -ex; \\")

    def without_runs(text: str) -> str:
        return "\n".join(line[:3] if line[:4] == "RUN " else line for line in text.splitlines())

    stage = "FROM scratch AS toolkit-wheels\nCOPY wheels/ /\n\n"
    assert without_runs(changed).replace(stage, "") == without_runs(DOCKERFILE)
    elsewhere = DOCKERFILE.replace("/mnt/wheels", "/elsewhere")
    assert "toolkit-wheels" not in add_mounts(elsewhere, tmpfs=tmpfs)


@pytest.fixture
def lent(tmp_path: Path) -> Path:
    (tmp_path / "lent").mkdir()
    return tmp_path / "lent"


def test_directories_are_served_while_the_build_runs(tmp_path: Path, lent: Path) -> None:
    (tmp_path / "simple/x").mkdir(parents=True)
    (tmp_path / "simple/x/index.html").write_text('<a href="../../files/x.whl">x</a>')
    (tmp_path / "files").mkdir()
    (tmp_path / "files/x.whl").write_bytes(b"wheel")
    (tmp_path / "authorities.pem").touch()
    pip = (
        "extra-index-url = file:///mnt/extra-index-url/1/simple\nfind-links = /mnt/find-links/10\n"
    )
    binds = {
        "extra-index-url/1": tmp_path,
        "find-links/1": tmp_path / "simple",
        "find-links/10": tmp_path / "files",
        "ca-certificates.crt": tmp_path / "authorities.pem",
        "find-links/9": tmp_path / "missing",
    }
    config = HostConfig(
        files={"pip.conf": f"[global]\n{pip}"},
        binds=tuple(Bind(source=str(path), target=target) for target, path in binds.items()),
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    mirror = "http://mirror.site/debian"
    with host_files(config, lent, "w0rd", mirror=mirror, release="bookworm") as files:
        assert sorted(files) == "apt.conf ca-certificates.crt pip.conf sources.list".split()
        assert files["sources.list"].read_text() == f"deb {mirror} bookworm main\n"
        assert "/mnt/sources.list" in files["apt.conf"].read_text()
        lines = files["pip.conf"].read_text().splitlines()[1:]
        index, links = (line.partition(" = ")[2] for line in lines)
        root = index.partition("w0rd")[0]
        assert opener.open(f"{index}/x/").read() == b'<a href="../../files/x.whl">x</a>'
        assert opener.open(index.replace("/simple", "/files/x.whl")).read() == b"wheel"
        assert b"x.whl" in opener.open(f"{links}/").read()
        for path in ("", "files/x.whl", "w0rd", "w0rd/find-links/10/../../../authorities.pem"):
            with pytest.raises(urllib.error.HTTPError):
                opener.open(root + path)
    with pytest.raises(urllib.error.URLError):
        opener.open(root)


def test_a_mirror_in_a_directory_is_served(tmp_path: Path, lent: Path) -> None:
    (tmp_path / "debian").mkdir()
    mirror = f"file:{tmp_path}/debian"
    with host_files(HostConfig(), lent, "w0rd", mirror=mirror, release="bookworm") as files:
        assert files["sources.list"].read_text().startswith("deb http://127.0.0.1:")


def test_nothing_lent_is_an_argument_or_a_variable_of_the_client(
    lent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://me:it's secret@proxy")
    monkeypatch.setenv("NO_PROXY", "here")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("CONTAINER_HOST", "unix:///another")
    monkeypatch.setenv("DOCKER_CONTEXT", "another")
    with host_files(HostConfig(files={"pip.conf": "secret"}), lent, "w0rd") as files:
        assert {*shlex.split(files["variables"].read_text())} == {
            "export",
            "http_proxy=http://me:it's secret@proxy",
            "NO_PROXY=here,127.0.0.1",
            "no_proxy=here,127.0.0.1",
        }
        for client, base in ((DOCKER, "a"), (PODMAN, "id of a")):
            command = client.command(lent, "a", files, lent / "id", fresh=True)
            environment = client.environment()
            assert command[-1] == str(lent)
            assert f"BASE={base}" in command
            assert "--no-cache" in command
            assert f"id=variables,src={lent}/variables" in command
            wrong = {"http_proxy", "CONTAINER_HOST", "NO_PROXY", "DOCKER_CONTEXT"}
            assert not wrong & set(environment)
            assert "secret@" not in repr(command) + repr(environment)
    assert PODMAN.environment()["no_proxy"] == "toolkit-x.invalid"
    assert DOCKER.environment()["DOCKER_HOST"] == "unix:///d"


class Told:
    """Stands for the follower of a build."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def begin(self, step: str) -> None:
        self.events.append(("step", step))

    def reuse(self, step: str) -> None:
        self.events.append(("kept", step))


def take(lines: list[str]) -> tuple[ClientLog, list[tuple[str, str]], dict[str, str]]:
    told, details = Told(), {"base": "x"}
    log = ClientLog(cast(Any, told), details)
    for line in lines:
        log.take(f"{line}\n")
    return log, told.events, details


ENGINES = {"docker": "20.10", "podman": "4.3"}


@pytest.mark.parametrize("engine", ENGINES)
def test_steps_are_followed_and_told_apart_from_those_that_were_kept(engine: str) -> None:
    """Also where one ends without a line; the one that failed is named."""

    def read(name: str) -> list[str]:
        return (GOLDEN / engine / f"{name}-{ENGINES[engine]}.txt").read_text().splitlines()

    _, events, details = take(read("built"))
    assert events == [("step", "apt"), ("step", "torch"), ("step", "act")]
    assert details == {
        "base": "x",
        "apt": "python3",
        "torch": "torch 2.13.0+cpu",
        "act": "2 commands",
    }
    log, events, _ = take(read("failed"))
    assert events == [("kept", "apt"), ("kept", "torch"), ("step", "act")]
    assert (log.reader.step, log.reader.command, log.code) == ("act", "cat /missing/file", 1)
    assert log.reader.tail[-1] == "cat: /missing/file: No such file or directory"
    log, _, _ = take(read("stopped"))
    assert (log.reader.step, log.code, log.reader.no_space) == ("act", None, False)


_BUILDKIT = "#5 [common 2/3] RUN exec 2>&1; set -ex;     echo '==> apt: python3'"
_PODMAN = "STEP 2/3: RUN exec 2>&1; set -ex;     echo '==> apt: python3'"
_AT = 'Error: building at STEP "RUN exec 2>&1; exit code 3": '


@pytest.mark.parametrize(
    ("first", "last", "code"),
    [
        (_BUILDKIT, '#5 ERROR: process "x" did not complete successfully: exit code: 7', 7),
        (_BUILDKIT, "#5 ERROR: executor failed running [x]: network bridge not found", None),
        (_BUILDKIT, "#5 ERROR: failed to copy: write /x: no space left on device", None),
        (_PODMAN, f"x{_AT}while running runtime: exit status 137", 137),
        (_PODMAN, f"{_AT}resolving mountpoints: no image 12", None),
        (_PODMAN, f"{_AT}committing: write /x: no space left on device", None),
    ],
)
def test_how_engines_say_that_a_step_failed(first: str, last: str, code: int | None) -> None:
    log, _, _ = take([first, last, "------", "what follows"])
    assert (log.reader.step, log.code) == ("apt", code)
    assert log.reader.no_space == ("no space" in last)
    assert list(log.reader.tail) == ([] if code else [last.removeprefix("#5 ")])


def test_a_step_cannot_name_another() -> None:
    _, events, _ = take([_BUILDKIT, "#5 0.1 ==> torch: x", "#5 0.1 CACHED", "#5 0.1 ==> apt: y"])
    assert events == [("step", "apt")]


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        ("pytorch_22.03", "toolkit/pytorch_22.03"),
        ("A+b", "toolkit/a-b"),
        ("x.", "toolkit/x"),
        ("x..-y", "toolkit/x-y"),
        ("-+x", "toolkit/x"),
    ],
)
def test_the_name_of_an_image_in_the_engine(recipe: str, name: str) -> None:
    assert engine_image_name(recipe) == name


def test_a_base_in_an_archive_is_told_by_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"x")
    base = Docker(image="nvcr.io/nvidia/pytorch:22.03-py3", archive=f"oci-archive:{tmp_path}/x.tar")
    found = resolve_base(base)
    assert found
    assert found.image.reference == "nvcr.io/nvidia/pytorch:22.03-py3"
    assert (
        found.image.digest
        == "sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    )
    assert found.base.output().header == ("Bootstrap: oci-archive", f"From: {tmp_path}/x.tar")
    text = (
        "# x\n\n"
        + "\n".join(base.output().header)
        + "\nStage: build\n\n"
        + "\n".join(base.output().header)
        + "\n"
    )
    assert found.definition(text, base).count(f"From: {tmp_path}/x.tar\n") == 2
    with pytest.raises(ImageMissingError):
        resolve_base(Docker(image="a.site/x:1", archive=f"docker-archive:{tmp_path}/missing"))
    with pytest.raises(ConfigError):
        resolve_base(Docker(image="a.site/x:1", archive="dir:/x"))
