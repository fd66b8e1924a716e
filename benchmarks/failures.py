"""Measure how often the first failing rank and its cause are named: `make bench-failures`.

Cases are drawn at random from (launcher x kind x rank x moment x what the others do x style of the
script), run on a local cluster, and explained. Results are kept as they come, so that a bench that
was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import failing, runner
from benchmarks.failing import Case

BAR = 0.98
_PLACE = Path.home() / ".cache" / "bench-failures"
_SIZE = ("--nodes", str(failing.NODES), "--ntasks-per-node", str(failing.RANKS_PER_NODE))


def judge(case: Case, outcome: dict[str, Any], explained: dict[str, Any]) -> dict[str, Any]:
    """Compare the explanation of a run with the injected failure."""
    rank, match = (outcome.get("failure") or {}).get("rank"), explained.get("match") or {}
    text = f"{explained.get('first', '')} {match.get('cause', '')}"
    right = rank == case.rank or (case.launcher == "ray" and rank is None)
    if case.kind == "out-of-memory":  # Slurm may end all of a step that takes too much
        right = right or f"nid{case.rank // failing.RANKS_PER_NODE + 1:03}" in text
    cause = failing.KINDS[case.kind].expected in text
    return {"cause": cause, "rank": right, "sure": match.get("sure", ""), "text": text[:400]}


def run(case: Case, directory: Path) -> dict[str, Any]:
    """Run a case and return its result."""
    name = f"case{case.number:04}"
    (directory / f"{name}.py").write_text(failing.script(case))
    meeting, kind = failing.MEETINGS[case.launcher], failing.KINDS[case.kind]
    # A rank of mpi4py that fails keeps the others waiting until the time limit.
    limit = "1" if case.launcher in ("mpi", "mpirun") else "3"
    words: tuple[str, ...]
    words = ("--image", meeting.image, "--launcher", case.launcher, *_SIZE, "--time", limit)
    words += (*meeting.options, *kind.options, f"{name}.py")
    done = subprocess.run(
        (*runner.TOOLKIT, "run", *words),
        cwd=directory,
        capture_output=True,
        timeout=300,
        check=False,
    )
    runs = sorted(directory.glob(f"runs/{name}-*"))
    outcome = runs[-1] / "outcome.json" if runs else None
    if outcome is None or not outcome.is_file():
        text = f"no outcome: {done.stderr.decode(errors='replace')[-400:]}"
        return {"cause": False, "rank": False, "sure": "", "text": text}
    argv = (*runner.TOOLKIT, "explain", "--json", runs[-1].name)
    explained = subprocess.run(argv, cwd=directory, capture_output=True, check=False).stdout
    parsed = json.loads(explained) if explained.startswith(b"{") else {}
    return judge(case, json.loads(outcome.read_text()), parsed)


def known(path: Path, cases: Sequence[Case]) -> dict[int, dict[str, Any]]:
    """Return the results of these cases that an earlier bench has kept, one a line."""
    wanted = {case.number: list(case) for case in cases}
    text = path.read_text() if path.is_file() else ""
    rows = [json.loads(line) for line in text.splitlines()]
    return {row[0][0]: row[1] for row in rows if row[0] == wanted.get(row[0][0])}


def measure(cases: Sequence[Case]) -> dict[int, dict[str, Any]]:
    """Run the cases that are not done on a local cluster; print and keep each result."""
    results = _PLACE / "results.jsonl"
    done = known(results, cases)
    waiting = [case for case in cases if case.number not in done]

    def run_case(case: Case) -> None:
        result = done[case.number] = run(case, _PLACE)
        with results.open("a") as file:
            file.write(json.dumps([case, result]) + "\n")
        right = result["cause"] and result["rank"]
        word = "right" if right else f"WRONG {result['sure']}: {result['text']}:"
        print(word, *case, flush=True)

    shape = ("--nodes", "2", "--cpus-per-node", "8", "--mem-per-node", "16G")
    with (
        runner.cluster(_PLACE, *shape, "--share", str(_PLACE)),
        ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 8)) as pool,
    ):
        list(pool.map(run_case, waiting))
    return done


def main() -> int:
    """Run what is left of the cases, and print the count; 1 if the bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=300, help="cases (default: 300)")
    parser.add_argument("--seed", type=int, default=20261122, help="of the draw")
    given = parser.parse_args()
    _PLACE.mkdir(parents=True, exist_ok=True)
    cases = [failing.drawn(given.seed, number) for number in range(given.runs)]
    results = measure(cases).values()
    wrong = [result for result in results if not (result["cause"] and result["rank"])]
    certain = sum(result["sure"] == "certain" for result in wrong)
    held = len(wrong) <= (1 - BAR) * len(results) and not certain
    text = f"{len(results) - len(wrong)} of {len(results)}, {certain} wrongly certain"
    return runner.report([runner.Row("cause and rank are right", text, "", f"{BAR:.0%}, 0", held)])


if __name__ == "__main__":
    sys.exit(main())
