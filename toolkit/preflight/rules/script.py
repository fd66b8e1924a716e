"""A script that can be read."""

from __future__ import annotations

from toolkit.errors import BindMissingError
from toolkit.preflight.model import Case, Finding


def look(case: Case) -> list[Finding]:
    path = case.seen.unreadable
    if not path:
        return []
    step = f"chmod u+r {path}, or ask its owner"
    return [
        Finding(
            BindMissingError(
                f"you may not read {path}, and the ranks are you", place="SCRIPT", next_step=step
            ),
            "looked here",
        )
    ]
