"""Definitions: whole files, the same bytes for the same recipe, and nothing of a recipe that breaks out of its place."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.hostile import HOSTILE
from toolkit.images.recipe import library
from toolkit.images.recipe.blocks.pip import Pip
from toolkit.images.recipe.names import list_recipes
from toolkit.images.recipe.plan import Plan
from toolkit.images.recipe.quoting import quote_word, to_plain_text
from toolkit.images.recipe.recipe import Recipe
from toolkit.model.base import BadDataError

REFUSED = [text for text in HOSTILE if not text.isprintable()]
BRACES = ("{{ mirror }}", "{{{{", "}}}", "a{{b}}c", "{{{x}}}", "'{{'")


# What no shipped recipe has: packages of Debian by version, and commands that need some only meanwhile.
OWN = """\
summary = "apt and run"
[base]
kind = "debootstrap"
release = "bookworm"
[[steps]]
block = "apt"
packages = ["zip", "curl=7.88.1-10"]
[[steps]]
block = "run"
name = "greet"
commands = ["echo 'hello, world' > /greeting"]
build_packages = ["make"]
"""
LINES = """\
    apt-get -qq -y install --no-install-recommends curl=7.88.1-10 zip
    apt-get -qq -y install --no-install-recommends make
    echo 'hello, world' > /greeting
    apt-get -qq -y autoremove --purge -o APT::AutoRemove::RecommendsImportant=false -o APT::AutoRemove::SuggestsImportant=false make
"""


def test_what_commands_need_meanwhile_is_removed_after_them(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(OWN)
    rendered = library.render(library.load(str(tmp_path / "own.toml")))
    wanted = LINES.splitlines()
    assert [line for line in rendered.splitlines() if line in wanted] == wanted


@pytest.mark.parametrize("form", library.FORMATS)
@pytest.mark.parametrize("name", list_recipes())
def test_the_committed_definitions_are_what_their_recipes_render_to(name: str, form: str) -> None:
    assert library.definition_path(name, form).read_text() == library.render(
        library.load(name), form
    )


def test_a_definition_names_no_machine() -> None:
    text = library.render(library.load("pytorch_cpu"))
    assert set(re.findall(r"https?://[^\s/]+", text)) == {"https://download.pytorch.org"}


def test_no_check_holds_what_a_definition_cannot() -> None:
    for name, text in library.read_check_scripts().items():
        assert "{{" not in text, name
        assert "}}" not in text, name
        assert not re.search(r"^(%|END-OF-FILE$)", text, re.MULTILINE), name


def recipe(*packages: str, summary: str = "x") -> Plan:
    steps = ({"block": "python"}, {"block": "pip", "packages": list(packages)})
    return library.plan_recipe(
        "x",
        Recipe(summary=summary, base={"kind": "debootstrap", "release": "bookworm"}, steps=steps),
    )


def test_the_hash_follows_the_contents_and_not_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, scripts = recipe("a"), recipe("b"), library.read_check_scripts()
    first = library.hash_recipe(one)
    assert library.hash_recipe(one) == first != library.hash_recipe(other)
    changed = {**scripts, "user_site.py": scripts["user_site.py"] + "# changed\n"}
    monkeypatch.setattr(library, "read_check_scripts", lambda: changed)
    assert library.hash_recipe(recipe("a")) != first


def substituted(text: str) -> str:
    """What Apptainer does to a definition first, were it told an argument of every name."""
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", "REPLACED", text)


def arrives(line: str, tmp_path: Path) -> list[str]:
    """What the arguments of `pip` are when a shell runs a line of %post."""
    said = tmp_path / "said"
    script = f'pip() {{ printf "%s\\0" "$@" > {said}; }}\n{line}\n'
    subprocess.run(["sh", "-ec", script], check=True, cwd=tmp_path)
    return said.read_text().split("\0")[:-1]


@pytest.mark.parametrize(
    "text",
    [*(text for text in HOSTILE if text not in REFUSED and not text.startswith("-")), *BRACES],
)
def test_a_value_reaches_the_shell_byte_for_byte(text: str, tmp_path: Path) -> None:
    rendered = substituted(library.render(recipe(text)))
    line = next(line for line in rendered.splitlines() if line.startswith("    pip install"))
    assert arrives(line, tmp_path) == ["install", "--no-compile", text]
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "text", [*REFUSED, "two\nlines", "\n%post\nreboot", "a\0b", "\u2028", "--option"]
)
def test_or_is_refused(text: str) -> None:
    with pytest.raises(BadDataError):
        recipe(text)


@pytest.mark.parametrize("text", [*(text for text in HOSTILE if text not in REFUSED), *BRACES])
def test_a_summary_stays_a_comment(text: str) -> None:
    rendered = library.render(recipe("a", summary=text))
    assert rendered.startswith("# x: ")
    assert substituted(rendered) == rendered.replace("{{ mirror }}", "REPLACED")
    calm = library.render(recipe("a"))
    hashes = re.compile("recipe-hash .*")
    assert hashes.sub("", rendered).splitlines()[1:] == hashes.sub("", calm).splitlines()[1:]


@pytest.mark.parametrize("text", [*HOSTILE, *BRACES])
def test_words_have_no_braces_in_a_row(text: str) -> None:
    for written in (quote_word(text), to_plain_text(text)):
        assert "{{" not in written
        assert "}}" not in written


def test_an_index_is_asked_second() -> None:
    line = Pip(packages=("torch==2.13.0+cpu",), index="https://example.org/whl").output().lines[0]
    first, second = line.split(" || ")
    assert "example.org" not in first
    assert "--extra-index-url https://example.org/whl" in second
