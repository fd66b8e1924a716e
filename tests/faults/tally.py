"""The table of injected faults: what was tried how often, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

TABLE = Path(__file__).parent.parent.parent / "docs" / "faults.md"
_HEAD = """# Injected faults

What happens to a run, or to an image, when something fails at the worst moment. Each row is a test that makes the fault on a real local
cluster; `make test-faults` runs them all and writes this table. A trial is right if Slurm has exactly one job of the run (of a build: no
half image, and nothing outside its directories), the run has the right verdict, and the message says what to do.

| Fault | Trials | Doubled jobs | Lost runs | Half images or files outside | Wrong verdicts |
|---|---:|---:|---:|---:|---:|
"""


@dataclass
class Row:
    """Trials of one fault, and how many went wrong in which way."""

    fault: str
    trials: int = 0
    doubled: int = 0
    lost: int = 0
    outside: int = 0
    wrong: int = 0

    @property
    def failures(self) -> int:
        """Everything that went wrong."""
        return self.doubled + self.lost + self.outside + self.wrong

    def cells(self) -> tuple[object, ...]:
        """Return the row of the table."""
        return (self.fault, self.trials, self.doubled, self.lost, self.outside, self.wrong)


@dataclass
class Tally:
    """All rows, in the order of their first trial."""

    rows: dict[str, Row] = field(default_factory=dict)

    def of(self, fault: str) -> Row:
        """Return the row of a fault."""
        return self.rows.setdefault(fault, Row(fault))

    def markdown(self) -> str:
        """Return the page of the documentation."""
        rows = [row.cells() for row in self.rows.values()]
        sums = [sum(int(str(row[column])) for row in rows) for column in range(1, 6)]
        return _HEAD + "".join(
            f"| {' | '.join(map(str, row))} |\n" for row in [*rows, ("**all**", *sums)]
        )
