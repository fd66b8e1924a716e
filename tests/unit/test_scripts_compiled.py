"""Templates that were compiled before: used by their owner only, and never in the way."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from jinja2 import DictLoader, Environment

from toolkit.scripts.compiled import cache


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "toolkit/templates"


def rendered(source: str = "{{ 6 * 7 }}") -> str:
    return (
        Environment(loader=DictLoader({"one": source}), bytecode_cache=cache())
        .get_template("one")
        .render()
    )


def test_what_was_compiled_is_used_again(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rendered() == "42"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert len(list(directory.iterdir())) == 1
    with monkeypatch.context() as patch:
        patch.setattr(Environment, "compile", None)
        assert rendered() == "42"
    assert rendered("{{ 6 * 8 }}") == "48", "a template that has changed is compiled anew"


@pytest.mark.parametrize("left", [b"", b"j2", bytes(40)])
def test_what_was_cut_off_is_compiled_again(left: bytes, directory: Path) -> None:
    rendered()
    (kept,) = directory.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(left or whole[: len(whole) // 2])
    assert rendered() == "42"


def test_what_others_could_write_is_not_used(directory: Path) -> None:
    rendered()
    for where in (directory, directory.parent):
        where.chmod(0o777)
        assert cache() is None
        where.chmod(0o700)
    assert cache() is not None
    directory.chmod(0o777)
    assert rendered() == "42"


def test_nothing_is_kept_where_nothing_can_be(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.parent.write_text("a file")
    assert cache() is None
    directory.parent.unlink()
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert cache() is None
    assert not directory.exists()
    assert rendered() == "42"


def test_a_full_disk_is_no_fault(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", full)
    assert rendered() == "42"
    assert not list(directory.iterdir())
