"""`toolkit image import`: what a recipe can carry comes over, and each line that it cannot is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from toolkit.cli.image import command
from toolkit.errors import ConfigError, ToolkitError, UsageError
from toolkit.images import library

DOCKERFILE = """\
# a comment
FROM nvcr.io/nvidia/pytorch:22.03-py3
ARG VERSION=1
ENV A=1 B="two words"
COPY --chown=a:b x /y
RUN apt-get update && \\
    # within
    apt-get install -y gcc
RUN pip install torch==2.0 numpy
USER me
CMD ["python", "x.py"]
RUN <<END
echo a
END
"""
DEFINITION = """\
Bootstrap: docker
From: debian:bookworm

%post
    apt-get update
    apt-get install -y \\
       gcc
    if true; then
        echo "a  b"
    fi

%environment
    export A=1
    export B="two words"

%files
    a /b

%runscript
    exec python "$@"
"""


def taken(text: str, directory: Path, name: str = "Dockerfile") -> Result:
    (directory / name).write_text(text)
    return CliRunner().invoke(command, ["import", str(directory / name), "--name", "mine", "--directory", str(directory)])


def test_a_dockerfile_becomes_a_recipe(tmp_path: Path) -> None:
    done = taken(DOCKERFILE, tmp_path)
    assert done.exit_code == 0, done.output
    stages = library.staged(library.load(str(tmp_path / "mine.toml")))
    lines = [line for step in stages.steps for line in step.lines]
    assert "apt-get update && apt-get install -y gcc" in lines
    assert "pip install torch==2.0 numpy" in lines
    assert stages.environment == {"A": "1", "B": "two words"}
    assert stages.base.detail() == "NGC pytorch 22.03"
    for line, word in ((5, "COPY"), (10, "USER"), (11, "CMD"), (12, "RUN <<END")):
        assert f"Dockerfile:{line}: {word}" in done.output
    assert "echo a" not in lines


def test_a_definition_becomes_a_recipe(tmp_path: Path) -> None:
    done = taken(DEFINITION, tmp_path, "x.def")
    assert done.exit_code == 0, done.output
    stages = library.staged(library.load(str(tmp_path / "mine.toml")))
    lines = [line for step in stages.steps for line in step.lines]
    assert lines[:5] == ["apt-get update", "apt-get install -y gcc", "if true; then", 'echo "a  b"', "fi"]
    assert stages.environment == {"A": "1", "B": "two words"}
    assert stages.base.dockerfile() == "debian:bookworm"
    assert "x.def:16: %files" in done.output
    assert "x.def:19: %runscript" in done.output


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("FROM a AS b\nRUN x\nFROM c\n", UsageError),
        ("Bootstrap: docker\nFrom: a\nStage: one\n%post\nx\nBootstrap: docker\nFrom: b\n", UsageError),
        ("Bootstrap: yum\nMirrorURL: x\n", UsageError),
        ("hello\n", ConfigError),
    ],
)
def test_what_is_no_recipe_is_refused(text: str, error: type[ToolkitError], tmp_path: Path) -> None:
    assert isinstance(taken(text, tmp_path).exception, error)
    assert not (tmp_path / "mine.toml").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("mine")
    assert isinstance(taken(DOCKERFILE, tmp_path).exception, UsageError)
    assert (tmp_path / "mine.toml").read_text() == "mine"
