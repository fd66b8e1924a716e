"""Evidence that was captured from real runs: kept under ``tests/golden/explain`` as JSON, paths of the machine replaced."""

from __future__ import annotations

import json
import re
from pathlib import Path

from toolkit.explain.model import Evidence

GOLDEN = Path(__file__).parent / "golden" / "explain"


def captured(kind: str) -> list[Path]:
    """Return the files of a kind: ``captured`` (failures; the file's name begins with the rule) or ``healthy``."""
    return sorted((GOLDEN / kind).glob("*.json"))


def write(path: Path, evidence: Evidence, directory: Path, image: Path) -> None:
    """Keep evidence for later, without what names this machine."""
    text = json.dumps({**evidence._asdict(), "entries": None}, indent=1, ensure_ascii=False)
    data = json.loads(text)
    del data["entries"]
    data["lines"] = [[entry.text, entry.host, entry.rank] for entry in evidence.entries]
    shown = json.dumps(data, indent=1, ensure_ascii=False)
    shown = shown.replace(str(directory), "/scratch/user").replace(
        str(image), "/images/pytorch_cpu.sif"
    )
    shown = re.sub(r"/root/[\w./-]+", "/home/user", shown)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(shown + "\n")
