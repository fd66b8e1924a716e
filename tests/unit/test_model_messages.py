"""TOML files: what is wrong is told in words, with its line, and values that are written come back as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import ConfigError
from toolkit.files import config_error
from toolkit.model.base import BadDataError, convert, from_toml, toml, toml_value
from toolkit.model.job import Job
from toolkit.model.site import Site
from toolkit.workshops.model import Workshop


def message_of(text: str, model: type[Job] | type[Site] | type[Workshop] = Job) -> ConfigError:
    with pytest.raises(BadDataError) as caught:
        from_toml(text, model)
    return config_error(Path("job.toml"), text, caught.value)


@pytest.mark.parametrize(
    ("text", "model", "place", "cause"),
    [
        ('nodes = "x"', Job, "job.toml:2, key nodes", 'expected a whole number of at least 1 or a range, such as "1:4"'),
        ("time = true", Job, "job.toml:2, key time", "expected int | str, got bool"),
        ('init = "foo"', Job, "job.toml:2, key init", "invalid enum value 'foo'"),
        ("secret = [1]", Job, "job.toml, key secret[0]", "expected str, got int"),
        ("ports = [1]", Site, "job.toml:2, key ports", "expected two ports, such as [61000, 65535]"),
        ('language = ["Korean"]', Workshop, "job.toml, key language[0]", 'expected the code of a language, such as "en"'),
        ("exercises = []", Workshop, "job.toml:2, key exercises", "expected tables [[exercises]], one at least"),
        # what is no TOML
        ("nodes = two", Job, "job.toml:2", "this is not valid TOML: "),
        ("nodes = 1\nnodes = 2", Job, "job.toml:3", "this is not valid TOML: "),
        ("x = [1", Job, "job.toml", "this is not valid TOML: "),
        # a key below others
        ('[partitions.main]\ngpus = "many"', Site, "job.toml:3, key partitions.main.gpus", "expected int"),
        ('[partitions.main]\ngpu = "A"\n[partitions.x]\ngpu = 1', Site, "job.toml, key partitions.x.gpu", "expected str"),
        ("[partitions.main]\nnodez = 3", Site, "job.toml:3, key partitions.main.nodez", "there is no key 'nodez'"),
        ('[gpu_types]\nv100 = "two words"', Site, "job.toml:3, key gpu_types.v100", "without blanks"),
        ('[[notes]]\ntext = 3\nsource = "s"', Site, "job.toml:3, key notes[0].text", "expected str"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_told_with_its_place(text, model, place, cause):
    found = message_of(
        f'name = "x"\n{text}\n' if model is Site else f"# a comment\n{text}\n", model
    )
    assert found.place == place
    assert cause in found.cause
    assert found.close == ("nodes" if "nodez" in text else None)


@pytest.mark.parametrize(
    "name", ["x - at `$.foo", "` - at `$.name[...].x`", " - at `key` in `$", "$[[["]
)
def test_a_hostile_name_of_a_key_is_told(name):
    with pytest.raises(BadDataError) as caught:
        convert({"name": "x", name: 1}, Site)
    assert str(caught.value)


# TOML has no surrogates, and 64-bit integers.
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXT


@given(
    st.recursive(
        SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=12
    )
)
def test_a_value_comes_back_as_it_was(value):
    assert toml(f"value = {toml_value(value)}") == {"value": value}
