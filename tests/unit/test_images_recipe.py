"""Recipes: what is refused, and that it is said where and what would have been right."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.errors import ConfigError
from toolkit.images.recipe import library
from toolkit.images.store.store import list_recipes

HEAD = 'summary = "x"\n[base]\nkind = "debootstrap"\nrelease = "bookworm"\n'

# What is wrong with it, text, line, key, nearest.
BROKEN = (
    ("an unknown key", 'sumary = "x"\n', 1, "sumary", "summary"),
    ("an unknown key of the base", HEAD + 'relase = "x"\n', 5, "base.relase", "release"),
    (
        "an unknown kind of base",
        'summary = "x"\n[base]\nkind = "debootstrp"\n',
        3,
        "base.kind",
        "debootstrap",
    ),
    ("no kind of base", 'summary = "x"\n[base]\nrelease = "bookworm"\n', 2, "base.kind", None),
    ("an unknown block", HEAD + '[[steps]]\nblock = "pipp"\n', 6, "steps[0].block", "pip"),
    ("no block", HEAD + '[[steps]]\npackages = ["x"]\n', 5, "steps[0].block", None),
    (
        "an unknown key of the second step",
        HEAD + '[[steps]]\nblock = "python"\n[[steps]]\nblock = "pip"\npackges = []\n',
        9,
        "steps[1].packges",
        "packages",
    ),
    (
        "a wrong type",
        HEAD + '[[steps]]\nblock = "pip"\npackages = "numpy"\n',
        7,
        "steps[0].packages",
        None,
    ),
    (
        "a wrong type in a list",
        HEAD + '[[steps]]\nblock = "pip"\npackages = ["numpy", 1]\n',
        7,
        "steps[0].packages[1]",
        None,
    ),
    ("a wrong type of space", HEAD + '[space]\nimage = "1 GB"\n', 6, "space.image", None),
    ("a missing key", HEAD + '[[steps]]\nblock = "pip"\n', 5, "steps[0]", None),
    (
        "an option in place of a package",
        HEAD + '[[steps]]\nblock = "apt"\npackages = ["-oDir=/"]\n',
        5,
        "steps[0]",
        None,
    ),
    (
        "an option in place of a requirement",
        HEAD + '[[steps]]\nblock = "pip"\npackages = ["--pre"]\n',
        5,
        "steps[0]",
        None,
    ),
    (
        "a line break",
        HEAD + '[[steps]]\nblock = "run"\ncommands = ["a\\nb"]\n',
        7,
        "steps[0].commands[0]",
        None,
    ),
    ("a line break in the summary", HEAD.replace('"x"', '"x\\n%post"'), 1, "summary", None),
    (
        "a control character",
        HEAD + '[[steps]]\nblock = "pip"\npackages = ["a\\u0007"]\n',
        7,
        "steps[0].packages[0]",
        None,
    ),
    (
        "an open line",
        HEAD + '[[steps]]\nblock = "run"\ncommands = ["echo \\\\"]\n',
        5,
        "steps[0]",
        None,
    ),
    (
        "braces in a command",
        HEAD + '[[steps]]\nblock = "run"\ncommands = ["echo {{ x }}"]\n',
        5,
        "steps[0]",
        None,
    ),
    (
        "a name that is taken",
        HEAD + '[[steps]]\nblock = "run"\ncommands = ["true"]\nname = "base"\n',
        8,
        "steps[0].name",
        None,
    ),
    (
        "the name of a step of the build stage",
        HEAD + '[[steps]]\nblock = "run"\ncommands = ["true"]\nname = "build.apt"\n',
        8,
        "steps[0].name",
        None,
    ),
    (
        "the name of what another step compiles",
        HEAD
        + '[[steps]]\nblock = "run"\ncommands = ["true"]\nname = "horovod-build"\n'
        + '[[steps]]\nblock = "horovod"\nversion = "0.28.1"\n',
        8,
        "steps[0].name",
        None,
    ),
    (
        "the name of what another step adds from Debian",
        HEAD
        + '[[steps]]\nblock = "apt"\npackages = ["git"]\n'
        + '[[steps]]\nblock = "run"\ncommands = ["true"]\nname = "apt-more"\n',
        11,
        "steps[1].name",
        None,
    ),
    (
        "two steps of one name",
        HEAD + '[[steps]]\nblock = "python"\n[[steps]]\nblock = "python"\n',
        7,
        "steps[1].name",
        None,
    ),
    (
        "a name of two words",
        HEAD + '[[steps]]\nblock = "run"\ncommands = ["true"]\nname = "a b"\n',
        5,
        "steps[0]",
        None,
    ),
    (
        "a relative base",
        'summary = "x"\n[base]\nkind = "localimage"\npath = "x.sif"\n',
        2,
        "base",
        None,
    ),
    ("no release", HEAD.replace("bookworm", "12; reboot"), 2, "base", None),
    (
        "an unknown operation",
        HEAD + '[[steps]]\nblock = "horovod"\nversion = "0.28.1"\noperations = ["ncccl"]\n',
        8,
        "steps[0].operations[0]",
        None,
    ),
)


@pytest.mark.parametrize(
    ("text", "line", "key", "close"),
    [case[1:] for case in BROKEN],
    ids=[case[0] for case in BROKEN],
)
def test_broken_recipes_say_where_and_what_would_be_right(
    tmp_path: Path, text: str, line: int, key: str, close: str | None
) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        library.load(str(path))
    assert caught.value.place == f"{path}:{line}, key {key}"
    assert caught.value.close == close
    assert caught.value.exit_code == 78


def test_what_is_no_toml_says_the_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text('summary = "x"\nsteps = [\n')
    with pytest.raises(ConfigError, match="not valid TOML"):
        library.load(str(path))


@pytest.mark.parametrize("name", ["missing.toml", "."])
def test_a_recipe_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        library.load(
            str(tmp_path / "sub.toml" / name) if name != "." else str(_directory(tmp_path))
        )


def _directory(parent: Path) -> Path:
    path = parent / "directory.toml"
    path.mkdir()
    return path


def test_a_file_name_that_cannot_be_a_recipes(tmp_path: Path) -> None:
    path = tmp_path / "two words.toml"
    path.write_text(HEAD)
    with pytest.raises(ConfigError, match="cannot be the name of a recipe"):
        library.load(str(path))


def test_every_shipped_recipe_is_whole() -> None:
    assert "pytorch_cpu" in list_recipes()
    for name in list_recipes():
        assert library.load(name).name == name
