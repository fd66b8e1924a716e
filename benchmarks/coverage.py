"""Run our command for each manual step of published guides: `make test-jobs`.

The rows are in ``jobs/coverage.toml``, what was measured in ``jobs/measured.json``; the table of
docs/guides.md is made of both. A command counts if it exits with 0 and its output matches.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from benchmarks import runner
from toolkit.config import shipped
from toolkit.files import write_atomically
from toolkit.model.base import toml

_LONG = re.compile(r"(\.\d{4})\d+")  # digits that no reader wants
_MEASURED = shipped("jobs") / "measured.json"


def read() -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the rows of all guides, and what was measured, by command.

    A row has the ``step`` of a guide, what it asks people to type (``by_hand``), and our
    ``command``. ``expect`` is a regular expression that the command's output has to match; its
    named groups are the result that the table shows, a group ``a_b`` as "a b". ``before`` has
    commands that run first. With ``own_test`` another test runs it.
    """
    text = (shipped("jobs") / "coverage.toml").read_text(encoding="utf-8")
    guides: Any = toml(text)["guides"]
    rows = [row for guide in guides for row in guide["rows"]]
    known = json.loads(_MEASURED.read_text(encoding="utf-8")) if _MEASURED.exists() else {}
    return rows, known.get("commands", {})


def table(rows: Iterable[dict[str, Any]], measured: dict[str, dict[str, Any]]) -> str:
    """Return the rows of a table in Markdown, one for each step."""
    return "".join(f"| {' | '.join(_cells(row, measured))} |\n" for row in rows)


def _cells(row: dict[str, Any], measured: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    when, output = ("its test" if row.get("own_test") else "not yet"), ""
    if known := measured.get(row["command"]):
        when = f"{known['seconds']:.0f} s, {known.get('when', '')}"
        values = known.get("result", {}).items()
        words = (value if name == "said" else f"{name} {value}" for name, value in values)
        output = _LONG.sub(r"\1", ", ".join(words)) or "done"
    command = f"`{row.get('program', 'toolkit')} {row['command']}`".replace("|", r"\|")
    return command, row["step"], row["by_hand"].replace("|", r"\|"), when, output


def run(row: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Run a row's commands; return the result, and why it is not accepted (empty if it is)."""
    for words in (*row.get("before", ()), row["command"]):
        began = time.monotonic()
        done = subprocess.run(
            (*runner.TOOLKIT, *shlex.split(words)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=1800,
        )
        if done.returncode != 0:
            return {}, f"{words}: exit code {done.returncode}: {done.stdout[-1500:]}"
    seconds = round(time.monotonic() - began, 1)
    match = re.search(row.get("expect", ""), done.stdout, re.MULTILINE | re.DOTALL)
    if match is None:
        return {}, f"its output does not match {row['expect']}: {done.stdout[-1500:]}"
    groups = match.groupdict().items()
    result = {name.replace("_", " "): value for name, value in groups if value is not None}
    today = datetime.now(timezone.utc).date().isoformat()
    return {"seconds": seconds, "result": result, "when": today}, ""


def main() -> int:
    """Run the commands and keep their results; return 1 if one fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("patterns", nargs="*", help="only commands that contain one of these")
    patterns = parser.parse_args().patterns or [""]
    every, known = read()
    rows = {row["command"]: row for row in every if not row.get("own_test")}
    chosen = [name for name in rows if any(part in name for part in patterns)]
    failed = 0
    with runner.cluster(shipped("jobs"), "--nodes", "2", "--gpus-per-node", "4"):
        for name in chosen:
            result, wrong = run(rows[name])
            # A success of the past is no result of a command that fails now.
            known = {old: value for old, value in known.items() if old in rows and old != name}
            if not wrong:
                known[name] = result
            # After each, so that nothing is lost when a later one is stopped.
            write_atomically(_MEASURED, json.dumps({"commands": known}, indent=2) + "\n")
            print(f"{name}: {wrong or 'done'}", flush=True)
            failed += bool(wrong)
    print(f"{failed} of {len(chosen)} commands failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
