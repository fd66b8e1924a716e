"""Measure the code itself: `make house` prints sizes, functions, layers and words per room."""

from __future__ import annotations

import ast
import statistics
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from benchmarks import layers
from tests.unit import test_english

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "toolkit"
LONG_FILE, SHORT_MODULE = 300, 25

# The files that each kind of addition takes, and the page or test that shows it.
ADDITIONS = (
    ("recipe", "recipes/NAME.toml; then `toolkit image render`", "CONTRIBUTING.md"),
    ("exercise", "jobs/NAME/{job.toml,train.py,README.md}", "CONTRIBUTING.md"),
    ("site", "toolkit/sites/NAME.toml", "CONTRIBUTING.md"),
    ("rule of explain", "toolkit/explain/rules/NAME.toml", "CONTRIBUTING.md"),
    ("launcher", "its module, its row and its template", "docs/contributing/adding-a-launcher.md"),
    ("runtime", "its module, its row and its template", "docs/contributing/adding-a-runtime.md"),
    ("lint rule", "its module", "CONTRIBUTING.md"),
    ("rule of jobs", "a generator in toolkit/rules/ and its line in RULES", "CONTRIBUTING.md"),
    ("doctor item", "its module", "CONTRIBUTING.md"),
    ("Slurm option", "none: --slurm NAME=VALUE passes it through", "docs/running.md"),
)


def modules() -> list[Path]:
    """Return the modules of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    """Return the room of a module; `toolkit` for the modules at its top."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    if len(parts) == 1:
        return "toolkit"
    return f"images.{parts[1]}" if parts[0] == "images" and len(parts) > 2 else parts[0]


def sizes() -> list[tuple[str, int, int, int]]:
    """Return room, modules, statements and lines, the largest room first."""
    counts: dict[str, Counter[str]] = {}
    for path in modules():
        text = path.read_text(encoding="utf-8")
        statements = sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(text)))
        counts.setdefault(room_of(path), Counter()).update(
            modules=1, statements=statements, lines=text.count("\n")
        )
    rows = [
        (room, count["modules"], count["statements"], count["lines"])
        for room, count in counts.items()
    ]
    return sorted(rows, key=lambda row: -row[2])


def functions() -> list[tuple[int, str]]:
    """Return the length in lines and the place of each function, the longest first."""
    lengths = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                lengths.append((length, f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"))
    return sorted(lengths, reverse=True)


def section(title: str, lines: Iterable[str]) -> None:
    """Print a title and indented lines."""
    print(title)
    for line in lines:
        print(f"  {line}")


def main() -> int:
    """Print all figures."""
    rows = sizes()
    print(f"{'room':20}{'modules':>8}{'statements':>12}{'lines':>8}")
    total = (
        "all",
        sum(row[1] for row in rows),
        sum(row[2] for row in rows),
        sum(row[3] for row in rows),
    )
    for room, count, statements, lines in [*rows, total]:
        print(f"{room:20}{count:8}{statements:12}{lines:8}")

    lengths = functions()
    values = sorted(length for length, _ in lengths)
    median, ninth = statistics.median(values), values[int(len(values) * 0.9)]
    print(f"functions            {len(values)}: median {median:g} lines, p90 {ninth}")
    section("longest functions", (f"{length:4} {place}" for length, place in lengths[:5]))

    sizes_of = {path: path.read_text(encoding="utf-8").count("\n") for path in modules()}
    long_files = sorted(((count, path) for path, count in sizes_of.items() if count > LONG_FILE))
    section(
        f"files over {LONG_FILE} lines: {len(long_files)}",
        (f"{count:4} {path.relative_to(ROOT)}" for count, path in reversed(long_files)),
    )
    print(f"modules under {SHORT_MODULE} lines: {sum(n < SHORT_MODULE for n in sizes_of.values())}")

    rising = layers.upward(layers.edges(layers.graph()))
    section(
        f"imports that run upward: {sum(rising.values())}",
        (f"{importer} -> {imported}: {count}" for (importer, imported), count in rising.items()),
    )
    words = Counter(
        room_of(ROOT / finding.split(":")[0])
        for finding in test_english.all_findings(test_english.modules())
        if finding.startswith("toolkit/")
    )
    section(
        f"words of the list: {words.total()}", (f"{n:4} {room}" for room, n in words.most_common())
    )
    section("to add a ...", (f"{kind:16} {files}  ({page})" for kind, files, page in ADDITIONS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
