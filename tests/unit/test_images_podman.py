"""The pure parts of building by podman: what is lent to a Dockerfile, its stages, what podman is told, and how it fails."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.test_images_docker import DOCKERFILE
from toolkit.images.builder.docker.clients import (
    BuildRequest,
    PodmanClient,
    first_mounted_stage,
    replace_stage,
)
from toolkit.images.builder.docker.host_secrets import add_mounts, mount_host_config
from toolkit.images.builder.docker.log import PodmanLog as Reader
from toolkit.images.host.host_mounts import HostConfig
from toolkit.runtimes.docker import Engine

CLIENT = PodmanClient("/usr/bin/podman", mark="toolkit-x.invalid")
IMAGES = SimpleNamespace(get=lambda name: SimpleNamespace(id=f"id of {name}"))
ENGINE = Engine(cast(Any, SimpleNamespace(images=IMAGES)), "unix:///p", "Podman", "4")


def test_what_is_lent_to_a_step_takes_no_directory_out_of_the_image() -> None:
    changed = add_mounts(DOCKERFILE, CLIENT.form)
    assert "type=tmpfs" not in changed
    assert changed.count("--mount=type=secret,id=pip.conf,target=/mnt/pip.conf") == 3
    assert changed.count("--mount=type=secret,id=variables,target=/mnt/variables") == 3
    for line in changed.splitlines():
        if line.startswith("RUN "):
            assert line.endswith(
                "[ ! -f /mnt/variables ] || . /mnt/variables; exec 2>&1; set -ex; \\"
            )


def test_stages_that_are_mounted_become_images_one_after_the_other() -> None:
    text = add_mounts(DOCKERFILE, CLIENT.form)
    assert first_mounted_stage(text) == "toolkit-wheels"
    text = replace_stage(text, "toolkit-wheels", "1234")
    assert "COPY wheels/" not in text
    assert "--mount=type=bind,from=1234,target=/mnt/wheels" in text
    assert first_mounted_stage(text) == "build"
    text = replace_stage(text, "build", "5678")
    assert "--mount=type=bind,from=5678,source=/opt/wheels,target=/opt/wheels" in text
    assert [line for line in text.splitlines() if line.startswith("FROM ")] == [
        "FROM ${BASE} AS common",
        "FROM common",
    ]
    assert first_mounted_stage(text) == ""
    assert text.startswith("# x\nARG BASE=")
    assert text.endswith('LABEL a="/mnt/wheels"\n')


def test_nothing_lent_is_an_argument_or_a_variable_of_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://me:it's secret@proxy")
    monkeypatch.setenv("NO_PROXY", "here")
    monkeypatch.setenv("CONTAINER_HOST", "unix:///another")
    with mount_host_config(
        HostConfig(files={"pip.conf": "secret"}), tmp_path, variables=CLIENT.variables()
    ) as lends:
        said = lends.files["variables"].read_text()
        assert shlex.split(said) == [
            *("export", "http_proxy=http://me:it's secret@proxy"),
            *("export", "NO_PROXY=here,127.0.0.1"),
            *("export", "no_proxy=here,127.0.0.1"),
        ]
        order = BuildRequest(
            tmp_path, "id of a", tmp_path / "id", lends, target="build", fresh=True
        )
        command, environment = CLIENT.command(ENGINE, order), CLIENT.environment(ENGINE, order)
    assert command[:5] == ["/usr/bin/podman", "--remote", "--url", "unix:///p", "build"]
    assert command[-1] == str(tmp_path)
    assert (
        "BASE=id of a" in command,
        "--no-cache" in command,
        command[command.index("--target") + 1],
    ) == (True, True, "build")
    assert f"id=variables,src={tmp_path}/variables" in command
    assert environment["no_proxy"] == "toolkit-x.invalid"
    assert not {"http_proxy", "CONTAINER_HOST", "NO_PROXY"} & set(environment)
    assert "secret@" not in repr(command) + repr(environment)


@pytest.mark.parametrize(
    ("lines", "gone", "code", "tail"),
    [
        (
            (
                "Error: connection refused",
                'xError: building at STEP "{run}": while running runtime: exit status 7',
            ),
            False,
            7,
            1,
        ),
        (
            ('Error: building at STEP "{run}": while running runtime: exit status 137',),
            False,
            137,
            0,
        ),
        (('Error: building at STEP "{run}": resolving mountpoints: no image 12',), False, None, 1),
        (
            ("Error: committing container for step: write /x: no space left on device",),
            False,
            None,
            1,
        ),
        (("STEP 3/4 is not one", "--> nor this", "Error: of the step itself"), False, None, 3),
    ],
)
def test_how_podman_says_that_a_step_failed(
    lines: tuple[str, ...], gone: bool, code: int | None, tail: int
) -> None:
    run = "RUN exec 2>&1; set -ex;     echo '==> apt: python3'"
    reader = Reader()
    for line in (f"STEP 2/3: {run}", "==> apt: python3", *(line.format(run=run) for line in lines)):
        reader.feed(line)
    assert (reader.step, reader.gone, reader.code, len(reader.shown.tail)) == (
        "apt",
        gone,
        code,
        tail,
    )
    assert reader.no_space == ("no space" in lines[0])
