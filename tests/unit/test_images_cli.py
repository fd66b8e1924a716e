"""`toolkit image`: what is printed, and what is refused, where no program has to be run."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from tests.unit.test_images_store import fake_sif, manifest, put
from toolkit.cli.groups import image as command
from toolkit.errors import (
    ForbiddenError,
    ImageMissingError,
    ToolkitError,
    UnknownImageError,
    UsageError,
)
from toolkit.images.recipe import library
from toolkit.images.recipe.bases import Base, LocalImage


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


@pytest.mark.parametrize("verb", ["build", "render", "path"])
def test_an_unknown_name_has_a_near_one(verb):
    error = refused(verb, "pytorch-cpu")
    assert isinstance(error, UnknownImageError)
    assert error.close == "pytorch_cpu"


def test_an_image_that_is_not_built_names_the_command():
    error = refused("path", "pytorch_cpu")
    assert isinstance(error, ImageMissingError)
    assert error.next_step == "toolkit image build pytorch_cpu"


def test_a_recipe_beside_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tv.toml").write_text('summary = "x"\nextends = "pytorch_cpu"\n')
    for verb in ("build", "lock", "render"):
        assert "./tv.toml" in str(refused(verb, "tv").next_step)


@pytest.mark.parametrize("output", ["file/x", "/proc/x", "."])
def test_a_lock_that_cannot_be_written_names_the_option(output, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    monkeypatch.setattr("toolkit.images.lockfile.make.make", lambda *_: None)
    monkeypatch.setattr("toolkit.images.recipe.lock.format_lock", lambda _: "")
    done = image("lock", "pytorch_cpu", "--output", output)
    assert output == "." or isinstance(done.exception, ForbiddenError)
    assert output != "." or done.exit_code == 2


@pytest.mark.parametrize("directory", [".", "other"])
def test_a_new_recipe_is_on_a_recipe_a_stored_image_or_a_file(
    tmp_path, images, monkeypatch, directory
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / directory).mkdir(exist_ok=True)
    images.mkdir()
    put(images, "nuimg")
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


def listed() -> dict[str, str]:
    return {one["name"]: one["state"] for one in json.loads(image("list", "--json").stdout)}


def test_the_list_tells_states_apart(images):
    assert listed()["pytorch_cpu"] == "not built"
    images.mkdir()
    fake_sif(images / "pytorch_cpu.sif")
    assert listed()["pytorch_cpu"] == "not whole"
    put(images)
    assert listed()["pytorch_cpu"] == "recipe changed"
    wanted = library.hash_recipe(library.load("pytorch_cpu"))
    current = msgspec.structs.replace(manifest("pytorch_cpu"), recipe_hash=wanted)
    fake_sif(images / "pytorch_cpu.sif", inside=current)
    fake_sif(images / "theirs.sif")
    assert (listed()["pytorch_cpu"], listed()["theirs"]) == ("built", "no manifest")
    table = image("list").stdout.splitlines()
    assert table[0].split()[0] == "NAME"
    assert {"pytorch_cpu", "pytorch_22.03", "theirs"} <= {line.split()[0] for line in table[1:]}
