"""Read and write evidence of real runs: JSON in ``tests/golden/explain``, without machine paths."""

from __future__ import annotations

import json
import re
from pathlib import Path

from toolkit.explain.gather import labelled
from toolkit.explain.model import Entry, Evidence

GOLDEN = Path(__file__).parent / "golden" / "explain"
FACTS = "state exit_code launcher nodes_down first_rank first_host first_text".split()


def pasted(text: str) -> tuple[Entry, ...]:
    """Return the lines of a log that a user has pasted."""
    return labelled(text.rstrip("\n").split("\n"))


def captured(kind: str) -> list[Path]:
    """Return the files of a kind: ``captured`` (the name begins with the rule) or ``healthy``."""
    return sorted((GOLDEN / kind).glob("*.json"))


def write(path: Path, evidence: Evidence, directory: Path, image: Path) -> None:
    """Write evidence to a golden file, without what names this machine."""
    shown = as_text(
        {name: getattr(evidence, name) for name in FACTS},
        [[entry.text, entry.host, entry.rank] for entry in evidence.entries],
    )
    shown = shown.replace(str(directory), "/scratch/user").replace(
        str(image), "/images/pytorch_cpu.sif"
    )
    shown = re.sub(r"/root/[\w./-]+", "/home/user", shown)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(shown)


def as_text(facts: dict[str, object], lines: list[list[object]]) -> str:
    """Return JSON with all facts in the first line and each line of the log in one of its own."""
    head = json.dumps(facts, ensure_ascii=False).removesuffix("}")
    rows = ",\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    return f'{head}, "lines": [\n{rows}\n]}}\n'
