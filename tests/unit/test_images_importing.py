"""`toolkit image import`: what a recipe can carry comes over as it was meant, and each line that it cannot is named."""

from __future__ import annotations

import base64
import io
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from toolkit.cli.groups import image as command
from toolkit.errors import ConfigError, ToolkitError, UsageError
from toolkit.images.recipe import library
from toolkit.images.recipe.importers.dockerfile_reader import read_instructions
from toolkit.images.recipe.importers.shell_words import UnknownValueError, expand_word
from toolkit.images.recipe.importers.steps import encode_command
from toolkit.images.recipe.quoting import (
    quote_for_docker,
    quote_for_shell,
)

DOCKERFILE = """\
# a comment
FROM nvcr.io/nvidia/pytorch:22.03-py3
ARG VERSION=1
ENV A=1 B="two words"
ENV PATH=$A/bin:$PATH
COPY --chown=a:b x /y
RUN apt-get update && \\
    # within
    apt-get install -y gcc
RUN cd /opt && pip install torch==2.0 "numpy<2" 'scikit-learn[extra]'
USER me
CMD ["python", "x.py"]
RUN echo "${A}"
"""
DEFINITION = """\
Bootstrap: docker
From: debian:{{ release }}

%arguments
    release=bookworm

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
    export PATH=/opt/$A/bin:$PATH
    if true; then C=1; fi

%files
    a /b

%runscript
    exec python "$@"
"""


def taken(text: str, directory: Path, name: str = "Dockerfile") -> Result:
    (directory / name).write_text(text)
    for beside in ("x", "a"):
        (directory / beside).write_text("text\n")
    return CliRunner().invoke(
        command, ["import", str(directory / name), "--name", "mine", "--directory", str(directory)]
    )


def steps(text: str, directory: Path) -> list[dict[str, Any]]:
    """The steps of the recipe that a Dockerfile becomes."""
    done = taken(text, directory)
    assert done.exit_code == 0, done.exception
    library.load(str(directory / "mine.toml"))
    found: list[dict[str, Any]] = msgspec.toml.decode((directory / "mine.toml").read_text()).get(
        "steps", []
    )
    return found


def test_a_dockerfile_becomes_a_recipe(tmp_path: Path) -> None:
    found = {step.get("name", step["block"]): step for step in steps(DOCKERFILE, tmp_path)}
    assert list(found) == ["line-6", "line-7", "line-10", "line-13", "env"], (
        "in the order of the file"
    )
    assert found["line-7"]["command"] == "apt-get update &&     apt-get install -y gcc"
    assert found["line-13"]["variables"] == {
        "VERSION": "1",
        "A": "1",
        "B": "two words",
        "PATH": "1/bin:${PATH}",
    }
    assert (found["line-13"]["user"], "user" in found["line-10"]) == ("me", False)
    assert found["env"] == {
        "block": "env",
        "variables": {"A": "1", "B": "two words", "PATH": "1/bin:${PATH}"},
        "expand": ["PATH"],
    }
    assert found["line-7"]["directory"] == "/workspace", "where NVIDIA's images begin"
    assert (found["line-6"]["owner"], found["line-6"]["path"]) == ("a:b", "/y")
    stages = library.load(str(tmp_path / "mine.toml"))
    assert stages.base.output().detail == "NGC pytorch 22.03"
    assert 'export PATH="1/bin:${PATH}"' in library.render(
        library.load(str(tmp_path / "mine.toml"))
    )
    assert 'ENV PATH="1/bin:${PATH}"' in library.render(
        library.load(str(tmp_path / "mine.toml")), "docker"
    )


def test_what_is_not_carried_is_named_and_nothing_else(tmp_path: Path) -> None:
    done = taken(DOCKERFILE, tmp_path)
    lines = [line for line in done.output.splitlines() if line.startswith("left out")]
    assert [line.split(":", 1)[1].split(" ")[0:2] for line in lines] == [
        ["11:", "USER"],
        ["12:", "CMD"],
    ]


@pytest.mark.parametrize(
    ("word", "is_named"),
    [
        ("$HOME/x", True),
        ("${HOME}", True),
        ("${USER:-me}", True),
        ("\\$HOME", False),
        ("'$HOME'", False),
        ("$HOMEDIR", False),
        ("$PWDX", False),
    ],
)
def test_an_empty_variable_is_named_where_it_is_expanded(
    word: str, is_named: bool, tmp_path: Path
) -> None:
    done = taken(f"FROM debian:bookworm\nENV A={word}\n", tmp_path)
    assert done.exit_code == 0, done.exception
    assert ("are empty in a Dockerfile" in done.output) == is_named


def test_a_definition_becomes_a_recipe(tmp_path: Path) -> None:
    done = taken(DEFINITION, tmp_path, "x.def")
    assert done.exit_code == 0, done.exception
    stages = library.load(str(tmp_path / "mine.toml"))
    lines = [step.lines for step in stages.steps]
    assert lines[1][:5] == (
        "apt-get update",
        "apt-get install -y gcc",
        "if true; then",
        'echo "a  b"',
        "fi",
    ), "after %files"
    assert (stages.environment, stages.expanding) == (
        {"A": "1", "B": "two words"},
        {"PATH": "/opt/1/bin:${PATH}"},
    )
    assert stages.base.output().dockerfile == "debian:bookworm"
    lost = [
        line.split("x.def")[1] for line in done.output.splitlines() if line.startswith("left out")
    ]
    assert lost == [":19: if true; then C=1; fi", ":24: %runscript"]


@pytest.mark.parametrize(
    ("post", "encoded"),
    [
        ("cat > /a <<END\n  indented\nEND", True),
        ('echo "two\nlines"', True),
        ("echo\t'a\tb'", True),
        ("cd /a\nls", False),
    ],
)
def test_a_post_section_runs_as_one_script(post: str, encoded: bool, tmp_path: Path) -> None:
    taken(f"Bootstrap: docker\nFrom: debian:bookworm\n%post\n{post}\n", tmp_path, "x.def")
    (step,) = msgspec.toml.decode((tmp_path / "mine.toml").read_text())["steps"]
    if encoded:
        printed = subprocess.run(
            ["sh", "-c", 'printf %b "$1"', "sh", step["command"]],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert printed == f"{post}\n"
        assert step["program"] == ["/bin/sh", "-ex", "-c"]
    else:
        assert step["commands"] == post.split("\n")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("FROM a AS b\nRUN x\nFROM c\n", UsageError),
        (
            "Bootstrap: docker\nFrom: a\nStage: one\n%post\nx\nBootstrap: docker\nFrom: b\n",
            UsageError,
        ),
        ("Bootstrap: yum\nMirrorURL: x\n", UsageError),
        ("hello\n", ConfigError),
        ("FROM scratch\nRUN x\n", ConfigError),
        ("FROM $NAME\n", ConfigError),
        ("RUN x\nFROM a\n", ConfigError),
        ("FROM a\nFORM b\n", ConfigError),
        ("FROM a\nCOPY nothing /\n", ConfigError),
        ("FROM a\nCOPY ../outside /\n", ConfigError),
        ("FROM a\nCOPY --from=b /x /y\n", ConfigError),
        ("FROM a\nADD https://example.org/x /\n", ConfigError),
        ("FROM a\nADD x.tar.gz /\n", ConfigError),
        ("FROM a\nRUN --mount=type=cache,target=/c x\n", ConfigError),
        ("FROM a\nENV A=${OF_BASE:-b}\n", ConfigError),
        ("FROM a\nENV A=${B\n", ConfigError),
        ("FROM a\nENV A=$B B=$A\n", ConfigError),
        ("FROM a\nUSER $OF_BASE\n", ConfigError),
        ("FROM a\nRUN <<END\nx\n", ConfigError),
        ("Bootstrap: docker\nFrom: {{ what }}\n", ConfigError),
        ("Bootstrap: docker\nFrom: a\n%files\nnothing /x\n", ConfigError),
        ("Bootstrap: docker\nFrom: a\n%files from build\n/x\n", ConfigError),
    ],
)
def test_what_is_no_recipe_is_refused(text: str, error: type[ToolkitError], tmp_path: Path) -> None:
    done = taken(text, tmp_path)
    assert isinstance(done.exception, error), done.exception
    assert not (tmp_path / "mine.toml").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("mine")
    assert isinstance(taken(DOCKERFILE, tmp_path).exception, UsageError)
    assert (tmp_path / "mine.toml").read_text() == "mine"


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("plain", "plain"),
        ('"two  words"', "two  words"),
        ("'$A'", "$$A"),
        ("$A", "1"),
        ("${A}b", "1b"),
        ("$Ab", "${Ab}"),
        (r"\$A", "$$A"),
        (r'"\$A \" \\ \n"', r'$$A " \ \n'),
        ("${A:-x}", "1"),
        ("${E:-x}", "x"),
        ("${E-x}", ""),
        ("${A:+y}", "1".replace("1", "y")),
        ("${E:+y}", ""),
        ("${E+y}", "y"),
        ("${U:-a ${A}}", "a 1"),
        ("$U", ""),
        ("$PATH:/x", "${PATH}:/x"),
        ("a$", "a$$"),
        ("'it'\"'s\"", "it's"),
    ],
)
def test_words_are_expanded_as_buildkit_does(word: str, value: str) -> None:
    assert expand_word(word, {"A": "1", "E": ""}, unset=("U",)) == value


@pytest.mark.parametrize("word", ["'open", '"open', "${", "${A", "${A?x}", "${1}"])
def test_words_that_cannot_be_read_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match=r"quote|there is no|name|not known"):
        expand_word(word, {"A": "1"})


def test_a_choice_that_the_base_decides_is_not_guessed() -> None:
    with pytest.raises(UnknownValueError):
        expand_word("${OF_BASE:+x}", {})


def test_instructions_are_read_as_buildkit_reads_them() -> None:
    copy = "COPY <<ONE <<-'TWO' /d/\none $A\nONE\n\ttwo\n\tTWO\n"
    text = f'# escape=`\r\nFROM a\r\nrun x `  \r\n  # comment\r\n\r\n  y\r\n{copy}RUN ["a", "b"]\n'
    found = read_instructions(text, "Dockerfile")
    assert [(one.line, one.name) for one in found] == [
        (2, "FROM"),
        (3, "RUN"),
        (7, "COPY"),
        (12, "RUN"),
    ]
    assert found[1].text == "x   y"
    assert [(doc.name, doc.is_literal, doc.text) for doc in found[2].heredocs] == [
        ("ONE", False, "one $A\n"),
        ("TWO", True, "two\n"),
    ]
    assert found[3].words == ("a", "b")


@pytest.mark.parametrize("text", ["a\tb", "a\\b\n", "'{{ x }}'\n\x01", "é\u202e%s\\n", "\\0101"])
def test_any_command_reaches_the_shell_byte_for_byte(text: str) -> None:
    step = encode_command(text)
    printed = subprocess.run(
        ["sh", "-c", 'printf %b "$1"', "sh", step["command"]], capture_output=True, check=True
    ).stdout
    assert (printed == text.encode()) if step.get("encoded") else (step["command"] == text)
    assert step["command"].isprintable()


@pytest.mark.parametrize(
    "value", ["plain", 'a"b\\c`d$$e', "/x:${A}", "${A}${B}", "{{ x }}", "}}}", "${A}{{", "it's"]
)
def test_values_of_the_base_are_completed_by_the_shell(value: str) -> None:
    expected = value.replace("${A}", "of a").replace("${B}", "of b").replace("$$", "$")
    script = f"A='of a' B='of b'; printf %s {quote_for_shell(value)}"
    assert (
        subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
        == expected
    )
    assert "{{" not in quote_for_shell(value)
    assert (
        expand_word(quote_for_docker(value), {"A": "of a", "B": "of b"}).replace("$$", "$")
        == expected
    )


def test_what_a_file_sets_is_used_by_what_follows_it_only(tmp_path: Path) -> None:
    text = "FROM python:3.11\nENV A=1\nENV A=2 B=$A\nRUN one\nENV A=3\nWORKDIR x\nRUN two\nARG A=4 C=5\nRUN three\n"
    first, _, second, third, env = steps(text, tmp_path)
    assert first["variables"] == {"A": "2", "B": "1"}
    assert (second["variables"], second["directory"]) == ({"A": "3", "B": "1"}, "/x")
    assert third["variables"] == {"A": "3", "C": "5", "B": "1"}, "ENV goes before ARG"
    assert env["variables"] == {"A": "3", "B": "1"}, "no ARG stays"


def test_files_come_along_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "d/e/bytes").write_bytes(bytes(range(256)))
    (tmp_path / "d/link").symlink_to("e/bytes")
    (tmp_path / "d/no.log").touch()
    (tmp_path / ".dockerignore").write_text("**/*.log\n")
    (step,) = steps("FROM debian:12\nCOPY d /there\n", tmp_path)
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode("".join(step["data"])))) as archive:
        assert [member.name for member in archive] == ["e", "e/bytes", "link"]
        stream = archive.extractfile("e/bytes")
        assert stream is not None
        assert stream.read() == bytes(range(256))
        assert archive.getmember("link").linkname == "e/bytes"


def test_files_that_are_too_large_are_refused_with_what_to_do(tmp_path: Path) -> None:
    import os

    (tmp_path / "large").write_bytes(os.urandom(600_000))
    done = taken("FROM debian:12\nCOPY large /\n", tmp_path)
    assert isinstance(done.exception, ConfigError)
    assert "--bind" in (done.exception.next_step or "")


def test_a_dollar_sign_of_an_image_that_docker_built_reaches_the_sif() -> None:
    from toolkit.images.builder.docker import conversion as definition

    text = definition("x", "docker", {"A": "$X 'y'", "B": "plain"})
    settings = [line.strip() for line in text.splitlines() if "export" in line]
    assert (
        subprocess.run(
            ["sh", "-c", f'{settings[0]}; printf %s "$A"'],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        == "$X 'y'"
    )
    assert len(settings) == 1, "what comes along by itself is not written twice"
    assert "%environment" not in definition("x", "docker", {"B": "plain"})
