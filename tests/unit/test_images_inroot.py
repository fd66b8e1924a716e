"""Paths in an unpacked root: where its links lead, and never out of it."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.images.builder.apptainer.inroot import is_below, resolve


@pytest.mark.parametrize(
    ("links", "path", "leads_to"),
    [
        ({}, "../../etc/hosts", "etc/hosts"),
        ({"etc/hosts": "../../../../etc/nologin"}, "/etc/hosts", "etc/nologin"),
        ({"etc": "usr/etc", "usr/etc": "/private"}, "/etc/../etc/hosts", "private/hosts"),
        ({"run": "var/run/./", "var/run": "../../../tmp//"}, "run/lock", "tmp/lock"),
        ({"a": "/"}, "a/a/a/etc", "etc"),
    ],
)
def test_links_are_followed_within_the_root(tmp_path, links, path, leads_to):
    for place, target in links.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).symlink_to(target)
    assert resolve(tmp_path, path) == tmp_path / leads_to
    assert not is_below(tmp_path, path)
    assert is_below(tmp_path, f"/{leads_to}")


def test_links_in_a_circle_are_an_error(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("/a")
    with pytest.raises(OSError, match="symbolic links"):
        resolve(tmp_path, "/a/x")


WORDS = st.lists(st.sampled_from(["a", "b", "..", ".", "", "x y"]), min_size=1, max_size=6)
PATHS = WORDS.map("/".join)
LINKS = st.dictionaries(st.sampled_from(["a", "b", "a/b", "c/a/b"]), PATHS, max_size=5)


@settings(max_examples=150, deadline=None)
@given(links=LINKS, path=PATHS, absolute=st.booleans())
def test_nothing_leads_out(tmp_path_factory, links, path, absolute):
    root = tmp_path_factory.mktemp("root") / "inner"
    root.mkdir()
    for place, target in links.items():
        try:
            (root / place).parent.mkdir(parents=True, exist_ok=True)
            (root / place).symlink_to(f"/{target}" if absolute else target or ".")
        except OSError:
            continue  # its parent is a link already
    try:
        found = resolve(root, path)
    except OSError:
        return
    assert found == root or str(found).startswith(f"{root}/")
    assert os.path.realpath(found) == str(found)
