"""The scaling study's own arithmetic, its reports, and what ranks record, with a stand-in of PyTorch's hooks."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from tests.hostile import HOSTILE, MULTILINE
from tests.unit.samples import make_case
from toolkit import errors
from toolkit.bench.jobs import HOOK
from toolkit.bench.scale import measurement, model, report, statistics
from toolkit.bench.scale.directory import StudyDirectory, read_study
from toolkit.bench.scale.measurement import RankFile, sample
from toolkit.bench.scale.model import Communication, Options, Point, Sample, Straggler, Study
from toolkit.bench.scale.study import adapted
from toolkit.cli.bench import _compare
from toolkit.config import package_directory
from toolkit.model.base import from_json, to_json
from toolkit.planning.plan import decide
from toolkit.runs.logs import Line

GOLDEN = Path(__file__).parents[1] / "golden" / "bench"
OPTIONS = Options(target="jobs/digits-ddp", nodes=(1, 2, 4))
SIZES = (1, 2, 4, 8)
ORIGIN = {"image digest": "622c", "script": "train.py", "commit": "7cd3501+", "site": "local"}
ORIGIN |= {"Slurm": "24.05.1", "began": "2026-11-22T20:00:00+00:00"}
KEY = "torchrun, weak, 2 x 1"
SUMS = Communication(bytes=39_976, seconds=0.0005, backend="gloo")
SLOW = Straggler(ranks=(1,), hosts=("nid002",), busy_seconds=0.2, others_seconds=0.1)


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
        # Squared deviations by the square of the length: from 0: 0.148, 1: 0.08, 2: 0.047, 3: 0.074.
        ([4.0, 1.0, 2.0, 3.0, 2.0, 2.0], 2),
        ([1.0, 10.0, 10.0, 10.0], 0),  # too few to tell
        ([10.0, 10.0, 10.0, 10.0, 10.0, 1.0], 0),  # an end is not a beginning
    ],
)
def test_the_warm_up_is_dropped(values, dropped):
    assert statistics.warm_up(values) == dropped


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('{"samples_per_second": 12.5, "loss": 1}', 12.5),
        ("epoch 3  samples_per_second 12.5", 12.5),
        ("samples_per_second: 12.", 12.0),
        ("total_samples_per_second 3", None),
        ('{"samples_per_second": NaN}', None),
        ('{"samples_per_second": true}', None),
        ('{"samples_per_second": 1' + "0" * 400 + "}", None),
        ("samples_per_second " + "9" * 20_000, None),
    ],
)
def test_the_metric_is_taken_from_json_or_text(line, value):
    assert measurement.printed_values([line], "samples_per_second") == (
        [] if value is None else [value]
    )


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"modes": ("strong", "weak")}, "--strong --weak"),
        ({"divide": {"batch-size": 64}}, "--divide"),
        ({"modes": ("strong",), "multiply": {"batch-size": 64}}, "--multiply"),
        # As a report of another user may have them: refused before they are combined.
        ({"nodes": tuple(range(10**6)), "ntasks_per_node": tuple(range(10**6))}, "--nodes"),
    ],
)
def test_options_that_contradict_each_other(changes, place):
    with pytest.raises(errors.UsageError) as caught:
        replace(OPTIONS, **changes).points()
    assert caught.value.place == place


def test_arguments_follow_the_number_of_ranks():
    options = replace(OPTIONS, divide={"batch-size": 64}, multiply={"batch-size": 16})
    assert options.scaled_arguments("strong", 4) == ("--batch-size", "16")
    assert options.scaled_arguments("weak", 4) == ("--batch-size", "64")
    with pytest.raises(errors.UsageError) as caught:
        options.scaled_arguments("strong", 3)
    assert "--divide batch-size=192" in str(caught.value.next_step)


def test_the_job_of_a_point_has_its_arguments_and_the_hook():
    options = replace(OPTIONS, divide={"batch-size": 64}, gradient_size=4096)
    case = adapted(options, point(2, "strong"), make_case())
    assert case.job.arguments[-2:] == ("--batch-size", "16")  # 2 nodes x 2 ranks
    assert case.job.env == {"TOOLKIT_SCALE": f"{case.run}/scale", "TOOLKIT_SCALE_BYTES": "4096"}


def rank_file(rank: int, ends: list[float], busy: float) -> measurement.RankFile:
    steps = tuple((end, busy) for end in ends)
    return measurement.RankFile(rank=rank, host=f"nid00{rank + 1}", began=100.0, steps=steps)


def test_the_steps_of_ranks_after_the_warm_up():
    # Steps of 3, 1, 1, 1, 1, 1 s after the first end: one is warm-up.
    ends = [105.0, 108.0, 109.0, 110.0, 111.0, 112.0, 113.0]
    files = [rank_file(0, ends, 0.25), rank_file(1, ends, 0.5)]
    line = measurement.timeline([rank_file(0, ends[:4], 9.0), *files, rank_file(2, ends[:3], 9.0)])
    assert (line["start_seconds"], line["step_seconds"]) == (5.0, 1.0)
    assert line["ranks"] == (
        model.RankTimes(rank=0, host="nid001", steps=5, step_seconds=1.0, busy_seconds=0.25),
        model.RankTimes(rank=1, host="nid002", steps=5, step_seconds=1.0, busy_seconds=0.5),
    )
    assert measurement.timeline([]) == {}


@pytest.mark.parametrize(
    ("busy", "ranks"),
    [
        ((0.3, 0.9), (1,)),
        ((0.3, 0.3, 0.9, 0.3), (2,)),
        ((0.3, 0.3, 0.9, 0.8), (2, 3)),  # both ranks of one node
        ((0.001, 0.09), None),  # much more, but little of a step
        ((0.1, 0.9, 0.9), None),  # most are slow: one is fast
        ((0.10, 0.30, 0.50, 0.70, 0.95), None),  # they all differ
        ((), None),
    ],
)
def test_the_straggler_is_the_rank_on_which_others_wait(busy, ranks):
    times = [
        model.RankTimes(rank=rank, host="nid001", steps=10, step_seconds=1.0, busy_seconds=own)
        for rank, own in enumerate(busy)
    ]
    slow = measurement.straggler(times)
    assert (slow.ranks if slow else None) == ranks


def taken_of(**changes: object) -> Sample:
    results = {"samples_per_second": 50.0, "epochs": 4, "seconds": 8.0}
    run: dict[str, Any] = {"plan": decide(make_case()), "results": results}
    run |= {"lines": (), "name": "scale-0001", **changes}
    return sample(OPTIONS, point(2), 1, **run)


def test_a_sample_is_taken_from_the_lowest_rank():
    lines = [
        Line(f'{{"samples_per_second": {value}}}', "nid001", rank)
        for value in (1.0, 9.0, 9.0, 9.0, 9.0, 9.0)
        for rank in (1, 0)
    ]
    lines += [Line("samples_per_second 7", "", None)]  # of the batch shell
    taken = taken_of(lines=lines)
    assert (taken.value, taken.values, taken.warm_up) == (9.0, 6, 1)
    assert (taken.size, taken.launcher, taken.communication) == (4, "torchrun", Communication())
    assert taken.epoch_seconds == 2.0
    assert not taken.oversubscribed


@pytest.mark.parametrize(
    ("hosts", "boots", "cores", "full"),
    [
        ("ab", "xx", 4, False),
        ("ab", "xx", 3, True),
        ("ab", "xy", 2, False),
        ("ab", "xy", 1, True),
        ("aaa", "xxx", 2, False),  # a rank that left two files
        ("ab", "xx", 0, False),
        ("", "", 4, False),  # of a local cluster, whose four ranks share this machine
        ("", "", 3, True),
    ],
)
def test_more_ranks_than_cores_of_a_machine_are_oversubscribed(hosts, boots, cores, full):
    files = [
        replace(rank_file(0, [], 0.0), host=host, boot=boot, cores=cores)
        for host, boot in zip(hosts, boots, strict=True)
    ]
    assert taken_of(files=files, **({} if hosts else {"cores": cores})).oversubscribed == full


@pytest.mark.parametrize("results", [{}, {"samples_per_second": 0.0}, {"images_per_second": 5.0}])
def test_a_metric_that_was_not_printed_is_named(results):
    with pytest.raises(errors.MalformedInputError) as caught:
        taken_of(results=results)
    assert caught.value.place == "--metric samples_per_second"
    assert caught.value.close == ("images_per_second" if "images_per_second" in results else None)


def test_speed_up_and_efficiency_are_against_the_smallest_size():
    whole = study(
        measured(1, 90.0, 100.0, 110.0, epoch_seconds=36.0),
        measured(2, 150.0, 160.0, 170.0, step_seconds=0.1),
        measured(4, 200.0, 220.0, 240.0, oversubscribed=True),
    )
    entry = report.series(whole)[0]
    one, two, four = entry.rows
    assert one.speedup == (1.0, 0.9, 1.1, 3)
    assert two.speedup == pytest.approx((1.6, 1.5, 1.7, 3))
    assert two.efficiency == pytest.approx((0.8, 0.75, 0.85, 3))
    assert (four.speedup, four.efficiency, four.counts) == (None, None, False)
    header, rows = report.table(whole, entry)
    assert [row[header.index("core h/epoch")] for row in rows] == ["0.01", "-", "-"]


@pytest.mark.parametrize("serial", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("mode", ["strong", "weak"])
def test_the_serial_fraction_is_found_in_exact_data(serial, mode):
    groups = []
    for size in SIZES:
        speedup = serial + (1 - serial) * size
        speedup = speedup if mode == "weak" else 1 / (serial + (1 - serial) / size)
        groups.append(measured(size, 50 * speedup, mode=mode))
    whole = study(*groups, mode=mode)
    header, rows = report.table(whole, report.series(whole)[0])
    assert [row[header.index("serial")] for row in rows] == ["-", *[f"{serial:.1%}"] * 3]


@pytest.mark.parametrize(
    ("first", "second", "options", "remark"),
    [
        ({}, {"oversubscribed": True}, OPTIONS, "2 nodes x 1 rank: oversubscribed, more ranks"),
        (
            {},
            {"oversubscribed": True},
            replace(OPTIONS, count_oversubscribed="they sleep"),
            "counted all the same, because: they sleep",
        ),
        ({}, {"straggler": SLOW}, OPTIONS, "straggler rank 1 on nid002: 200 ms of its own"),
        ({}, {}, OPTIONS, "1 node x 1 rank, 2 nodes x 1 rank: one run does not show the spread"),
    ],
)
def test_what_the_numbers_do_not_show_is_remarked(first, second, options, remark):
    whole = study(measured(1, 90.0, **first), measured(2, 95.0, **second), options=options)
    assert remark in "\n".join(report.remarks(report.series(whole)[0], whole))
    near = study(measured(1, 90.0, 92.0), measured(2, 91.5, 93.0))
    text = "1 node x 1 rank and 2 nodes x 1 rank: the difference is within the spread of the runs"
    assert text in list(report.remarks(report.series(near)[0], near))


def test_a_study_goes_on_where_it_was_and_refuses_another_one(tmp_path):
    directory = StudyDirectory(tmp_path / "scale")
    origin = {"script SHA-256": "1", "began": "today"}
    first = directory.begin(OPTIONS, origin, [point(1)])
    directory.keep(point(1), measured(1, 90.0)[0])
    more = replace(OPTIONS, nodes=(1, 8), runs=5)
    later = directory.begin(more, {**origin, "began": "tomorrow"}, [point(8)])
    assert later.origin == first.origin
    assert later.points == (point(1), point(8))
    assert directory.read_samples() == measured(1, 90.0)
    for options, other in (
        (replace(OPTIONS, metric="loss"), origin),
        (OPTIONS, {"script SHA-256": "2"}),
    ):
        with pytest.raises(errors.UsageError, match=r"metric|script"):
            directory.begin(options, other, [point(1)])


def test_a_study_is_measured_by_one_process_of_whom_its_directory_belongs_to(tmp_path):
    """Its notes name runs, which are cancelled and removed if they measure something else."""
    own = StudyDirectory(tmp_path / "own")
    with own.lock(), pytest.raises(errors.BusyError), own.lock():
        pass
    shutil.rmtree(tmp_path / "own")
    tmp_path.chmod(0o777)
    with pytest.raises(errors.UntrustedError), StudyDirectory(tmp_path).lock():
        pass
    assert not any(tmp_path.iterdir())


def test_a_report_is_read_and_anything_else_refused(tmp_path):
    whole = study(measured(1, 90.0))
    # One of an earlier version has figures that are not measured any more.
    (tmp_path / "report.json").write_text(
        to_json(whole).replace('"value": 90.0', '"value": 90.0, "cores": 8')
    )
    assert read_study(tmp_path) == whole
    assert read_study(tmp_path / "report.json") == whole
    for bad in ("{}", *(to_json(whole).replace("90.0", x) for x in ("0.0", "-1.0", "1e999"))):
        (tmp_path / "report.json").write_text(bad)
        with pytest.raises(errors.MalformedInputError):
            read_study(tmp_path)
    with pytest.raises(errors.ConfigError):
        read_study(tmp_path / "none")


def full() -> Study:
    """A study with everything that a report shows."""
    more = {"communication": SUMS, "step_seconds": 0.01, "straggler": SLOW}
    strong = [measured(size, 90.0 * size, 91.0 * size, mode="strong", **more) for size in SIZES]
    weak = [
        measured(size, 100.0 * size, 104.0 * size, oversubscribed=size > 2) for size in (1, 2, 4)
    ]
    options = replace(OPTIONS, modes=("strong", "weak"))
    one, two = study(*strong, options=options, mode="strong"), study(*weak)
    return replace(
        one, points=(*one.points, *two.points), samples=(*one.samples, *two.samples), origin=ORIGIN
    )


class Tags(HTMLParser):
    """The tags of a page, each with the names of its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: dict[str, set[str]] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.setdefault(tag, set()).update(name for name, _ in attrs)


OUTSIDE = {"src", "href", "srcset", "action", "data", "poster", "background"}
ACTIVE = {"b", "link", "iframe", "img", "object", "form", "script"}


def test_a_written_study_is_read_again(tmp_path):
    report.write_reports(full(), StudyDirectory(tmp_path))
    assert read_study(tmp_path) == full()


@pytest.mark.parametrize("value", [*HOSTILE, *MULTILINE, "</script><script>alert(1)</script>"])
def test_a_page_asks_for_nothing_outside_and_no_text_of_others_is_markup(value):
    hostile = f"<b onclick=x>{value}\u202e</b>"
    whole = full()
    texts = dict.fromkeys(("launcher", "name", "ended"), hostile)
    slow = replace(SLOW, hosts=(hostile,))
    samples = tuple(replace(sample, straggler=slow, **texts) for sample in whole.samples)
    options = replace(
        OPTIONS, target=hostile, metric=hostile, arguments=(hostile,), count_oversubscribed=hostile
    )
    origin = dict.fromkeys(ORIGIN, hostile)
    written = report.page(replace(whole, samples=samples, options=options, origin=origin))
    tags = Tags(written).tags
    assert not ACTIVE & {*tags}
    assert not OUTSIDE & {name for names in tags.values() for name in names}
    assert not [text for text in ("url(", "@import", "\u202e") if text in report.page(whole)]
    assert "\u202e" not in written
    for drawing in re.findall(r"<svg.*?</svg>", written, re.DOTALL):
        ElementTree.fromstring(drawing)


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ([100, 101, 102], [90, 91, 92], "slower"),
        ([100, 101, 102], [99, 98, 97], "no change"),  # by 3 %
        ([100, 101, 102], [90, 91, 101.5], "no change"),  # one run was as fast
        ([100, 101], [50, 51], "too few runs"),
    ],
)
def test_a_change_is_beyond_the_noise_or_not_one(old, new, verdict):
    assert statistics.change(KEY, old, new, 0.05, is_time=False).verdict == verdict


def test_a_time_is_better_if_it_is_less():
    entry = statistics.change(KEY, [1.0, 1.01, 1.02], [2.0, 2.02, 2.04], 0.05, is_time=True)
    assert (entry.verdict, entry.ratio, entry.new.median) == ("slower", 0.5, 2.02)
    options = replace(OPTIONS, metric="epoch_seconds")
    _, two = report.series(study(measured(1, 10.0), measured(2, 4.0), options=options))[0].rows
    assert two.speedup is not None
    assert two.speedup.median == pytest.approx(2.5)


def first() -> Study:
    return replace(
        study(measured(1, 90.0, 91.0, 92.0), measured(2, 180.0, 181.0, 182.0)), origin=ORIGIN
    )


def later(*factors: float) -> Study:
    slower = [measured(1, *(90.0 * factor for factor in factors)), measured(4, 400.0)]
    return replace(study(*slower), origin={**ORIGIN, "Slurm": "25.05", "began": "2026-12-01"})


def test_points_of_both_studies_are_compared_and_what_differs_is_named():
    changes = statistics.compare(first(), later(0.8, 0.81, 0.82))
    assert [(change.name, change.verdict) for change in changes] == [
        ("torchrun, weak, 1 x 1", "slower")
    ]
    assert statistics.differences(first(), later(1.0)) == ["Slurm: 24.05.1 -> 25.05"]
    other = replace(first(), options=replace(OPTIONS, arguments=("--batch-size", "8")))
    assert statistics.differences(first(), other) == ["the options of the job"]
    _, rows = statistics.table(changes)
    assert rows[0][1:] == ("91 (3)", "72.9 (3)", "-19.9%", "slower")


def test_studies_that_cannot_be_compared_are_refused():
    loss = replace(first(), options=replace(OPTIONS, metric="loss"))
    for other in (loss, study(measured(8, 1.0))):
        with pytest.raises(errors.UsageError):
            statistics.compare(first(), other)


def test_a_regression_has_an_exit_code_of_its_own(capsys):
    _compare(first(), first(), 0.05)
    with pytest.raises(errors.RegressionError) as caught:
        _compare(first(), later(0.8, 0.81, 0.82), 0.05)
    assert caught.value.exit_code == 98
    assert "slower by 19.9%: torchrun, weak, 1 x 1" in caught.value.cause
    _compare(first(), later(0.8, 0.81, 0.82), 0.5)
    assert "too few" not in capsys.readouterr().err
    _compare(first(), later(0.8), 0.05)
    assert "too few runs show no change" in capsys.readouterr().err


OPTIMIZER = """\
before, after = [], []
def register_optimizer_step_pre_hook(hook): before.append(hook)
def register_optimizer_step_post_hook(hook): after.append(hook)
class Parameter:
    requires_grad = True
    hooks = []
    def numel(self): return 1000
    def element_size(self): return 4
    def register_post_accumulate_grad_hook(self, hook): self.hooks.append(hook)
class Optimizer:
    def __init__(self): self.param_groups = [{"params": [Parameter()]}]
    def step(self):
        for hook in before: hook(self, (), {})
        for hook in after: hook(self, (), {})
"""
BACKWARD = """\
import time
def backward(parameter):
    time.sleep(0.1)
    for hook in parameter.hooks: hook(parameter)
    time.sleep(0.3)  # the rank waits for others
"""
SCRIPT = """\
import os, sys, time
import torch.autograd, torch.optim.optimizer
optimizer = torch.optim.optimizer.Optimizer()
for _ in range(4):
    time.sleep(0.05)
    torch.autograd.backward(optimizer.param_groups[0]["params"][0])
    optimizer.step()
print("ends", flush=True)
"""


def ran(tmp_path: Path, script: str, **more: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    """A script that has run as rank 3 with the hook, and the directory of its records."""
    for name, text in (("optim/optimizer.py", OPTIMIZER), ("autograd/__init__.py", BACKWARD)):
        path = tmp_path / "lib" / "torch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for package in ("torch", "torch/optim"):
        (tmp_path / "lib" / package / "__init__.py").touch()
    records = tmp_path / "scale"
    records.mkdir()
    for hook in (HOOK, package_directory("scripts") / "report" / "sitecustomize.py"):
        (records / hook.name).write_bytes(hook.read_bytes())
    (tmp_path / "train.py").write_text(script)
    env = {
        "PYTHONPATH": f"{records}:{tmp_path / 'lib'}",
        "TOOLKIT_SCALE": str(records),
        "RANK": "3",
    }
    words = [sys.executable, str(tmp_path / "train.py")]
    done = subprocess.run(words, env=env | more, check=False, capture_output=True, text=True)
    return done, records


def test_a_rank_that_records_no_step_tells_its_machine(tmp_path):
    (path,) = ran(tmp_path, "")[1].glob("*.json")
    file = from_json(path.read_text(), RankFile)
    assert (file.rank, file.steps) == (3, ())
    assert file.cores >= 1


@pytest.mark.parametrize("ending", ["", "sys.exit(0)", "os._exit(0)", "raise ValueError"])
def test_the_steps_of_a_rank_are_recorded_however_it_ends(tmp_path, ending):
    done, records = ran(tmp_path, SCRIPT + ending)
    assert done.stdout == "ends\n"
    assert done.returncode == (1 if "raise" in ending else 0), done.stderr
    (path,) = records.glob("*.json")
    file = from_json(path.read_text(), RankFile)
    assert (file.rank, len(file.steps)) == (3, 4)
    assert file.boot
    assert file.cores >= 1
    # The first step has no hook at its parameters yet; the others have 0.15 s of their own of 0.45.
    for (before, _), (after, own) in pairwise(file.steps):
        assert 0.15 <= own < after - before - 0.25
