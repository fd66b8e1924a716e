"""Finding and showing: filters compare versions, what is unknown fits nothing and is shown as unknown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from toolkit.cli.groups import image as command
from toolkit.errors import UsageError


@pytest.fixture(autouse=True)
def nothing_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLKIT_IMAGES", str(tmp_path))


def image(*words: str) -> Result:
    return CliRunner().invoke(command, words)


@pytest.mark.parametrize(
    ("words", "found", "not_found"),
    [
        ("pytorch_cpu", "pytorch_cpu", "pytorch:22.03 tensorflow_cpu"),
        ("cuda>=12 python:3.10", "pytorch:24.10", "pytorch:22.03 pytorch:25.01 pytorch_cpu"),
        ("cuda:11.6", "pytorch:22.03 pytorch_22.03", "pytorch:22.12"),
        ("cuda<11", "pytorch:20.03", "pytorch:20.12"),
        (
            "kind:recipe framework:tensorflow",
            "tensorflow_22.03 tensorflow_25.02",
            "tensorflow:22.03",
        ),
        ("driver<=470 framework:pytorch", "pytorch:22.03", "pytorch:22.01"),
        ("nosuchthing", "", "pytorch_cpu"),
    ],
)
def test_words_and_filters(words, found, not_found):
    done = image("search", *words.split(), "--json")
    told = {one["name"] for one in json.loads(done.stdout)}
    assert told >= {*found.split()}
    assert not told & {*not_found.split()}


@pytest.mark.parametrize("word", ["cuda>>1", "cuda==1", "cuda>", "=1", ">", "python:", "pyton:3"])
def test_what_looks_like_a_filter_and_is_none_is_refused(word):
    error = image("search", word).exception
    assert isinstance(error, UsageError)
    assert error.close == "python" if word == "pyton:3" else "cuda>=12" in str(error.next_step)


def test_every_fact_of_a_release_is_shown_with_its_source():
    text = image("show", "nvcr.io/nvidia/pytorch:22.03-py3").stdout
    assert "11.6.1" in text
    assert "from the MXNet page of the same month" in text
    assert any(line.split()[:2] == ["openmpi", "unknown"] for line in text.splitlines())
    shown = json.loads(image("show", "pytorch_cpu", "--json").stdout)
    assert "horovod-build" in shown["compiled"]
    assert "not built" in shown["image"]
