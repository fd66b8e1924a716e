"""Finding and showing: what is unknown is shown as unknown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from toolkit.cli.groups import image as command


@pytest.fixture(autouse=True)
def nothing_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLKIT_IMAGES", str(tmp_path))


def image(*words: str) -> Result:
    return CliRunner().invoke(command, words)


@pytest.mark.parametrize(
    ("words", "found", "not_found"),
    [
        ("pytorch_cpu", "pytorch_cpu", "pytorch:22.03 tensorflow_cpu"),
        ("PyTorch recipe", "", "pytorch_cpu"),
        ("ngc pytorch", "pytorch:22.03", "pytorch_cpu"),
        ("nosuchthing", "", "pytorch_cpu"),
    ],
)
def test_every_word_is_in_the_name_or_the_summary(words, found, not_found):
    done = image("search", *words.split(), "--json")
    told = {one["name"] for one in json.loads(done.stdout)}
    assert told >= {*found.split()}
    assert not told & {*not_found.split()}


def test_every_fact_of_a_release_is_shown_with_its_source():
    text = image("show", "nvcr.io/nvidia/pytorch:22.03-py3").stdout
    assert "11.6.1" in text
    assert "from the MXNet page of the same month" in text
    assert any(line.split()[:2] == ["openmpi", "unknown"] for line in text.splitlines())
    shown = json.loads(image("show", "pytorch_cpu", "--json").stdout)
    assert "horovod-build" in shown["compiled"]
    assert "not built" in shown["image"]
