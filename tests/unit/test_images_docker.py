"""What builds by Docker mount into a Dockerfile, what the client is told, and what it prints."""

from __future__ import annotations

import shlex
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, cast

import pytest

from toolkit.errors import ConfigError, ImageMissingError
from toolkit.images.builder import docker
from toolkit.images.builder.buildlog import Reader
from toolkit.images.builder.docker import ClientLog, client_environment, engine_image_name
from toolkit.images.builder.host_files import add_mounts, host_files
from toolkit.images.builder.remote_base import resolve_base
from toolkit.images.host.host_config import HostConfig
from toolkit.images.host.kernel import Bind
from toolkit.images.host.workspace import Workspace
from toolkit.images.recipe.bases import Docker
from toolkit.images.registry.references import parse
from toolkit.images.registry.registry import Source
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


DOCKER = Engine(cast(Any, None), "unix:///d", "Docker", "20")


def test_what_is_lent_is_mounted_for_each_step_and_nothing_else_is_changed():
    changed = add_mounts(DOCKERFILE)
    assert changed.count("--mount=type=tmpfs,target=/mnt ") == 3
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
    assert "toolkit-wheels" not in add_mounts(elsewhere)


@pytest.fixture
def lent(tmp_path: Path) -> Path:
    (tmp_path / "lent").mkdir()
    return tmp_path / "lent"


def test_directories_are_served_while_the_build_runs(tmp_path, lent):
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


def test_a_mirror_in_a_directory_is_served(tmp_path, lent):
    (tmp_path / "debian").mkdir()
    mirror = f"file:{tmp_path}/debian"
    with host_files(HostConfig(), lent, "w0rd", mirror=mirror, release="bookworm") as files:
        assert files["sources.list"].read_text().startswith("deb http://127.0.0.1:")


def test_nothing_lent_is_an_argument_or_a_variable_of_the_client(lent, monkeypatch):
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
    environment = client_environment(DOCKER)
    assert not {"http_proxy", "CONTAINER_HOST", "NO_PROXY", "DOCKER_CONTEXT"} & set(environment)
    assert environment["DOCKER_HOST"] == "unix:///d"


def test_a_pull_has_the_certificates_of_the_engine_and_one_login(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "own"))
    monkeypatch.delenv("DOCKER_CERT_PATH", raising=False)
    monkeypatch.setattr(docker, "write_login", lambda *_: None)
    given: list[dict[str, str]] = []

    class Pulling:
        def follow(self, _: object, environment: dict[str, str]) -> int:
            given.append(environment)
            return 0

    place = Workspace(output=tmp_path, scratch=tmp_path, locks=())
    wanted = parse("nvcr.io/x:1")
    docker._pull(DOCKER, "docker", Source(wanted, wanted), place, cast(Any, Pulling()))
    assert given[0]["DOCKER_CERT_PATH"] == str(tmp_path / "own")
    assert given[0]["DOCKER_CONFIG"] == str(tmp_path / "docker")


class Followed:
    """Stands for the follower of a build."""

    def __init__(self, steps: list[str]) -> None:
        self.reader, self.began = Reader(steps), list[str]()

    def reuse(self, step: str) -> None:
        self.began.append(f"kept {step}")

    def take_line(self, line: str) -> None:
        if self.reader.feed(line) == "step":
            self.began.append(self.reader.step)


def take(steps: str, lines: list[str]) -> tuple[ClientLog, Followed]:
    followed = Followed(steps.split())
    log = ClientLog(cast(Any, followed))
    for line in lines:
        log.take(f"{line}\n")
    return log, followed


def test_steps_are_followed_and_the_one_that_failed_is_named():
    def read(name: str) -> list[str]:
        return (GOLDEN / f"docker/{name}-20.10.txt").read_text().splitlines()

    _, followed = take("apt torch act", read("built"))
    assert followed.began == ["apt", "torch", "act"]
    log, followed = take("apt torch act", read("failed"))
    reader, kept = followed.reader, ["apt", "torch"]
    assert log.cached == kept
    assert (followed.began, reader.command, log.code) == (
        ["kept apt", "kept torch", "act"],
        "cat /missing/file",
        1,
    )
    assert reader.tail[-1] == "cat: /missing/file: No such file or directory"
    log, followed = take("apt torch act", read("stopped"))
    assert (followed.reader.step, log.code, followed.reader.no_space) == ("act", None, False)


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
def test_the_name_of_an_image_in_the_engine(recipe, name):
    assert engine_image_name(recipe) == name


def test_a_base_in_an_archive_is_told_by_its_bytes(tmp_path):
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
    with pytest.raises(ImageMissingError):
        resolve_base(Docker(image="a.site/x:1", archive=f"docker-archive:{tmp_path}/missing"))
    with pytest.raises(ConfigError):
        resolve_base(Docker(image="a.site/x:1", archive="dir:/x"))
