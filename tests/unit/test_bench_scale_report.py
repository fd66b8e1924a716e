"""The fits and the page of a scaling study."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.hostile import HOSTILE, MULTILINE
from tests.unit.test_bench_scale import OPTIONS, measured, study
from toolkit import reports
from toolkit.bench.scale import report, statistics
from toolkit.bench.scale.directory import StudyDirectory, read_study
from toolkit.bench.scale.model import Communication, Origin, Straggler, Study
from toolkit.bench.scale.report import page, write_reports
from toolkit.reports.charts import Axis, Curve, Mark, chart

STRONG = replace(OPTIONS, modes=("strong",), nodes=(1, 2, 4, 8), divide={"batch-size": 64})
SIZES = (1, 2, 4, 8)
ORIGIN = Origin(
    image="pytorch_cpu.sif",
    image_digest="622c2622e5d14562a13ceddf1c3187e6",
    script="/home/user/jobs/digits-ddp/train.py",
    script_sha256="6a0610d6ec45273f5a9fdd99c7d8638d29124397db292aa6dd3611adc766f6ce",
    commit="7cd3501+",
    site="local",
    slurm="24.05.1",
    toolkit="0.1.0",
    began="2026-11-22T20:00:00+00:00",
)


def strong(serial: float, *, scatter: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)) -> Study:
    """A study whose time on n ranks is s + (1 - s) / n, with the median off by a factor."""
    groups = []
    for size, factor in zip(SIZES, scatter, strict=True):
        rate = 100 / (serial + (1 - serial) / size) * factor
        groups.append(measured(size, rate * 0.98, rate, rate * 1.02, mode="strong"))
    return study(*groups, options=STRONG, mode="strong")


def fitted(whole: Study) -> statistics.Fit:
    result = report.series(whole)[0].fit
    assert result is not None
    return result


def test_a_line_is_that_computed_by_hand() -> None:
    # Weights 1/4, 1, 1/4: mean x 2, mean y 4/3, so b = 0.
    assert statistics.fit_line([(1.0, 2.0), (2.0, 1.0), (3.0, 2.0)]) == pytest.approx((4 / 3, 0))


@settings(deadline=None)
@given(st.floats(0.0, 0.9), st.booleans())
def test_the_serial_fraction_is_found_in_exact_data(serial: float, is_strong: bool) -> None:
    groups = [measured(size, *[50 * (serial + (1 - serial) * size)] * 3) for size in SIZES]
    law = fitted(strong(serial) if is_strong else study(*groups))
    assert law.law == ("Amdahl" if is_strong else "Gustafson")
    assert (law.serial, law.low, law.high) == pytest.approx((serial,) * 3, abs=1e-9)
    ideal = 1 / (serial + (1 - serial) / 512) if is_strong else serial + (1 - serial) * 512
    assert law.speedup(512) == pytest.approx(ideal, rel=1e-6)


def test_three_sizes_or_oversubscribed_ones_are_not_fitted() -> None:
    three = [measured(size, 50.0 * size) for size in SIZES[:3]]
    assert report.series(study(*three))[0].fit is None
    oversubscribed = measured(8, 400.0, oversubscribed=True)
    assert report.series(study(*three, oversubscribed))[0].fit is None
    assert report.series(study(*three, measured(8, 400.0)))[0].fit is not None


def test_what_a_law_cannot_explain_is_called_so() -> None:
    faster = [measured(size, rate) for size, rate in zip(SIZES, (50, 110, 230, 470), strict=True)]
    assert "the law does not hold" in str(fitted(study(*faster)))
    wild = [measured(size, rate) for size, rate in zip(SIZES, (50, 40, 230, 170), strict=True)]
    assert "too wide to tell" in str(fitted(study(*wild)))


def full() -> Study:
    """A study with everything that a report shows."""
    sums = Communication(bytes=39_976, seconds=0.0005, backend="gloo")
    slow = Straggler(ranks=(1,), hosts=("nid002",), busy_seconds=0.2, others_seconds=0.1)
    more = {
        "communication": sums,
        "step_seconds": 0.01,
        "epoch_seconds": 36.0,
        "start_seconds": 2.5,
    }
    scattered = strong(0.1, scatter=(1.0, 1.01, 0.99, 1.005)).samples
    groups = [
        tuple(replace(sample, **more) for sample in scattered if sample.nodes == size)
        for size in SIZES
    ]
    groups[1] = tuple(replace(sample, straggler=slow) for sample in groups[1])
    weak = [
        measured(size, 100.0 * size, 104.0 * size, oversubscribed=size > 2) for size in (1, 2, 4)
    ]
    options = replace(STRONG, modes=("strong", "weak"))
    one = study(*groups, options=options, mode="strong")
    two = study(*weak)
    return replace(
        one, points=(*one.points, *two.points), samples=(*one.samples, *two.samples), origin=ORIGIN
    )


class Tags(HTMLParser):
    """The tags of a page, each with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_asks_for_nothing_outside_and_is_a_report_itself(tmp_path: Path) -> None:
    directory = StudyDirectory(tmp_path)
    write_reports(full(), directory)
    text = directory.html.read_text()
    tags = Tags(text).tags
    outside = {"src", "href", "srcset", "action", "data", "poster", "background"}
    assert not [tag for tag in tags if outside & set(tag[1])]
    assert "url(" not in text
    assert "@import" not in text
    assert {tag for tag, _ in tags} & {"link", "iframe", "img", "object", "form"} == set()
    assert [attributes for tag, attributes in tags if tag == "script"] == [
        {"type": "application/json", "id": "study"}
    ]
    for path in (directory.html, directory.json, tmp_path):
        assert read_study(path) == full()


def charts(text: str) -> Iterator[ElementTree.Element]:
    for drawing in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        yield ElementTree.fromstring(drawing)


def test_every_chart_is_one_and_differs_without_color() -> None:
    text = page(full())
    drawn = list(charts(text))
    titles = [drawing.get("aria-label") for drawing in drawn]
    assert titles == [
        "Rate: samples_per_second",
        "Speed-up",
        "Efficiency",
        "Share of communication",
    ]
    lines = drawn[0].findall(".//{*}polyline")
    assert len({line.get("stroke-dasharray") for line in lines}) == len(lines) == 2
    hollow = [
        mark for mark in drawn[0].iter() if mark.get("fill") == "white" and mark.get("stroke")
    ]
    assert len(hollow) == 1, "the oversubscribed point"


@pytest.mark.parametrize("value", [*HOSTILE, *MULTILINE, "</script><script>alert(1)</script>"])
def test_no_text_of_others_is_markup(value: str) -> None:
    hostile = f"<b onclick=x>{value}\u202e</b>"
    slow = Straggler(ranks=(1,), hosts=(hostile,), busy_seconds=0.2, others_seconds=0.1)
    whole = full()
    samples = tuple(
        replace(sample, launcher=hostile, name=hostile, straggler=slow, ended=hostile)
        for sample in whole.samples
    )
    options = replace(
        OPTIONS, target=hostile, metric=hostile, arguments=(hostile,), count_oversubscribed=hostile
    )
    origin = replace(ORIGIN, site=hostile, commit=hostile, script=hostile)
    written = page(replace(whole, samples=samples, options=options, origin=origin))
    parsed = Tags(written)
    assert "b" not in {tag for tag, _ in parsed.tags}
    assert [tag for tag, _ in parsed.tags].count("script") == 1
    visible = written.partition('<script type="application/json"')[0]
    assert "\u202e" not in visible
    for drawing in charts(written):
        assert drawing.tag.endswith("svg")


def drawing(curve: Curve, *, is_log: bool) -> ElementTree.Element:
    drawn = chart("t", [curve], Axis("x"), Axis("y", is_log=is_log))
    return ElementTree.fromstring(reports.render("chart.svg.j2", drawing=drawn))


def places(drawn: ElementTree.Element) -> list[tuple[float, float]]:
    """The places of the marks, that of the legend last."""
    words = [mark.get("transform", "")[10:-1].split() for mark in drawn.iter() if mark.get("d")]
    return [(float(x), float(y)) for x, y in words]


numbers = st.floats(1e-30, 1e30) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0])


@settings(deadline=None)
@given(st.lists(st.tuples(numbers, numbers, numbers, numbers), max_size=6), st.booleans())
def test_any_numbers_are_drawn_within_the_picture(
    values: list[tuple[float, float, float, float]], is_log: bool
) -> None:
    marks = tuple(Mark(x, sorted(rest)[1], min(rest), max(rest)) for x, *rest in values)
    for x, y in places(drawing(Curve("a", marks), is_log=is_log)):
        assert 0 <= x <= 640
        assert 0 <= y <= 460


def test_values_that_have_no_place_are_left_out() -> None:
    marks = (Mark(1, math.nan, 1, 1), Mark(0, 1, 1, 1), Mark(2, 0, 0, 0), Mark(4, 1, 1, math.inf))
    assert len(places(drawing(Curve("a", marks), is_log=True))) == 1, "that of the legend"
