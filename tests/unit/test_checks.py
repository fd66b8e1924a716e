"""The framework of checks: a check is found in the module that has it, and no list names it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit.checks import (
    Check,
    Edit,
    Format,
    Registry,
    Result,
    at,
    check,
    failed,
    from_error,
    unchecked,
)
from toolkit.errors import UsageError

TOY = """
from toolkit.checks import check
from toolkit.checks import failed, passed

@check("toy-{name}", "toys", order={order}, severity="{severity}", cause="why", source="a book")
def check_toy(case):
    return passed("fine") if case else failed("broken")
"""


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry[bool]]:
    package = tmp_path / "toys"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "first.py").write_text(TOY.format(name="a", order=20, severity="error"))
    (package / "second.py").write_text(TOY.format(name="b", order=10, severity="warning"))
    monkeypatch.syspath_prepend(tmp_path)
    yield Registry("toys")
    for name in [name for name in sys.modules if name.partition(".")[0] == "toys"]:
        del sys.modules[name]


def test_checks_are_found_in_modules_and_ordered(registry: Registry[bool]) -> None:
    assert list(registry.checks) == ["toy-b", "toy-a"]
    assert {result.outcome for result in registry.results(case=True)} == {"passed"}


def test_results_get_the_name_and_the_traits_of_their_check(registry: Registry[bool]) -> None:
    mild, severe = registry.results(case=False)
    assert (mild.name, mild.outcome, mild.cause, mild.source) == (
        "toy-b",
        "warning",
        "why",
        "a book",
    )
    assert (severe.name, severe.outcome) == ("toy-a", "failed")
    assert [result.name for result in registry.results(case=False, names=["toy-a"])] == ["toy-a"]


def test_an_error_of_ours_is_a_failed_check() -> None:
    @check("broken")
    def broken(_: int) -> Result:
        raise UsageError("no such option", choices=["--nodes"], value="--node")

    assert isinstance(broken, Check)
    result = broken.only(0)
    assert (result.name, result.outcome, result.fix) == ("broken", "failed", "close: --nodes")


def test_a_failure_of_a_rule_carries_the_error_that_stops_the_job() -> None:
    error = UsageError("too many", place="--nodes", next_step="--nodes 2")
    result = from_error(error, "sinfo", stops=False)
    assert (result.outcome, result.message, result.fix) == ("warning", "too many", "--nodes 2")
    assert result.error is error
    assert error.source == "sinfo"


def test_one_form_for_text_and_one_for_json() -> None:
    words = {"passed": "PASS", "warning": "WARN", "failed": "FAIL", "unchecked": "not checked"}
    form = Format(words, {"rule": "name", "result": "outcome", "fix": "edits"})  # type: ignore[arg-type]
    result = at(2, "a fault", edits=[Edit(line=2, text=None)], fix="remove it")
    named = result._replace(name="rule", cause="it hangs")
    assert form.to_json(named) == {
        "rule": "rule",
        "result": "FAIL",
        "fix": [{"line": 2, "text": None}],
    }
    assert form.to_report(named, "job.sh") == [
        "job.sh:2: FAIL: a fault [rule]",
        "    why   it hangs",
        "    fix   remove it",
    ]
    assert form.to_row(failed("bad", "mend")._replace(name="x"), 3) == [
        "FAIL         x    bad",
        "                  next: mend",
    ]
    assert form.to_row(unchecked("no nodes"), 0) == ["not checked    no nodes"]
