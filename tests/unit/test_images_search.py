"""Finding and showing: filters compare versions, what is unknown fits nothing and is shown as unknown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from toolkit.cli.groups import image as command
from toolkit.errors import UsageError
from toolkit.images.store import listing


def image(*words: str) -> Result:
    return CliRunner().invoke(command, words)


def names(*words: str) -> set[str]:
    done = image("search", *words, "--json")
    assert done.exit_code == 0, done.output
    return {one["name"] for one in json.loads(done.stdout)}


@pytest.fixture(autouse=True)
def nothing_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLKIT_IMAGES", str(tmp_path))


@pytest.mark.parametrize(
    ("words", "found", "not_found"),
    [
        (("pytorch_cpu",), {"pytorch_cpu"}, {"pytorch:22.03", "tensorflow_cpu"}),
        (
            ("cuda>=12", "python:3.10"),
            {"pytorch:24.10"},
            {"pytorch:22.03", "pytorch:25.01", "pytorch_cpu"},
        ),
        (("cuda:11.6",), {"pytorch:22.03", "pytorch_22.03"}, {"pytorch:22.12"}),
        (("cuda<11",), {"pytorch:20.03"}, {"pytorch:20.12"}),
        (
            ("kind:recipe", "framework:tensorflow"),
            {"tensorflow_22.03", "tensorflow_25.02"},
            {"tensorflow:22.03"},
        ),
        (("driver<=470", "framework:pytorch"), {"pytorch:22.03"}, {"pytorch:22.01"}),
        (("no such thing",), set(), {"pytorch_cpu"}),
    ],
)
def test_words_and_filters(words, found, not_found):
    told = names(*words)
    assert found <= told
    assert not told & not_found


@pytest.mark.parametrize("word", ["cuda>>1", "cuda==1", "cuda>", "=1", ">", "python:"])
def test_what_looks_like_a_filter_and_is_none_is_refused(word):
    with pytest.raises(UsageError, match="neither a word nor a filter") as caught:
        listing.matching((), [word])
    assert "cuda>=12" in (caught.value.next_step or "")


def test_a_filter_of_nothing_is_refused():
    error = image("search", "pyton:3").exception
    assert isinstance(error, UsageError)
    assert error.close == "python"


def test_every_fact_of_a_release_is_shown_with_its_source():
    text = image("show", "nvcr.io/nvidia/pytorch:22.03-py3").stdout
    assert "11.6.1" in text
    assert "from the MXNet page of the same month" in text
    assert any(line.split()[:2] == ["openmpi", "unknown"] for line in text.splitlines())


def test_a_recipe_that_is_not_built_is_shown():
    shown = json.loads(image("show", "pytorch_cpu", "--json").stdout)
    assert "horovod-build" in shown["compiled"]
    assert "not built" in shown["image"]
