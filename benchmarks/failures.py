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
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import failing
from benchmarks.failing import Case

TOOLKIT = (sys.executable, "-m", "toolkit")
BAR = 0.98
RESULTS = "results.jsonl"  # one a line, as they come
_RUN_SECONDS = 300


def judge(case: Case, outcome: dict[str, Any], explained: dict[str, Any]) -> dict[str, Any]:
    """Compare the explanation of a run with the injected failure."""
    failure, match = outcome.get("failure") or {}, explained.get("match") or {}
    text = f"{explained.get('first', '')} {match.get('cause', '')}"
    cause = failing.KINDS[case.kind].expected in text
    rank = failure.get("rank") == case.rank or (
        case.launcher == "ray" and failure.get("rank") is None
    )
    if case.kind == "out-of-memory":  # Slurm may end all of a step that takes too much
        rank = rank or case.host in text
    return {
        "cause": cause,
        "rank": rank,
        "sure": match.get("sure", ""),
        "said": text[:400],
        "message": outcome.get("message", "")[:200],
    }


def run(case: Case, directory: Path) -> dict[str, Any]:
    """Run a case and return its result."""
    name = f"case{case.number:04}"
    (directory / f"{name}.py").write_text(failing.script(case))
    meeting, kind = failing.MEETINGS[case.launcher], failing.KINDS[case.kind]
    # A rank of mpi4py that fails keeps the others waiting until the time limit.
    limit = "1" if case.launcher in ("mpi", "mpirun") else "3"
    size = ("--nodes", str(failing.NODES), "--ntasks-per-node", str(failing.RANKS_PER_NODE))
    words = (
        *("run", "--image", meeting.image, "--launcher", case.launcher),
        *(*size, "--time", limit),
        *meeting.options,
        *kind.options,
        f"{name}.py",
    )
    began = time.monotonic()
    done = subprocess.run(
        (*TOOLKIT, *words),
        cwd=directory,
        text=True,
        capture_output=True,
        timeout=_RUN_SECONDS,
        check=False,
    )
    seconds = time.monotonic() - began
    runs = sorted(directory.glob(f"runs/{name}-*"))
    outcome = runs[-1] / "outcome.json" if runs else None
    if outcome is None or not outcome.is_file():
        return {
            "cause": False,
            "rank": False,
            "sure": "",
            "said": f"no outcome: {done.stderr[-400:]}",
            "seconds": seconds,
        }
    explained = subprocess.run(
        (*TOOLKIT, "explain", "--json", runs[-1].name),
        cwd=directory,
        text=True,
        capture_output=True,
        check=False,
    )
    parsed = json.loads(explained.stdout) if explained.stdout.startswith("{") else {}
    return {**judge(case, json.loads(outcome.read_text()), parsed), "seconds": seconds}


def table(results: Sequence[tuple[Case, dict[str, Any]]], key: Callable[[Case], str]) -> str:
    """Return the counts of right causes and ranks, by launcher or by kind."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for case, result in results:
        groups[key(case)].append(result)
    lines = [f"{'':18} {'runs':>5} {'cause':>6} {'rank':>6} {'both':>6}"]
    for name, group in [*sorted(groups.items()), ("all", [result for _, result in results])]:
        both = sum(result["cause"] and result["rank"] for result in group)
        counts = [sum(result[field] for result in group) for field in ("cause", "rank")]
        lines.append(f"{name:18} {len(group):5} {counts[0]:6} {counts[1]:6} {both:6}")
    return "\n".join(lines)


def wrongly_certain(results: Iterable[tuple[Case, dict[str, Any]]]) -> int:
    """Return how often something wrong was called certain."""
    return sum(
        result["sure"] == "certain" and not (result["cause"] and result["rank"])
        for _, result in results
    )


def known(path: Path, cases: Sequence[Case]) -> dict[int, dict[str, Any]]:
    """Return the results of these cases that an earlier bench has kept."""
    wanted = {case.number: case._asdict() for case in cases}
    rows: list[dict[str, Any]] = (
        [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    )
    return {
        row["case"]["number"]: row["result"]
        for row in rows
        if row["case"] == wanted.get(row["case"]["number"])
    }


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=300, help="cases (default: 300)")
    parser.add_argument(
        "--seed", type=int, default=20261122, help="of the draw (default: 20261122)"
    )
    parser.add_argument(
        "--launcher", action="append", choices=tuple(failing.MEETINGS), help="draw among these only"
    )
    parser.add_argument(
        "--kind", action="append", choices=tuple(failing.KINDS), help="draw among these only"
    )
    parser.add_argument(
        "--parallel", type=int, default=max(1, (os.cpu_count() or 2) // 8), help="cases at a time"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=0.0,
        help="begin no case after so many minutes; the next call goes on (default: no end)",
    )
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path.home() / ".cache" / "bench-failures",
        help="of scripts, runs and results",
    )
    return parser.parse_args()


def measure(
    cases: Sequence[Case], done: dict[int, dict[str, Any]], given: argparse.Namespace
) -> None:
    """Run the cases that are not done on a local cluster; print, keep and add each result."""
    end = time.monotonic() + given.minutes * 60 if given.minutes else float("inf")

    def run_case(case: Case) -> None:
        if case.number in done or time.monotonic() > end:
            return
        result = done[case.number] = run(case, given.directory)
        row = {"seed": given.seed, "case": case._asdict(), "result": result}
        with (given.directory / RESULTS).open("a") as file:
            file.write(json.dumps(row) + "\n")
        word = "right" if result["cause"] and result["rank"] else f"WRONG {result['sure']}"
        print(
            f"{word:14} {' '.join(map(str, case))}"
            + ("" if word == "right" else f": {result['said']}"),
            flush=True,
        )

    shape = ("--nodes", "2", "--cpus-per-node", "8", "--mem-per-node", "16G")
    up = ("cluster", "up", *shape, "--share", str(given.directory))
    subprocess.run((*TOOLKIT, *up), check=True)
    try:
        with ThreadPoolExecutor(given.parallel) as pool:
            list(pool.map(run_case, cases))
    finally:
        subprocess.run((*TOOLKIT, "cluster", "down"), check=False)


def has_held(results: Sequence[tuple[Case, dict[str, Any]]]) -> bool:
    """Print the counts, and return whether the bars hold."""
    print(
        f"\n{table(results, lambda case: case.launcher)}\n"
        f"\n{table(results, lambda case: case.kind)}\n"
    )
    right = sum(result["cause"] and result["rank"] for _, result in results)
    certain = wrongly_certain(results)
    held = bool(results) and right >= BAR * len(results) and not certain
    print(
        f"{right} of {len(results)} right, {certain} wrongly certain: "
        f"{'held' if held else 'MISSED'}"
    )
    return held


def main() -> int:
    """Run what is left of the cases, and print the counts; 1 if a bar is missed."""
    given = options()
    os.environ["TOOLKIT_CLUSTER"] = "benchf"
    given.directory.mkdir(parents=True, exist_ok=True)
    draw = (tuple(given.launcher or failing.MEETINGS), tuple(given.kind or failing.KINDS))
    cases = [failing.drawn(given.seed, number, *draw) for number in range(given.runs)]
    done = known(given.directory / RESULTS, cases)
    print(
        f"seed {given.seed}, {len(cases)} cases, "
        f"{sum(case.number in done for case in cases)} of them done before"
    )
    measure(cases, done, given)
    results = [(case, done[case.number]) for case in cases if case.number in done]
    return 0 if has_held(results) else 1


if __name__ == "__main__":
    sys.exit(main())
