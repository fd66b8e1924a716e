"""`toolkit image`: what is printed, and what is refused, where no program has to be run."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from tests.unit.test_images_store import ID, fake_sif, manifest
from toolkit.cli.groups import image as command
from toolkit.errors import (
    ImageMissingError,
    ToolkitError,
    UnknownImageError,
    UsageError,
)
from toolkit.images.recipe import library
from toolkit.images.recipe.bases import Base, LocalImage
from toolkit.images.recipe.library import FORMATS
from toolkit.images.recipe.names import list_recipes
from toolkit.model.base import to_json


@pytest.fixture(autouse=True)
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOOLKIT_IMAGES", str(tmp_path / "images"))
    return tmp_path / "images"


def image(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, catch_exceptions=True)


def refused(*arguments: str) -> ToolkitError:
    error = image(*arguments).exception
    assert isinstance(error, ToolkitError), error
    return error


@pytest.mark.parametrize("recipe", list_recipes())
@pytest.mark.parametrize("form", FORMATS)
def test_the_committed_definition_is_what_its_recipe_renders_to(recipe, form):
    committed = library.definition_path(recipe, form).read_text(encoding="utf-8")
    assert library.render(library.load(recipe), form) == committed, (
        f"renew it: toolkit image render {recipe} --write"
    )


def test_render_writes_beside_a_recipe_of_ones_own(tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text('summary = "x"\n[base]\nkind = "localimage"\npath = "/base.sif"\n')
    assert image("render", str(recipe), "--write").exit_code == 0
    assert (tmp_path / "mine.def").read_text() == image("render", str(recipe)).stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("render",),
        ("render", "pytorch_cpu", "--all"),
        ("render", "pytorch_cpu", "--write", "--with", "jupyter"),
    ],
    ids=" ".join,
)
def test_what_does_not_go_together_is_refused(arguments):
    assert isinstance(refused(*arguments), UsageError)


@pytest.mark.parametrize("verb", ["build", "render", "path", "check"])
def test_an_unknown_name_has_a_near_one(verb):
    error = refused(verb, "pytorch-cpu")
    assert isinstance(error, UnknownImageError)
    assert error.close == "pytorch_cpu"


@pytest.mark.parametrize("verb", ["path", "check"])
def test_an_image_that_is_not_built_names_the_command(verb):
    error = refused(verb, "pytorch_cpu")
    assert isinstance(error, ImageMissingError)
    assert error.next_step == "toolkit image build pytorch_cpu"


def test_a_recipe_beside_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tv.toml").write_text('summary = "x"\nextends = "pytorch_cpu"\n')
    for verb in ("build", "lock", "render"):
        assert "./tv.toml" in str(refused(verb, "tv").next_step)


def test_an_image_has_no_lock_but_its_recipe(images):
    images.mkdir()
    fake_sif(images / "nuimg.sif")
    built = msgspec.structs.replace(manifest("nuimg"), command="toolkit image build ./nu.toml")
    (images / "nuimg.json").write_text(to_json(built))
    assert "toolkit image build ./nu.toml" in str(refused("lock", "nuimg").next_step)


@pytest.mark.parametrize("directory", [".", "other"])
def test_a_new_recipe_is_on_a_recipe_a_stored_image_or_a_file(
    tmp_path, images, monkeypatch, directory
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / directory).mkdir(exist_ok=True)
    images.mkdir()
    fake_sif(images / "nuimg.sif")
    (images / "nuimg.json").write_text(to_json(manifest("nuimg")))
    (tmp_path / "x.toml").write_text('summary = "x"\nextends = "pytorch_cpu"\n')

    def base_of(name: str, origin: str) -> Base:
        done = image("new", name, "--from", origin, "--directory", directory)
        assert done.exit_code == 0, done.exception
        return library.load(f"{directory}/{name}.toml").base

    assert base_of("a", "nuimg") == LocalImage(path=str(images / "nuimg.sif"))
    assert base_of("b", "x.toml") == library.load("pytorch_cpu").base
    assert base_of("c", str(tmp_path / "x.toml")) == library.load("pytorch_cpu").base
    assert base_of("d", "mine.sif") == LocalImage(path=str(tmp_path / "mine.sif"))
    unknown = refused("new", "e", "--from", "nuimgg")
    assert isinstance(unknown, UnknownImageError)


def listed() -> dict[str, dict[str, object]]:
    return {one["name"]: one for one in json.loads(image("list", "--json").stdout)}


def test_the_list_tells_states_apart(images):
    assert listed()["pytorch_cpu"]["state"] == "not built"
    images.mkdir()
    fake_sif(images / "pytorch_cpu.sif")
    assert listed()["pytorch_cpu"]["state"] == "not whole"
    known = images / "pytorch_cpu.json"
    known.write_text(to_json(manifest("pytorch_cpu")))
    assert listed()["pytorch_cpu"]["state"] == "recipe changed"
    wanted = library.hash_recipe(library.load("pytorch_cpu"))
    known.write_text(
        to_json(manifest("pytorch_cpu")).replace('"recipe_hash": "r"', f'"recipe_hash": "{wanted}"')
    )
    assert listed()["pytorch_cpu"]["state"] == "built"
    fake_sif(images / "theirs.sif", ID)
    assert listed()["theirs"]["state"] == "no manifest"
    table = image("list").stdout.splitlines()
    assert table[0].split()[0] == "NAME"
    assert {"pytorch_cpu", "pytorch_22.03", "theirs"} <= {line.split()[0] for line in table[1:]}
