"""Studies compared with each other: with one another."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.test_bench_scale import OPTIONS, measured, study
from tests.unit.test_bench_scale_report import ORIGIN
from toolkit.bench.scale import against
from toolkit.bench.scale.directory import read_study
from toolkit.bench.scale.model import Study
from toolkit.cli.bench import _compare
from toolkit.errors import MalformedInputError, RegressionError, UsageError
from toolkit.model.base import to_json

KEY = "torchrun, weak, 2 x 1"


# 3 against 3 have p = 1/20 at best; 2 against 2 have 1/6, which shows nothing.
@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ([100, 101, 102], [90, 91, 92], "slower"),
        ([90, 91, 92], [100, 101, 102], "faster"),
        ([100, 101, 102], [99, 98, 97], "no change"),  # by 3 %
        ([100, 101, 102], [90, 91, 101.5], "no change"),  # one run was as fast
        ([100, 101], [50, 51], "too few runs"),
        ([100], [50, 51, 52], "too few runs"),
        ([100, 101, 102, 103], [80, 81, 82], "slower"),
    ],
)
def test_a_change_is_beyond_the_noise_or_not_one(
    old: list[float], new: list[float], verdict: str
) -> None:
    assert against.change(KEY, old, new, 0.05, is_time=False).verdict == verdict


def test_a_time_that_grows_is_slower() -> None:
    entry = against.change(KEY, [1.0, 1.01, 1.02], [2.0, 2.02, 2.04], 0.05, is_time=True)
    assert (entry.verdict, entry.ratio) == ("slower", 0.5)
    assert entry.new.median == 2.02


values = st.lists(st.floats(1, 1000), min_size=1, max_size=6)


@settings(deadline=None)
@given(values, values, st.booleans())
def test_a_change_is_the_opposite_of_the_change_back(
    old: list[float], new: list[float], is_time: bool
) -> None:
    opposite = {"slower": "faster", "faster": "slower"}
    there = against.change(KEY, old, new, 0.0, is_time=is_time).verdict
    back = against.change(KEY, new, old, 0.0, is_time=is_time).verdict
    assert back == opposite.get(there, there)


@settings(deadline=None)
@given(values)
def test_a_study_is_no_slower_than_itself(own: list[float]) -> None:
    assert against.change(KEY, own, own, 0.0, is_time=False).verdict in (
        "no change",
        "too few runs",
    )


def first() -> Study:
    return replace(
        study(measured(1, 90.0, 91.0, 92.0), measured(2, 180.0, 181.0, 182.0)), origin=ORIGIN
    )


def later(*factors: float) -> Study:
    slower = [measured(1, *(90.0 * factor for factor in factors)), measured(4, 400.0)]
    return replace(study(*slower), origin=replace(ORIGIN, slurm="25.05", began="2026-12-01"))


def test_points_of_both_studies_are_compared_and_what_differs_is_named() -> None:
    changes = against.compare(first(), later(0.8, 0.81, 0.82))
    assert [(change.name, change.verdict) for change in changes] == [
        ("torchrun, weak, 1 x 1", "slower")
    ]
    assert against.differences(first(), later(1.0)) == ["Slurm: 24.05.1 -> 25.05"]
    _, rows = against.table(changes)
    assert rows[0][1:] == ("91 (3)", "72.9 (3)", "-19.9%", "0.050", "slower")


def test_studies_that_cannot_be_compared_are_refused() -> None:
    for other in (
        replace(first(), options=replace(OPTIONS, metric="loss")),
        study(measured(8, 1.0)),
    ):
        with pytest.raises(UsageError):
            against.compare(first(), other)


def test_a_regression_has_an_exit_code_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    _compare(first(), first(), 0.05)
    with pytest.raises(RegressionError) as caught:
        _compare(first(), later(0.8, 0.81, 0.82), 0.05)
    assert caught.value.exit_code == 98
    assert "slower by 19.9%: torchrun, weak, 1 x 1" in caught.value.cause
    _compare(first(), later(0.8, 0.81, 0.82), 0.5)
    assert "too few" not in capsys.readouterr().err
    _compare(first(), later(0.8), 0.05)
    assert "too few runs show no change" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0.0", "-1.0", "1e999", "NaN"])
def test_a_report_with_impossible_values_is_refused(tmp_path: Path, value: str) -> None:
    text = to_json(first()).replace('"value": 90.0', f'"value": {value}')
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(MalformedInputError):
        read_study(tmp_path)


def test_a_report_with_too_many_points_is_refused(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(to_json(replace(first(), points=first().points * 200)))
    with pytest.raises(MalformedInputError, match="too many"):
        read_study(tmp_path)


@settings(deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_a_report_or_malformed(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("report") / "report.json"
    path.write_text(text, encoding="utf-8", errors="replace")
    with pytest.raises(MalformedInputError):
        read_study(path)
