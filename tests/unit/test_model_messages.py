"""What is wrong in a TOML file is told in words, with its line, and never as a type or a regular expression."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.errors import ConfigError
from toolkit.files import config_error
from toolkit.model.base import BadDataError, convert, from_toml
from toolkit.model.job import Job
from toolkit.model.site import Site
from toolkit.workshops.model import Workshop


def message_of(text: str, model: type[Job] | type[Site] = Job) -> ConfigError:
    with pytest.raises(BadDataError) as caught:
        from_toml(text, model)
    return config_error(Path("job.toml"), text, caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('nodes = "x"', 'expected a whole number of at least 1 or a range, such as "1:4"'),
        ("time = true", "expected int | str, got bool"),
        ('init = "foo"', "invalid enum value 'foo'"),
        ("env = [1]", "expected object, got array"),
        ("secret = [1]", "expected str, got int"),
    ],
)
def test_a_value_that_does_not_fit(text, message):
    found = message_of(f"# a comment\n{text}\n")
    assert found.cause == message
    assert str(found.place).startswith("job.toml" if "[0]" in str(found.place) else "job.toml:2")


@pytest.mark.parametrize(
    ("text", "model", "message"),
    [
        ("ports = [1]", Site, "expected two ports, such as [61000, 65535]"),
        (
            'language = ["Korean"]',
            Workshop,
            'expected the code of a language, such as "en"',
        ),
        ("exercises = []", Workshop, "expected tables [[exercises]], one at least"),
    ],
)
def test_a_value_with_a_form_of_its_own(text, model, message):
    assert message_of(text, model).cause == message


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\nnodes = two\n", 2),
        ("a b = 3\n", 1),
        ('name = "a\nb = 1\n', 1),
        ("nodes = 1\nnodes = 2\n", 2),
        ('[env]\nA = "b"\n[env]\n', 3),
        ("x = [1\n", 0),
    ],
)
def test_what_is_no_toml(text, line):
    error = message_of(text)
    assert error.cause.startswith("this is not valid TOML: ")
    assert (error.place or "").startswith(f"job.toml:{line}" if line else "job.toml")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('[partitions.main]\ngpus = "many"', "job.toml:3, key partitions.main.gpus"),
        ('[partitions.main]\ngpu = "A"\n[partitions.x]\ngpu = 1', "job.toml, key partitions.x.gpu"),
        ("[partitions.main]\nnodez = 3", "job.toml:3, key partitions.main.nodez"),
        ("[comment]\nwordz = 3", "job.toml:3, key comment.wordz"),
        ('[gpu_types]\nv100 = "two words"', "job.toml:3, key gpu_types.v100"),
        ('[[notes]]\ntext = 3\nsource = "s"', "job.toml:3, key notes[0].text"),
    ],
)  # fmt: skip
def test_a_key_below_others_is_named_and_its_line_where_that_can_be_told(text, place):
    found = message_of(f'name = "x"\n{text}', Site)
    assert found.place == place
    assert found.close == {"nodez": "nodes", "wordz": "words"}.get(place.rpartition(".")[2])


@pytest.mark.parametrize(
    "name", ["x - at `$.foo", "` - at `$.name[...].x`", " - at `key` in `$", "$[[["]
)
def test_a_hostile_name_of_a_key_is_told(name):
    with pytest.raises(BadDataError) as caught:
        convert({"name": "x", name: 1}, Site)
    assert str(caught.value)
