"""What builds by Docker mount into a Dockerfile, what the client is told, and what it prints."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, cast

import pytest

from toolkit.errors import ConfigError, ImageMissingError
from toolkit.images.builder.docker import client_environment, engine_image_name
from toolkit.images.builder.host_files import add_mounts, write_secrets
from toolkit.images.builder.remote_base import resolve_base
from toolkit.images.host.host_config import HostConfig
from toolkit.images.recipe.bases import Docker
from toolkit.runtimes.docker import Engine

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
    assert second.startswith("RUN --mount=type=tmpfs,target=/mnt ")
    own = "--mount=type=bind,from=build,source=/opt/wheels,target=/opt/wheels"
    assert third.endswith(f"{own} {begins}set -ex; \\")

    def without_runs(text: str) -> str:
        return "\n".join(line[:3] if line[:4] == "RUN " else line for line in text.splitlines())

    assert without_runs(changed) == without_runs(DOCKERFILE)


@pytest.fixture
def lent(tmp_path: Path) -> Path:
    (tmp_path / "lent").mkdir()
    return tmp_path / "lent"


def test_nothing_lent_is_an_argument_or_a_variable_of_the_client(lent, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://me:it's secret@proxy")
    for name in ("https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CONTAINER_HOST", "unix:///another")
    monkeypatch.setenv("DOCKER_CONTEXT", "another")
    mirror, config = "http://mirror.site/debian", HostConfig(files={"pip.conf": "secret"})
    files = write_secrets(config, lent, mirror=mirror, release="bookworm")
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
