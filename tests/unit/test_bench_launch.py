"""The launch benchmark's own logic: fair scripts by hand, the ratio of medians, its lines. What it measures is measured by running it."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks import launch, measure, venv
from tests.progress import Silent
from tests.unit.samples import MANIFEST
from toolkit import shell
from toolkit.errors import CommandFailedError, NeedsInstallError
from toolkit.images.store.store import StoredImage
from toolkit.model.image import Packages


def outcome(
    pairs: Sequence[tuple[float, float]], *, what: str = "launch by srun", bar: float = 1.05
) -> measure.Outcome:
    side = measure.Side(name="toolkit", argv=(), shown="")
    return measure.of_medians(
        measure.judge(measure.Comparison(what=what, ours=side, peer=side, bar=bar), pairs)
    )


def test_the_ratio_is_that_of_the_medians() -> None:
    # In one pair our side waited, in another the peer.
    found = outcome([(9.0, 3.0), (3.0, 3.0), (3.0, 9.0)])
    assert (found.ratio.median, found.ratio.smallest, found.ratio.largest) == (1.0, 3.0 / 9.0, 3.0)
    assert found.held
    assert not outcome([(3.2, 3.0)] * 3).held


def test_a_training_is_told_in_samples_by_second() -> None:
    found = outcome([(1 / 990, 1 / 1000)], what="training", bar=1 / launch.THROUGHPUT_BAR)
    row = launch._row(found)
    assert row[1].endswith("990.0 samples/s (990.0-990.0)")
    assert row[3:] == ("0.990 (0.990-0.990)", "at least 0.99", "held")
    assert (
        launch._row(outcome([(1 / 980, 1 / 1000)], what="training", bar=1 / launch.THROUGHPUT_BAR))[
            5
        ]
        == "missed"
    )
    assert launch._row(outcome([(2.0, 2.0)]))[3:] == ("1.000 (1.000-1.000)", "at most 1.05", "held")


@pytest.mark.parametrize("launcher", launch.LAUNCHERS)
def test_the_script_by_hand_enters_the_same_image_on_as_many_nodes(launcher: str) -> None:
    text = (launch.SCRIPTS / f"{launcher}.sbatch").read_text(encoding="utf-8")
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --cpus-per-task=1\n" in text
    assert re.search(r'^srun .*apptainer exec "\$1" ', text, re.MULTILINE)
    assert "OMP_NUM_THREADS=1" in text


@pytest.mark.parametrize("name", ["first.py", "throughput.py"])
def test_what_both_sides_run_ends_together(name: str) -> None:
    text = (launch.SCRIPTS / name).read_text(encoding="utf-8")
    ast.parse(text)
    assert 0 < text.rfind("dist.barrier()") < text.rfind("dist.destroy_process_group()")


def test_a_job_without_a_result_says_what_it_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def run(argv: Sequence[str | Path], **_: object) -> shell.Result:
        asked.append(str(argv[1]))
        return shell.Result((), 0, "7\n" if argv[1] == "sbatch" else "", "")

    monkeypatch.setattr(shell, "run", run)
    (tmp_path / "by-hand-7.log").write_text("no such image\n")
    setting = launch.Setting(tmp_path, ("nsenter",), "a.sif", {}, {})
    with pytest.raises(CommandFailedError) as caught:
        launch.seconds_to(
            setting, ("srun.sbatch",), "stamp", lambda text, began: float(text) - began
        )
    assert caught.value.details == ("no such image",)
    assert asked == ["sbatch", "squeue"]
    (tmp_path / "old").write_text("1")
    with pytest.raises(CommandFailedError):
        launch.seconds_to(setting, ("srun.sbatch",), "old", lambda text, began: float(text) - began)


def test_an_image_that_nobody_knows_has_no_twin_on_the_host(tmp_path: Path) -> None:
    with pytest.raises(NeedsInstallError):
        venv.made(tmp_path, StoredImage(name="a", path="/images/a.sif"), Silent())


def test_a_twin_that_is_there_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Packages(apt={"python3": "3.11.2-1+b1"}, pip={"torch": "2.13.0+cpu", "numpy": "2.4.6"})
    manifest = replace(MANIFEST, packages=held)
    directory = tmp_path / "pytorch_cpu-2.13.0+cpu"
    directory.mkdir()
    (directory / "installed.txt").write_text("3.11\ntorch==2.13.0+cpu\nnumpy==2.4.6\n")
    monkeypatch.setattr(shell, "run", lambda *_, **__: pytest.fail("nothing is installed again"))
    assert (
        venv.made(
            tmp_path, StoredImage(name="a", path="/images/a.sif", manifest=manifest), Silent()
        )
        == directory
    )
