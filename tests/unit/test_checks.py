"""Checks and their results, which doctor, verify, lint and workshops have in common."""

from __future__ import annotations

import pkgutil
from importlib import import_module

import pytest

from toolkit.checks import Check, Edit, Result, at, check, failed, passed, row, to_json, unchecked
from toolkit.doctor import items
from toolkit.errors import UsageError
from toolkit.images.verify import checks as image_checks
from toolkit.lint import linter
from toolkit.lint import rules as lint_rules
from toolkit.workshops import checks as join_checks

ROOMS = [
    (items, items.ITEMS),
    (image_checks, image_checks.CHECKS),
    (lint_rules, lint_rules.RULES),
    (join_checks, join_checks.CHECKS),
]


@pytest.mark.parametrize(("package", "listed"), ROOMS)
def test_every_check_of_a_room_is_in_its_list_once(package, listed):
    names = [each.name for each in pkgutil.iter_modules(getattr(package, "__path__", ()))]
    modules = [import_module(f"{package.__name__}.{name}") for name in names] or [package]
    values = [value for module in modules for value in vars(module).values()]
    values += [each for value in values if type(value) is tuple for each in value]
    written = {value.name for value in values if isinstance(value, Check)}
    assert sorted(written) == sorted(each.name for each in listed)


def test_results_get_the_name_and_what_its_results_have_in_common():
    @check("mild", "toys", severity="warning", cause="why", fix="mend it", source="a book")
    def mild(is_fine: bool) -> Result:
        return passed("fine") if is_fine else failed("broken")

    (good,), (bad,) = mild(case=True), mild(case=False)
    assert (good.name, good.outcome) == ("mild", "passed")
    assert (bad.outcome, bad.cause, bad.fix, bad.source) == ("warning", "why", "mend it", "a book")


def test_an_error_of_ours_is_a_failed_check():
    @check("broken")
    def broken(_: int) -> Result:
        raise UsageError("no such option", choices=["--nodes"], value="--node")

    result = broken.only(0)
    assert (result.name, result.outcome, result.fix) == ("broken", "failed", "close: --nodes")


def test_results_are_lines_and_objects():
    bad = failed("bad", "mend")._replace(name="x")
    assert row(bad, 3) == ["FAIL         x    bad", "                  next: mend"]
    assert row(unchecked("no nodes"), 0) == ["not checked    no nodes"]
    assert to_json(bad) == {"name": "x", "outcome": "FAIL", "detail": "bad", "next_step": "mend"}
    fault = at(2, "a fault", edits=[Edit(line=2, text=None)], fix="remove it")
    fault = fault._replace(name="rule", cause="it hangs")
    assert linter.to_json(fault)["fix"] == [{"line": 2, "text": None}]
    lines = ["job.sh:2: error: a fault [rule]", "    why   it hangs", "    fix   remove it"]
    assert linter.report(fault, "job.sh") == lines
