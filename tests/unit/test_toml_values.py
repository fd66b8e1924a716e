"""Values that are written as TOML come back as they were."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toolkit.model.base import toml, toml_value

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
