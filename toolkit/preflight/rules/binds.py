"""Sources of ``--bind`` are there."""

from __future__ import annotations

from toolkit.errors import BindMissingError
from toolkit.preflight.model import Case, Finding


def look(case: Case) -> list[Finding]:
    found = []
    for missing in case.seen.binds:
        step = (
            f"apt-get install {missing.package} (Debian's package of it), or --bind a copy of yours"
            if missing.package
            else None
        )
        error = BindMissingError(
            f"{missing.path} is not there",
            place="--bind",
            choices=missing.near,
            value=missing.path,
            next_step=step,
        )
        found.append(Finding(error, "looked here"))
    return found
