"""`toolkit image import`: what a recipe can carry comes over as it was meant, and each line that it cannot is named."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from toolkit.cli.groups import image as command
from toolkit.errors import ConfigError, UsageError
from toolkit.images.builder.docker import conversion
from toolkit.images.recipe import library
from toolkit.images.recipe.importers.dockerfile import encode_command
from toolkit.images.recipe.importers.reader import read_instructions
from toolkit.images.recipe.importers.words import to_expanding
from toolkit.images.recipe.plan import Plan
from toolkit.images.recipe.quoting import quote_expanding, quote_for_docker, require_expanding

DOCKERFILE = """\
# a comment
ARG TAG=22.03-py3
FROM --platform=$BUILDPLATFORM nvcr.io/nvidia/pytorch:$TAG
ARG VERSION=1 TARGETOS EMPTY
ENV A=1 B="two words"
ENV PATH=$A/bin:$PATH A=$VERSION C=$A
COPY --chown=a:b x /y
RUN apt-get update && \\
    # within
    apt-get install -y gcc
WORKDIR deep/./er
USER me
CMD ["python", "x.py"]
RUN echo "${A}"
ARG A=9
ADD x $A/z.tar
"""
STEPS = [
    {"block": "workdir", "path": "/workspace"},
    {"block": "env", "variables": {"VERSION": "1"}, "build": True},
    {"block": "env", "variables": {"TARGETOS": "linux"}, "build": True},
    {"block": "env", "variables": {"A": "1", "B": "two words"}},
    {
        "block": "env",
        "variables": {"NEW_PATH": "$A/bin:$PATH", "NEW_A": "$VERSION", "NEW_C": "$A"},
        "expand": ["NEW_PATH", "NEW_A", "NEW_C"],
        "build": True,
    },
    {
        "block": "env",
        "variables": {"PATH": "${NEW_PATH}", "A": "${NEW_A}", "C": "${NEW_C}"},
        "expand": ["PATH", "A", "C"],
    },
    {
        **{"block": "copy", "name": "line-7", "path": "/y", "owner": "a:b"},
        "source": "mine.files/line-7/x",
    },
    {"block": "shell", "name": "line-8", "command": "apt-get update &&     apt-get install -y gcc"},
    {"block": "workdir", "name": "line-11", "path": "deep/er"},
    {"block": "shell", "name": "line-14", "user": "me", "command": 'echo "${A}"'},
    {"block": "copy", "name": "line-16", "path": "$A/z.tar", "source": "mine.files/line-16/x"},
]


def taken(text, directory, name="Dockerfile"):
    (directory / name).write_text(text)
    (directory / "x").write_text("text\n")
    return CliRunner().invoke(
        command, ["import", str(directory / name), "--name", "mine", "--directory", str(directory)]
    )


def recipe(text, directory):
    """The recipe that a Dockerfile becomes, which both renderers accept."""
    done = taken(text, directory)
    assert done.exit_code == 0, done.exception
    for form in library.FORMATS:
        assert library.render(library.load(str(directory / "mine.toml")), form)
    return msgspec.toml.decode((directory / "mine.toml").read_text(), type=dict[str, Any])


def test_a_dockerfile_becomes_a_recipe_in_its_order(tmp_path):
    made = recipe(DOCKERFILE, tmp_path)
    assert made["base"] == {"kind": "ngc", "framework": "pytorch", "release": "22.03"}
    assert list(made["steps"][9].pop("checks")) == ["dpkg"], "NVIDIA's images fail pip check"
    assert made["steps"] == STEPS
    assert (tmp_path / "mine.files/line-7/x").read_text() == "text\n"


@pytest.mark.parametrize(("file", "name"), [("my file.def", "my-file"), ("한글.def", "imported")])
def test_a_recipe_gets_a_name_that_it_can_have(file, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(file).write_text("FROM debian:12\n")
    assert CliRunner().invoke(command, ["import", file]).exit_code == 0
    assert Path(f"{name}.toml").exists()


def test_what_is_not_carried_is_named_and_nothing_else(tmp_path):
    done = taken(DOCKERFILE, tmp_path)
    lines = [line for line in done.output.splitlines() if line.startswith("left out")]
    named = [" ".join(line.split(":", 1)[1].split(" ")[:2]) for line in lines]
    assert named == ["3: FROM", "4: ARG", "12: USER", "13: CMD"]


@pytest.mark.parametrize(
    ("word", "is_empty"),
    [
        ("$HOME/x", True),
        ("${USER:-me}", True),
        ("\\$HOME", False),
        ("'$HOME'", False),
        ("$HOMEDIR", False),
        ("$SHLVL", False),
    ],
)
def test_a_variable_that_an_image_would_have_and_a_dockerfile_has_not_is_refused(
    word, is_empty, tmp_path
):
    done = taken(f"FROM debian:bookworm\nARG SHLVL=1\nENV A={word}\n", tmp_path)
    assert isinstance(done.exception, ConfigError) == is_empty, done.exception


def test_a_definition_becomes_a_base(tmp_path):
    text = "Bootstrap: docker\nFrom: debian:bookworm\n%setup\n    true\n%post\n    echo\n"
    done = taken(text, tmp_path, "x.def")
    assert done.exit_code == 0, done.exception
    made = msgspec.toml.decode((tmp_path / "mine.toml").read_text())
    assert (made["base"], "steps" in made) == (
        {"kind": "definition", "path": f"{tmp_path}/x.def"},
        False,
    )
    rendered = library.render(library.load(str(tmp_path / "mine.toml")))
    assert f"Bootstrap: localimage\nFrom: {tmp_path}/x.sif\n" in rendered


REFUSED = r"""
FROM a AS b\nRUN x\nFROM c
hello
FROM scratch\nRUN x
FROM --platform=linux/riscv64 a
FROM $NAME
RUN x\nFROM a
FROM a\nFORM b
FROM a\nCOPY nothing /
FROM a\nCOPY ../outside /
FROM a\nCOPY $OF_BASE /
FROM a\nCOPY pipe /
FROM a\nCOPY leads-out /x
FROM a\nCOPY leads-to-itself /x
FROM a\nCOPY --from=b /x /y
FROM a\nADD https://example.org/x /
FROM a\nADD x.tar.gz /
FROM a\nRUN --mount=type=cache,target=/c x
FROM a\nENV A=${B
FROM a\nENV A='open
FROM a\nRUN <<END\nx
FROM a\nRUN echo 'use <<FILE '\nRUN x
FROM a\nRUN <<END\n#!/bin/python\nEND
FROM a\nCOPY <<END /x\nENV x=1\nEND
"""


@pytest.mark.parametrize("text", REFUSED.strip().splitlines())
def test_what_is_no_recipe_is_refused_and_leaves_nothing(text, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "leads-out").symlink_to("/etc/passwd")
    (tmp_path / "leads-to-itself").symlink_to("leads-to-itself")
    before = {path.name for path in tmp_path.iterdir()} | {"Dockerfile", "x"}
    done = taken(text.replace("\\n", "\n") + "\n", tmp_path)
    assert isinstance(done.exception, ConfigError), done.exception
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["mine.toml", "mine.files"])
def test_nothing_is_overwritten(name, tmp_path):
    (tmp_path / name).write_text("mine")
    assert isinstance(taken(DOCKERFILE, tmp_path).exception, UsageError)
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ('"two  words"', "two  words"),
        ("'$A'", "$A"),
        ("${A}b", "1b"),
        ("$Ab", ""),
        (r'"\$A \" \\ \n"', r'$A " \ \n'),
        ("${A:-x}${E:-x}${E-x}", "1x"),
        ("${A:+y}${E:+y}${E+y}", "yy"),
        ('${U:-"a "$A}', "a 1"),
        ("a$", "a$"),
        ("$1", ""),
        ("'it'\"'s\"", "it's"),
        ("`id` $(id) ~ * ; & | {{x}}", "`id` $(id) ~ * ; & | {{x}}"),
        ('"`id`"', "`id`"),
        ("\\`", "`"),
        (r'"\`"', r"\`"),
    ],
)
def test_a_shell_expands_words_as_buildkit_does(word, value):
    expanding = to_expanding(word)
    require_expanding(expanding)
    shown = quote_expanding(expanding)
    assert not {"{{", "}}"} & {shown[at : at + 2] for at in range(len(shown))}
    # Docker reads what is rendered for it as it read the file.
    again = quote_expanding(to_expanding(quote_for_docker(expanding)))
    for text in (shown, again):
        script = f"A=1 E=; unset U; printf %s {text}"
        assert subprocess.run(["sh", "-c", script], capture_output=True).stdout.decode() == value


def test_instructions_are_read_as_buildkit_reads_them():
    heredocs = "RUN cat <<A <<-'B' >c\nRUN one\nA\n\ttwo\n\tB\n"
    text = f'FROM a\r\nrun x \\  \r\n  # comment\r\n\r\n  y <<<z\r\n{heredocs}RUN ["a", "b"]\n'
    found = read_instructions(text, Path("x"))
    assert [one.line for one in found] == [1, 2, 6, 11]
    assert found[1].text == "x   y <<<z"
    assert found[2].text == heredocs.removeprefix("RUN ").rstrip()
    assert found[3].words == ("a", "b")


def test_a_heredoc_alone_is_the_command_and_another_goes_to_its_program(tmp_path):
    alone = "RUN <<-'END'\n\tset -e\n\n\techo \"$A\"\n\tEND\n"
    made = recipe(f"FROM debian:12\n{alone}RUN python3 <<END\nprint(1)\nEND\n", tmp_path)
    commands = [step["command"] for step in made["steps"]]
    printed = [subprocess.run(["printf", "%b", each], capture_output=True) for each in commands]
    assert [each.stdout.decode() for each in printed] == [
        'set -e\n\necho "$A"\n',
        "python3 <<END\nprint(1)\nEND",
    ]


@pytest.mark.parametrize("text", ["a\tb", "a\\b\n", "'{{ x }}'\n\x01", "é\u202e%s\\n", "\\0101"])
def test_any_command_reaches_the_shell_byte_for_byte(text):
    step = encode_command(text)
    printed = subprocess.run(
        ["sh", "-c", 'printf %b "$1"', "sh", step["command"]], capture_output=True, check=True
    ).stdout
    assert (printed == text.encode()) if step.get("encoded") else (step["command"] == text)
    assert step["command"].isprintable()


def test_files_come_along_as_they_are(tmp_path):
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "d/e/bytes").write_bytes(bytes(range(256)))
    (tmp_path / "d/e").chmod(0o500)
    (tmp_path / "d/link").symlink_to("e/bytes")
    (tmp_path / "d/no.log").touch()
    (tmp_path / "d").chmod(0o555)
    (tmp_path / ".dockerignore").write_text("**/*.log\n")
    (tmp_path / "first").symlink_to("x")
    recipe("FROM debian:12\nCOPY d /there\nARG F=first\nCOPY $F /\n", tmp_path)
    files = tmp_path / "mine.files"
    assert (files / "line-2/e/bytes").read_bytes() == bytes(range(256))
    assert (files / "line-2/e").stat().st_mode & 0o777 == 0o500
    assert (files / "line-2").stat().st_mode & 0o777 == 0o755, "more may be copied there"
    assert (files / "line-2/link").readlink() == Path("e/bytes")
    assert not (files / "line-2/no.log").exists()
    assert (files / "line-4/first").read_text() == "text\n", "a link that COPY names is followed"


COPYING = """\
summary = "x"
base = {{ kind = "docker", image = "a/b:1" }}
steps = [{{ block = "copy", source = "{}", path = "/opt/app" }}]
"""


def copying(path: Path, source: str) -> Plan:
    path.parent.mkdir(exist_ok=True)
    path.write_text(COPYING.format(source))
    return library.load(str(path))


def test_a_plan_changes_with_the_files_that_it_copies(tmp_path):
    file, path = tmp_path / "app/sub/x", tmp_path / "mine.toml"
    file.parent.mkdir(parents=True)
    file.write_text("1")
    hashes = [library.hash_recipe(copying(path, "app"))]
    for change in (
        lambda: file.write_text("2"),
        lambda: file.chmod(0o700),
        lambda: file.rename(file.with_name("y")),
        lambda: file.symlink_to("y"),
    ):
        change()
        hashes.append(library.hash_recipe(copying(path, "app")))
    assert len({*hashes}) == 5


def test_files_that_a_step_copies_are_mounted_where_it_can_be_done(tmp_path):
    for name in ("app/x", "empty"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to("/etc/passwd")
    plan = copying(tmp_path / "mine.toml", "app")
    assert "source=app,target=/mnt/sources/copy " in library.render(plan, "docker")
    assert "is not mounted at /mnt/sources/copy: apptainer build --bind" in library.render(plan)
    for broken in ("gone", "empty", "link"):
        with pytest.raises(ConfigError):
            copying(tmp_path / "mine.toml", broken)
    with pytest.raises(ConfigError, match="Docker cannot copy"):
        library.render(copying(tmp_path / "below/mine.toml", "../app"), "docker")


def test_a_dollar_sign_of_an_image_that_docker_built_reaches_the_sif():
    text = conversion("x", "docker", {"A": "$X 'y'", "B": "plain"})
    (setting,) = [line.strip() for line in text.splitlines() if "export" in line]
    done = subprocess.run(["sh", "-c", f'{setting}; printf %s "$A"'], capture_output=True)
    assert done.stdout.decode() == "$X 'y'"
    assert "%environment" not in conversion("x", "docker", {"B": "plain"})
