"""`toolkit image`: what is printed, and what is refused, where no program has to be run."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from tests.unit.test_images_store import fake_sif, manifest, put
from toolkit.cli.groups import image as command
from toolkit.errors import ForbiddenError, ToolkitError, UnknownImageError, UsageError
from toolkit.images.recipe import library
from toolkit.images.recipe.bases import LocalImage


@pytest.fixture(autouse=True)
def images(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLKIT_IMAGES", str(tmp_path / "images"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
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


def test_an_unknown_name_has_a_near_one_and_a_recipe_beside_is_named():
    error = refused("build", "pytorch-cpu")
    assert isinstance(error, UnknownImageError)
    assert error.close == "pytorch_cpu"
    Path("tv.toml").write_text('summary = "x"\nextends = "pytorch_cpu"\n')
    assert all("./tv.toml" in str(refused(verb, "tv").next_step) for verb in ("build", "lock"))


@pytest.mark.parametrize("output", ["file/x", "/proc/x", "."])
def test_a_lock_that_cannot_be_written_names_the_option(output, monkeypatch):
    Path("file").touch()
    monkeypatch.setattr("toolkit.images.lockfile.make.make", lambda *_: None)
    monkeypatch.setattr("toolkit.images.recipe.lock.format_lock", lambda _: "")
    done = image("lock", "pytorch_cpu", "--output", output)
    assert output == "." or isinstance(done.exception, ForbiddenError)
    assert output != "." or done.exit_code == 2


@pytest.mark.parametrize("directory", [".", "other"])
@pytest.mark.parametrize(
    ("origin", "sif"),
    [
        ("nuimg", "images/nuimg.sif"),
        ("mine.sif", "mine.sif"),
        ("x.toml", ""),
        ("{}/x.toml", ""),
    ],
)
def test_a_new_recipe_is_on_a_stored_image_a_file_or_a_recipe(
    tmp_path, images, origin, sif, directory
):
    Path(directory).mkdir(exist_ok=True)
    put(images, "nuimg")
    Path("x.toml").write_text('summary = "x"\nextends = "pytorch_cpu"\n')
    done = image("new", "a", "--from", origin.format(tmp_path), "--directory", directory)
    assert done.exit_code == 0, done.exception
    base = LocalImage(path=str(tmp_path / sif)) if sif else library.load("pytorch_cpu").base
    assert library.load(f"{directory}/a.toml").base == base
    assert isinstance(refused("new", "b", "--from", "nuimgg"), UnknownImageError)


def listed() -> dict[str, str]:
    return {one["name"]: one["state"] for one in json.loads(image("list", "--json").stdout)}


def test_the_list_tells_states_apart(images):
    assert listed()["pytorch_cpu"] == "not built"
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
    assert {"NAME", "pytorch_cpu", "theirs"} <= {line.split()[0] for line in table}


@pytest.mark.parametrize(
    ("words", "found", "not_found"),
    [
        ("pytorch_cpu", "pytorch_cpu", "pytorch:22.03"),
        ("PyTorch ngc", "pytorch:22.03", "pytorch_cpu"),
        ("nosuchthing", "", "pytorch_cpu"),
    ],
)
def test_every_word_is_in_the_name_or_the_summary(words, found, not_found):
    told = {one["name"] for one in json.loads(image("search", *words.split(), "--json").stdout)}
    assert told >= {*found.split()}
    assert not_found not in told


def test_every_fact_of_a_release_is_shown_with_its_source_and_what_is_unknown():
    text = image("show", "nvcr.io/nvidia/pytorch:22.03-py3").stdout
    assert "from the MXNet page of the same month" in text
    assert any(line.split()[:2] == ["openmpi", "unknown"] for line in text.splitlines())
    shown = json.loads(image("show", "pytorch_cpu", "--json").stdout)
    assert "horovod-build" in shown["compiled"]
    assert "not built" in shown["image"]
