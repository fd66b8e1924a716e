"""The benchmark's own logic: turns, ratios, the verdict, and its commands. What it measures is measured by running it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import cli, comparisons, measure, peers
from benchmarks.cli import NAMES, command
from benchmarks.measure import Comparison, Outcome, Side
from tests.progress import Silent
from toolkit import shell
from toolkit.errors import CommandFailedError
from toolkit.images.sif import header as sif

SETTING = comparisons.Setting(
    toolkit=("/bin/toolkit",), prefix=("nsenter", "--"), image="/images/a b.sif"
)


def comparison(bar: float = 0.6) -> Comparison:
    return Comparison(
        what="plan",
        ours=Side(name="toolkit 0.1.0", argv=("a",), shown="a"),
        peer=Side(name="peer 1.0", argv=("b",), shown="b"),
        bar=bar,
    )


def test_sides_take_turns_and_the_warm_up_is_thrown_away() -> None:
    said: list[str] = []
    clock: Iterator[float] = iter(range(100))

    def side(name: str) -> float:
        said.append(name)
        return next(clock)

    pairs = measure.alternate(lambda: side("a"), lambda: side("b"), runs=2, warm_ups=1)
    assert said == ["a", "b"] * 3
    assert pairs == [(2, 3), (4, 5)]


def test_the_median_of_the_ratios_of_neighbours_decides() -> None:
    # The third pair ran in a slow moment of the machine: both sides took ten times as long, their
    # ratio is as ever.
    outcome = measure.judge(comparison(bar=0.5), [(1.0, 2.0), (1.2, 2.0), (10.0, 20.0)])
    assert (outcome.ratio.median, outcome.ratio.smallest, outcome.ratio.largest) == (0.5, 0.5, 0.6)
    assert (outcome.ours.median, outcome.peer.largest, outcome.runs) == (1.2, 20.0, 3)


@pytest.mark.parametrize(("ours", "held"), [(0.59, True), (0.6, True), (0.61, False)])
def test_a_bar_is_held_up_to_and_including_it(ours: float, held: bool) -> None:
    assert measure.judge(comparison(bar=0.6), [(ours, 1.0)]).held is held


def test_a_command_that_fails_is_not_measured(tmp_path: Path) -> None:
    with pytest.raises(CommandFailedError):
        measure.seconds(["false"], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"})


def test_seconds_is_the_time_of_the_whole_process(tmp_path: Path) -> None:
    assert measure.seconds(["sleep", "0.1"], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}) >= 0.1


@pytest.mark.parametrize("name", NAMES)
def test_both_sides_run_at_the_same_place(name: str) -> None:
    compared = comparisons.COMPARISONS[name](SETTING)
    on_cluster = name in comparisons.NEED_CLUSTER
    assert (compared.ours.argv[:2] == SETTING.prefix) is on_cluster
    assert (compared.peer.argv[:2] == SETTING.prefix) is on_cluster
    assert "/bin/toolkit" in compared.ours.argv
    assert compared.ours.shown.startswith("toolkit ")


def test_the_command_line_offers_every_comparison() -> None:
    assert tuple(comparisons.COMPARISONS) == NAMES


def test_the_stand_in_is_an_image_for_our_own_reader() -> None:
    data = comparisons.stand_in()
    header = sif.parse_header(data)
    assert header is not None
    assert header.end == len(data) == sif.HEADER_SIZE


def test_the_files_of_both_sides_are_written(tmp_path: Path) -> None:
    comparisons.prepare(tmp_path)
    compile((tmp_path / "submit.py").read_text(encoding="utf-8"), "submit.py", "exec")
    compile((tmp_path / "recipe.py").read_text(encoding="utf-8"), "recipe.py", "exec")
    assert "torch.distributed" in (tmp_path / "train.py").read_text(encoding="utf-8")


def test_both_sides_have_byte_code_and_no_settings_of_the_shell() -> None:
    given = {
        "PATH": "/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TOOLKIT_NODES": "4",
        "TOOLKIT_IMAGES": "/images",
    }
    assert measure.environment(given, Path("/cache")) == {
        "PATH": "/bin",
        "TOOLKIT_IMAGES": "/images",
        "PYTHONPYCACHEPREFIX": "/cache",
    }


def test_peers_are_installed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Sequence[str | Path]] = []

    def run(argv: Sequence[str | Path], **_: object) -> shell.Result:
        ran.append(argv)
        return shell.Result((), 0, "", "")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shell, "run", run)
    peers.install(Silent())
    peers.install(Silent())
    assert [str(argv[1]) for argv in ran] == ["-m", "install"]
    assert "torchx==0.7.0" in ran[1]
    (tmp_path / "toolkit" / "bench" / "peers" / "installed.txt").write_text(
        "torchx==0.6.0\n", encoding="utf-8"
    )
    peers.install(Silent())
    assert len(ran) == 4


def outcomes(held: bool) -> list[Outcome]:
    return [measure.judge(comparison(bar=0.6 if held else 0.4), [(0.21, 0.42), (0.20, 0.40)])]


@pytest.mark.parametrize(("held", "code", "verdict"), [(True, 0, "held"), (False, 1, "missed")])
def test_a_missed_bar_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, held: bool, code: int, verdict: str
) -> None:
    monkeypatch.setattr(cli, "run", lambda *_: outcomes(held))
    result = CliRunner().invoke(command, [])
    assert result.exit_code == code
    row = result.output.splitlines()[1]
    assert row.split("  ")[0] == "plan"
    assert row.endswith(verdict)
    assert "peer 1.0: 410 ms (400-420)" in row


def test_json_has_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "run", lambda *_: outcomes(True))
    (row,) = json.loads(CliRunner().invoke(command, ["--json"]).output)
    assert row["ratio"] == {"median": 0.5, "smallest": 0.5, "largest": 0.5}
    assert (row["held"], row["bar"], row["peer_name"]) == (True, 0.6, "peer 1.0")
