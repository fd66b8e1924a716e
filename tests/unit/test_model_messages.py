"""What is wrong in a TOML file is told in words, with its line, and never as a type or a regular expression."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.errors import ConfigError
from toolkit.files import config_error
from toolkit.model.base import BadDataError, from_toml
from toolkit.model.job import Job
from toolkit.model.site import Site
from toolkit.workshops.model import Workshop


def message_of(text: str, model: type[Job] | type[Site] = Job) -> ConfigError:
    with pytest.raises(BadDataError) as caught:
        from_toml(text, model)
    return config_error(Path("job.toml"), text, caught.value)


NODES = 'expected a whole number of at least 1 or a range, such as "1:4"'
GPUS = (
    'expected a whole number of at least 0 or a list with one number for each node, such as "8,4", '
    'or a type and a number, such as "a100:4"'
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('nodes = "x"', f"{NODES}, got 'x'"),
        ("nodes = 0", f"{NODES}, got 0"),
        ("nodes = 1.5", f"{NODES}, got a number"),
        ('gpus = "a"', f"{GPUS}, got 'a'"),
        ("gpus = -1", f"{GPUS}, got -1"),
        ("time = true", "expected text in quotes or a whole number, got true or false"),
        ("time = 1979-05-27", "expected text in quotes or a whole number, got date"),
        ('bind = "x"', 'expected a list, such as ["a", "b"], got text in quotes'),
        ('init = "foo"', "expected one of env, tcp, file, got 'foo'"),
        ("env = [1]", 'expected a table, such as { NAME = "value" }, got a list'),
        ('env = "A=1"', 'expected a table, such as { NAME = "value" }, got text in quotes'),
        ('requeue = "yes"', "expected true or false, got text in quotes"),
        ("secret = [1]", "expected text in quotes, got a whole number"),
        (f"max_restarts = -{'1' * 40}", "expected a whole number of at least 0"),
    ],
)
def test_a_value_that_does_not_fit(text, message):
    found = message_of(f"# a comment\n{text}\n")
    assert found.cause == message
    assert (found.place or "").startswith("job.toml:2")


@pytest.mark.parametrize(
    ("text", "model", "message"),
    [
        ("ports = [1]", Site, "expected two ports, such as [61000, 65535], got a list"),
        (
            'language = ["Korean"]',
            Workshop,
            "expected the code of a language, such as \"en\", got 'Korean'",
        ),
        ("exercises = []", Workshop, "expected tables [[exercises]], one at least, got a list"),
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


def test_all_faults_of_a_file_are_told_at_once_each_with_its_line():
    text = """name = "x"
max_minutes = "2 hours"
colour = "red"
partition = 1

[partitions.main]
gpus = "many"

[partitions.other]
nodez = 3

[partitions."a.b"]
gpus = 1.5

[gpu_types]
v100 = "two words"

[[notes]]
text = "fine"
source = "s"
[[notes]]
text = 3
source = "s"
"""
    found = message_of(text, Site)
    assert found.place == "job.toml:2, key max_minutes"
    assert [line.partition(": ")[0] for line in found.details] == [
        "job.toml:3, key colour",
        "job.toml:4, key partition",
        "job.toml:7, key partitions.main.gpus",
        "job.toml:10, key partitions.other.nodez",
        'job.toml:13, key partitions."a.b".gpus',
        "job.toml:16, key gpu_types.v100",
        "job.toml:22, key notes[1].text",
    ]
    assert found.details[2].endswith("expected a whole number, got text in quotes")
