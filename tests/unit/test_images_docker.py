"""The pure parts of building by Docker: what is lent to a Dockerfile, and what BuildKit prints, as it printed it."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from toolkit.errors import ConfigError, ImageMissingError
from toolkit.images.builder.docker.archives import (
    as_docker_archive,
    write_docker_archive,
    write_layout,
)
from toolkit.images.builder.docker.docker import engine_image_name
from toolkit.images.builder.docker.host_secrets import add_mounts, mount_host_config
from toolkit.images.builder.docker.log import BuildKitLog as Reader
from toolkit.images.builder.docker.log import PodmanLog
from toolkit.images.builder.remote_base import resolve_base
from toolkit.images.host.host_mounts import Bind, HostConfig
from toolkit.images.recipe.bases import Docker

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


def test_what_is_lent_is_mounted_for_each_step_and_nothing_else_is_changed() -> None:
    changed = add_mounts(DOCKERFILE)
    assert changed.count("--mount=type=tmpfs,target=/mnt ") == 3
    assert changed.count("--mount=type=secret,id=pip.conf,target=/mnt/pip.conf") == 3
    assert "RUN x" in changed
    first, second, third = (line for line in changed.splitlines() if line.startswith("RUN "))
    assert first.endswith(" exec 2>&1; set -ex; \\")
    assert "from=toolkit-wheels" not in first + third
    assert "--mount=type=bind,from=toolkit-wheels,target=/mnt/wheels exec 2>&1; " in second
    assert third.endswith(
        "--mount=type=bind,from=build,source=/opt/wheels,target=/opt/wheels exec 2>&1; set -ex; \\"
    )
    plain = "\n".join(
        line if not line.startswith("RUN ") else "RUN" for line in DOCKERFILE.splitlines()
    )
    without = "\n".join(
        line if not line.startswith("RUN ") else "RUN" for line in changed.splitlines()
    )
    assert without.replace("FROM scratch AS toolkit-wheels\nCOPY wheels/ /\n\n", "") == plain


def test_no_stage_for_wheels_where_no_step_takes_any() -> None:
    assert "toolkit-wheels" not in add_mounts(DOCKERFILE.replace("/mnt/wheels", "/elsewhere"))


def test_directories_are_served_while_the_build_runs(tmp_path: Path) -> None:
    (tmp_path / "simple/x").mkdir(parents=True)
    (tmp_path / "simple/x/index.html").write_text('<a href="../../files/x.whl">x</a>')
    (tmp_path / "files").mkdir()
    (tmp_path / "files/x.whl").write_bytes(b"wheel")
    (tmp_path / "lent").mkdir()
    (tmp_path / "authorities.pem").touch()
    loan = HostConfig(
        files={
            "pip.conf": "[global]\nextra-index-url = file:///mnt/extra-index-url/1/simple\nfind-links = /mnt/find-links/0\n"
        },
        binds=(
            Bind(source=str(tmp_path), target="extra-index-url/1"),
            Bind(source=str(tmp_path / "files"), target="find-links/0"),
            Bind(source=str(tmp_path / "authorities.pem"), target="ca-certificates.crt"),
            Bind(source=str(tmp_path / "missing"), target="find-links/9"),
        ),
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with mount_host_config(
        loan, tmp_path / "lent", mirror="http://mirror.site/debian", release="bookworm"
    ) as lends:
        assert sorted(lends.files) == "apt.conf ca-certificates.crt pip.conf sources.list".split()
        assert (
            lends.files["sources.list"].read_text()
            == "deb http://mirror.site/debian bookworm main\n"
        )
        assert "/mnt/sources.list" in lends.files["apt.conf"].read_text()
        index, links = (
            line.partition(" = ")[2]
            for line in lends.files["pip.conf"].read_text().splitlines()[1:]
        )
        assert lends.masked[0] in index
        assert opener.open(f"{index}/x/").read() == b'<a href="../../files/x.whl">x</a>'
        assert opener.open(index.replace("/simple", "/files/x.whl")).read() == b"wheel"
        assert b"x.whl" in opener.open(f"{links}/").read()
        root = index.partition(f"/{lends.masked[0]}")[0]
        for path in (
            "/",
            "/files/x.whl",
            f"/{lends.masked[0]}/",
            f"/{lends.masked[0]}/find-links/0/../../../authorities.pem",
        ):
            with pytest.raises(urllib.error.HTTPError):
                opener.open(root + path)
        assert all("pip.conf" not in word or str(tmp_path) in word for word in lends.arguments())
    with pytest.raises(urllib.error.URLError):
        opener.open(root)


def test_a_mirror_in_a_directory_is_served(tmp_path: Path) -> None:
    (tmp_path / "lent").mkdir()
    (tmp_path / "debian").mkdir()
    with mount_host_config(
        HostConfig(), tmp_path / "lent", mirror=f"file:{tmp_path}/debian", release="bookworm"
    ) as lends:
        assert lends.files["sources.list"].read_text().startswith("deb http://127.0.0.1:")


# How each engine tells of its steps, and of which version the examples are.
LOGS: dict[str, tuple[type[Reader | PodmanLog], str]] = {
    "docker": (Reader, "20.10"),
    "podman": (PodmanLog, "4.3"),
}


def fed(engine: str, name: str) -> tuple[Reader | PodmanLog, list[tuple[str, str, str]]]:
    log, version = LOGS[engine]
    reader = log()
    events: list[tuple[str, str, str]] = []
    for line in (GOLDEN / engine / f"{name}-{version}.txt").read_text().splitlines():
        event = reader.feed(line)
        if event:
            events.append((event, reader.step, reader.shown.detail))
    return reader, events


@pytest.mark.parametrize("engine", LOGS)
def test_steps_are_followed_and_told_apart_from_those_that_were_kept(engine: str) -> None:
    """Also where one ends without a line; the one that failed is named."""
    reader, events = fed(engine, "built")
    assert events == [
        ("step", "apt", "python3"),
        ("step", "torch", "torch 2.13.0+cpu"),
        ("step", "act", "2 commands"),
    ]
    assert (reader.gone, reader.no_space) == (False, False)
    reader, events = fed(engine, "failed")
    assert events == [
        ("kept", "apt", "python3"),
        ("kept", "torch", "torch 2.13.0+cpu"),
        ("step", "act", "2 commands"),
    ]
    assert (reader.step, reader.shown.command, reader.code) == ("act", "cat /missing/file", 1)
    assert list(reader.shown.tail) == ["before", "cat: /missing/file: No such file or directory"]
    assert not reader.gone


@pytest.mark.parametrize(
    ("engine", "command", "last"),
    [
        ("docker", "cat /dev/zero", ""),
        ("podman", "sleep 311", "Error: server probably quit: unexpected EOF"),
    ],
)
def test_an_engine_that_stopped_is_told_from_a_step_that_failed(
    engine: str, command: str, last: str
) -> None:
    reader, _ = fed(engine, "stopped")
    assert reader.gone
    assert (reader.step, reader.shown.command, reader.code) == ("act", command, None)
    assert not last or reader.shown.tail[-1] == last


@pytest.mark.parametrize(
    ("line", "code", "tail"),
    [
        (
            'ERROR: process "/bin/sh -c exec 2>&1; x" did not complete successfully: exit code: 7',
            7,
            [],
        ),
        (
            "ERROR: executor failed running [/bin/sh -c x]: network bridge not found",
            None,
            ["network bridge not found"],
        ),
        (
            "ERROR: failed to copy: write /x: no space left on device",
            None,
            ["failed to copy: write /x: no space left on device"],
        ),
    ],
)
def test_how_engines_say_that_a_step_failed(line: str, code: int | None, tail: list[str]) -> None:
    reader = Reader()
    reader.feed("#5 [common 2/3] RUN exec 2>&1; set -ex;     echo '==> apt: python3'")
    reader.feed(f"#5 {line}")
    assert (reader.step, reader.code, list(reader.shown.tail), reader.no_space) == (
        "apt",
        code,
        tail,
        "no space" in line,
    )


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


def tar(**files: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name.replace("__", "/"))
            if data.startswith(b"-> "):
                member.type, member.linkname = tarfile.SYMTYPE, data[3:].decode()
                archive.addfile(member)
                continue
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


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


def test_a_tree_becomes_an_archive_that_engines_load(tmp_path: Path) -> None:
    (tmp_path / "tree.tar").write_bytes(tar(etc__hostname=b"x"))
    config = {
        "Env": ["PATH=/bin"],
        "Cmd": ["/bin/bash"],
        "Labels": {"toolkit.base": "debian bookworm"},
    }
    write_docker_archive(
        tmp_path / "tree.tar",
        tmp_path / "image.tar",
        "toolkit/debian:x",
        config,
        "amd64",
        "2026-01-02T03:04:05+00:00",
    )
    with as_docker_archive(tmp_path / "image.tar", tmp_path) as found:
        assert found == tmp_path / "image.tar"
    write_layout([found.read_bytes()], tmp_path / "image")
    with tarfile.open(found) as archive:
        told = {
            name: json.load(stream)
            for name in ("manifest.json", "config.json")
            if (stream := archive.extractfile(name))
        }
    assert told["manifest.json"] == [
        {"Config": "config.json", "RepoTags": ["toolkit/debian:x"], "Layers": ["layer.tar"]}
    ]
    assert told["config.json"]["config"] == config
    layer = hashlib.sha256((tmp_path / "tree.tar").read_bytes()).hexdigest()
    assert told["config.json"]["rootfs"] == {"type": "layers", "diff_ids": [f"sha256:{layer}"]}
    assert (tmp_path / "image/blobs/sha256" / layer).exists()
