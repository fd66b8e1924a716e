"""The scaling study's own arithmetic, by numbers that were computed by hand. Studies run in tests/cluster."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.samples import make_case
from toolkit.bench.scale import measurement, report, statistics
from toolkit.bench.scale.directory import StudyDirectory, read_study
from toolkit.bench.scale.measurement import Evidence, sample
from toolkit.bench.scale.model import (
    Communication,
    Options,
    Origin,
    Point,
    RankTimes,
    Sample,
    Straggler,
    Study,
)
from toolkit.bench.scale.study import adapted
from toolkit.errors import BusyError, ConfigError, MalformedInputError, UntrustedError, UsageError
from toolkit.model.base import to_json
from toolkit.planning.plan import decide
from toolkit.runs.logs import Line

GOLDEN = Path(__file__).parents[1] / "golden" / "bench"
OPTIONS = Options(target="jobs/digits-ddp", nodes=(1, 2, 4))


def point(nodes: int, mode: str = "weak") -> Point:
    return Point(mode=mode, launcher="", nodes=nodes, ntasks_per_node=0)  # type: ignore[arg-type]


def measured(
    nodes: int, *values: float, mode: str = "weak", **changes: object
) -> tuple[Sample, ...]:
    return tuple(
        replace(
            Sample(
                point=point(nodes, mode).key,
                number=number,
                name=f"scale-digits-ddp-{nodes:04d}",
                value=value,
                nodes=nodes,
                ranks_per_node=1,
                launcher="torchrun",
                cores=8,
                ended="2026-11-22T20:00:00+00:00",
            ),
            **changes,
        )
        for number, value in enumerate(values, 1)
    )


def study(*samples: tuple[Sample, ...], options: Options = OPTIONS, mode: str = "weak") -> Study:
    nodes = dict.fromkeys(entry.nodes for group in samples for entry in group)
    return Study(
        directory="scale/digits-ddp",
        options=options,
        points=tuple(point(number, mode) for number in nodes),
        samples=tuple(entry for group in samples for entry in group),
    )


# Without the first value, the rest has no deviation at all; with it, much.
@pytest.mark.parametrize(
    ("values", "dropped"),
    [
        ([1.0, 10.0, 10.0, 10.0, 10.0, 10.0], 1),
        ([1.0, 5.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0], 2),
        ([10.0] * 6, 0),
        ([1.0, 10.0, 10.0, 10.0], 0),  # too few to tell
        ([10.0, 10.0, 10.0, 10.0, 10.0, 1.0], 0),  # an end is not a beginning
    ],
)
def test_the_warm_up_is_dropped(values: list[float], dropped: int) -> None:
    assert statistics.warm_up(values) == dropped


def test_the_rule_is_the_least_squares_by_the_square_of_the_length() -> None:
    values = [4.0, 1.0, 2.0, 3.0, 2.0, 2.0]
    # From 0: mean 14/6, squares 38 - 196/6 = 5.333, / 36 = 0.148; from 1: 22 - 100/5 = 2, / 25 = 0.08;
    # from 2: 21 - 81/4 = 0.75, / 16 = 0.047; from 3: 17 - 49/3 = 0.667, / 9 = 0.074.
    assert statistics.warm_up(values) == 2


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 1e6), max_size=80))
def test_at_most_half_is_dropped(values: list[float]) -> None:
    assert statistics.warm_up(values) <= len(values) // 2


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('{"samples_per_second": 12.5, "loss": 1}', 12.5),
        ("epoch 3  samples_per_second 12.5", 12.5),
        ("samples_per_second=1e3,", 1000.0),
        ("samples_per_second: 12.", 12.0),
        ("total_samples_per_second 3", None),
        ("samples_per_second fast", None),
        ('{"samples_per_second": NaN}', None),
        ('{"samples_per_second": true}', None),
        ('{"samples_per_second": 1' + "0" * 400 + "}", None),
        ('{"samples_per_second": "12"}', None),
        ("samples_per_second 1.2.3", None),
        ("samples_per_second " + "9" * 20_000, None),
    ],
)
def test_the_metric_is_taken_from_json_or_text(line: str, value: float | None) -> None:
    assert measurement.printed_values([line], "samples_per_second") == (
        [] if value is None else [value]
    )


@settings(deadline=None)
@given(st.text(max_size=200), st.text(st.characters(codec="ascii"), min_size=1, max_size=20))
def test_no_line_and_no_key_breaks_the_reader(line: str, metric: str) -> None:
    assert all(map(math.isfinite, measurement.printed_values([line, metric + " 5"], metric)))


def test_a_spread_is_the_median_and_the_range() -> None:
    assert statistics.spread([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0, 3)
    assert statistics.spread([1.0, 2.0]).overlaps(statistics.spread([2.0, 3.0]))
    assert not statistics.spread([1.0, 2.0]).overlaps(statistics.spread([2.1, 3.0]))


# 3 against 3: 20 splits; the lowest three are one of them. 2 against 2: 6 splits.
@pytest.mark.parametrize(
    ("new", "old", "p"),
    [
        ([1, 2, 3], [4, 5, 6], 1 / 20),
        ([1, 2, 4], [3, 5, 6], 2 / 20),
        ([4, 5, 6], [1, 2, 3], 1.0),
        ([1, 2], [3, 4], 1 / 6),
        ([1, 1], [1, 1], 1.0),
        ([1], [2], 1 / 2),
    ],
)
def test_the_rank_test_counts_all_splits(new: list[float], old: list[float], p: float) -> None:
    assert statistics.p_lower(new, old) == pytest.approx(p)


def test_large_samples_are_tested_by_the_normal_distribution() -> None:
    new, old = [float(n) for n in range(20)], [float(n) + 8 for n in range(20)]
    # Rank sum of new: 0..7 have ranks 1..8 (36); 8..19 share 9.5, 11.5, ... 31.5 (246): 282; expected
    # 410, variance 400 / 12 * (41 - 12 * 6 / 1560) = 1365.13; z = (282 - 410 + 0.5) / 36.948 = -3.451.
    assert statistics.p_lower(new, old) == pytest.approx(0.000279, abs=2e-6)
    assert statistics.p_lower([1.0] * 20, [1.0] * 20) == 1.0


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"modes": ("strong", "weak")}, "--strong --weak"),
        ({"divide": {"batch-size": 64}}, "--divide"),
        ({"modes": ("strong",), "multiply": {"batch-size": 64}}, "--multiply"),
        ({"nodes": tuple(range(1, 202))}, "--nodes"),
    ],
)
def test_options_that_contradict_each_other(changes: dict[str, object], place: str) -> None:
    with pytest.raises(UsageError) as caught:
        replace(OPTIONS, **changes).points()
    assert caught.value.place == place


def test_arguments_follow_the_number_of_ranks() -> None:
    options = replace(OPTIONS, divide={"batch-size": 64}, multiply={"batch-size": 16})
    assert options.scaled_arguments("strong", 4) == ("--batch-size", "16")
    assert options.scaled_arguments("weak", 4) == ("--batch-size", "64")
    with pytest.raises(UsageError) as caught:
        options.scaled_arguments("strong", 3)
    assert "--divide batch-size=192" in str(caught.value.next_step)


def test_the_job_of_a_point_has_its_arguments_and_the_hook() -> None:
    options = replace(OPTIONS, divide={"batch-size": 64}, gradient_size=4096)
    given_inputs = adapted(options, point(2, "strong"), make_case({"env": {"PYTHONPATH": "/lib"}}))
    assert given_inputs.job.arguments[-2:] == ("--batch-size", "16")  # 2 nodes x 2 ranks
    directory = f"{given_inputs.run}/scale"
    assert given_inputs.job.env == {
        "PYTHONPATH": f"{directory}:/lib",
        "TOOLKIT_SCALE": directory,
        "TOOLKIT_SCALE_BYTES": "4096",
    }
    bare = adapted(replace(OPTIONS, hook=False), point(2), make_case())
    assert bare.job.env == {}


def rank_text(rank: int, ends: list[float], busy: list[float], *more: object) -> str:
    header = {"rank": rank, "host": f"nid00{rank + 1}", "began": 100.0}
    entries = [header, *([end, own] for end, own in zip(ends, busy, strict=True)), *more]
    return "".join(json.dumps(entry) + "\n" for entry in entries)


def test_the_steps_of_a_rank_are_read_up_to_where_it_was_killed() -> None:
    sums = {"allreduce": 0.002, "bytes": 4096, "backend": "gloo"}
    file = measurement.parse(rank_text(1, [103.0, 104.0], [0.5, 0.25], sums) + "[105.0, 0.")
    assert file is not None
    assert (file.rank, file.host, file.began) == (1, "nid002", 100.0)
    assert (file.ends, file.busy) == ((103.0, 104.0), (0.5, 0.25))
    assert file.communication == Communication(bytes=4096, seconds=0.002, backend="gloo")


@settings(deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_a_rank_file_or_none(content: str) -> None:
    measurement.parse(content)


@pytest.mark.parametrize(
    "content", ["", "[1, 2]", '{"rank": 0}', '{"rank": 0}\n[1, NaN]', "[" * 5000]
)
def test_a_file_without_header_or_steps_is_none(content: str) -> None:
    assert measurement.parse(content) is None


def test_start_warm_up_and_steps_of_ranks() -> None:
    # Steps of 3, 1, 1, 1, 1, 1 s after the first end: one is warm-up, 2 s longer than the others.
    ends = [105.0, 108.0, 109.0, 110.0, 111.0, 112.0, 113.0]
    files = [
        measurement.parse(rank_text(rank, ends, [own] * 7)) for rank, own in ((0, 0.25), (1, 0.5))
    ]
    line = measurement.timeline([file for file in files if file])
    seconds = ("start_seconds", "warm_up_seconds", "step_seconds")
    assert [line[name] for name in seconds] == [5.0, 2.0, 1.0]
    assert line["ranks"] == (
        RankTimes(rank=0, host="nid001", steps=5, step_seconds=1.0, busy_seconds=0.25),
        RankTimes(rank=1, host="nid002", steps=5, step_seconds=1.0, busy_seconds=0.5),
    )
    assert measurement.timeline([]) == {}


def times(*busy: float, step: float = 1.0) -> list[RankTimes]:
    return [
        RankTimes(
            rank=rank,
            host=f"nid{rank // 2 + 1:03d}",
            steps=10,
            step_seconds=step,
            busy_seconds=own,
        )
        for rank, own in enumerate(busy)
    ]


@pytest.mark.parametrize(
    ("busy", "ranks"),
    [
        ((0.3, 0.9), (1,)),
        ((0.3, 0.3, 0.9, 0.3), (2,)),
        ((0.3, 0.3, 0.9, 0.8), (2, 3)),  # both ranks of one node
        ((0.3, 0.31), None),
        ((0.3, 0.36), None),  # by 20 %
        ((0.001, 0.09), None),  # much more, but little of a step
        ((0.9,), None),
        ((0.1, 0.9, 0.9), None),  # most are slow: one is fast
        ((0.10, 0.30, 0.50, 0.70, 0.95), None),  # they all differ
        ((), None),
    ],
)
def test_the_straggler_is_the_rank_on_which_others_wait(
    busy: tuple[float, ...], ranks: tuple[int, ...] | None
) -> None:
    slow = measurement.straggler(times(*busy))
    assert (slow.ranks if slow else None) == ranks


def evidence(**changes: object) -> Evidence:
    defaults = Evidence(
        plan=decide(make_case()),
        results={"samples_per_second": 50.0, "epochs": 4, "seconds": 8.0, "parameters": 100},
        lines=(),
        name="scale-0001",
    )
    return defaults._replace(**changes)  # type: ignore[arg-type]


def test_a_sample_is_taken_from_the_lowest_rank() -> None:
    lines = [
        Line(f'{{"samples_per_second": {value}}}', "nid001", rank)
        for value in (1.0, 9.0, 9.0, 9.0, 9.0, 9.0)
        for rank in (1, 0)
    ]
    lines += [Line("samples_per_second 7", "", None)]  # of the batch shell
    taken = sample(OPTIONS, point(2), 1, evidence(lines=lines))
    assert (taken.value, taken.values, taken.warm_up) == (9.0, 6, 1)
    assert (taken.size, taken.epoch_seconds, taken.launcher) == (4, 2.0, "torchrun")
    assert taken.communication.bytes == 400
    assert taken.communication.seconds == 0
    assert not taken.oversubscribed


def test_ranks_without_pytorch_print_their_own_part_of_a_step() -> None:
    lines = [
        Line(json.dumps({"busy_seconds": own, "step_seconds": 1.0}), "nid001", rank)
        for rank, own in ((0, 0.25), (1, 0.75), (2, 0.25))
        for _ in range(6)
    ]
    taken = sample(OPTIONS, point(2), 1, evidence(lines=lines))
    assert taken.straggler == Straggler(
        ranks=(1,), hosts=("nid001",), busy_seconds=0.75, others_seconds=0.25
    )
    assert taken.step_seconds == 1.0


@pytest.mark.parametrize(
    ("boots", "cores", "total", "full"),
    [("xx", 2, 2, True), ("xy", 2, 4, False), ("xy", 1, 2, True), ("", 0, 0, False)],
)
def test_hosts_with_one_kernel_are_one_machine(
    boots: str, cores: int, total: int, full: bool
) -> None:
    """Of two ranks on each."""
    machines = {f"nid00{number}": (boot, cores) for number, boot in enumerate(boots)}
    taken = sample(OPTIONS, point(2), 1, evidence(machines=machines))
    assert (taken.cores, taken.oversubscribed) == (total, full)


@pytest.mark.parametrize("results", [{}, {"samples_per_second": 0.0}, {"images_per_second": 5.0}])
def test_a_metric_that_was_not_printed_is_named(results: dict[str, object]) -> None:
    with pytest.raises(MalformedInputError) as caught:
        sample(OPTIONS, point(2), 1, evidence(results=results))
    assert caught.value.place == "--metric samples_per_second"
    assert caught.value.close == ("images_per_second" if "images_per_second" in results else None)


def test_speed_up_and_efficiency_are_against_the_smallest_size() -> None:
    entry = report.series(
        study(
            measured(1, 90.0, 100.0, 110.0, epoch_seconds=36.0),
            measured(2, 150.0, 160.0, 170.0, step_seconds=0.1),
            measured(4, 200.0, 220.0, 240.0, oversubscribed=True),
        )
    )[0]
    one, two, four = entry.rows
    assert one.speedup == (1.0, 0.9, 1.1, 3)
    assert two.speedup == pytest.approx((1.6, 1.5, 1.7, 3))
    assert two.efficiency == pytest.approx((0.8, 0.75, 0.85, 3))
    assert (four.speedup, four.efficiency, four.counts) == (None, None, False)
    assert one.unit_hours == 0.01  # 36 s on one core
    assert two.unit_hours is None


def test_a_time_is_better_if_it_is_less() -> None:
    options = replace(OPTIONS, metric="epoch_seconds")
    _, two = report.series(study(measured(1, 10.0), measured(2, 4.0), options=options))[0].rows
    assert two.speedup is not None
    assert two.speedup.median == pytest.approx(2.5)


def test_a_straggler_of_one_run_of_three_is_chance() -> None:
    slow = Straggler(ranks=(1,), hosts=("nid002",), busy_seconds=0.2, others_seconds=0.1)
    samples = measured(2, 1.0, 1.0, 1.0)
    once = (replace(samples[0], straggler=slow), *samples[1:])
    twice = (*(replace(entry, straggler=slow) for entry in samples[:2]), samples[2])
    assert report.series(study(once))[0].rows[0].straggler is None
    assert report.series(study(twice))[0].rows[0].straggler == slow


def test_the_csv_is_whole_and_no_cell_is_a_formula() -> None:
    slow = Straggler(ranks=(1,), hosts=("=cmd()",), busy_seconds=0.2, others_seconds=0.1)
    sums = Communication(bytes=39_976, seconds=0.0005, backend="gloo")
    whole = study(
        measured(1, 90.0, 100.0, 110.0, epoch_seconds=36.0, step_seconds=0.01),
        measured(2, 150.0, 160.0, 170.0, straggler=slow, communication=sums, step_seconds=0.0125),
        measured(4, 200.0, 220.0, 240.0, oversubscribed=True, start_seconds=2.5),
    )
    written = report.as_csv(whole)
    path = GOLDEN / "scale.csv"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(written)
    assert written == path.read_text()
    assert ",=cmd()" not in written


def test_a_study_goes_on_where_it_was_and_refuses_another_one(tmp_path: Path) -> None:
    directory = StudyDirectory(tmp_path / "scale")
    origin = Origin(script_sha256="1", began="today")
    first = directory.begin(OPTIONS, origin, [point(1)])
    directory.keep(point(1), measured(1, 90.0)[0])
    more = replace(OPTIONS, nodes=(1, 8), runs=5)
    later = directory.begin(more, replace(origin, began="tomorrow"), [point(8)])
    assert later.origin == first.origin
    assert later.points == (point(1), point(8))
    assert directory.read_samples() == measured(1, 90.0)
    for options, other in (
        (replace(OPTIONS, metric="loss"), origin),
        (OPTIONS, replace(origin, script_sha256="2")),
    ):
        with pytest.raises(UsageError, match=r"metric|the script"):
            directory.begin(options, other, [point(1)])


def test_one_process_measures_a_study(tmp_path: Path) -> None:
    directory = StudyDirectory(tmp_path / "scale")
    with directory.lock(), pytest.raises(BusyError), StudyDirectory(tmp_path / "scale").lock():
        pass
    with directory.lock():
        pass


def test_a_study_that_others_can_write_to_is_not_taken_up(tmp_path: Path) -> None:
    """Its notes name runs, which are cancelled and removed if they measure something else."""
    tmp_path.chmod(0o777)
    with pytest.raises(UntrustedError), StudyDirectory(tmp_path).lock():
        pass
    assert not any(tmp_path.iterdir())


def test_a_report_is_read_and_anything_else_refused(tmp_path: Path) -> None:
    whole = study(measured(1, 90.0))
    (tmp_path / "report.json").write_text(to_json(whole))
    assert read_study(tmp_path) == whole
    assert read_study(tmp_path / "report.json") == whole
    (tmp_path / "report.json").write_text("{}")
    with pytest.raises(MalformedInputError):
        read_study(tmp_path)
    with pytest.raises(ConfigError):
        read_study(tmp_path / "none")
