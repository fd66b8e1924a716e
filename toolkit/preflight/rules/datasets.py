"""Data sets that the site is said to keep are there."""

from __future__ import annotations

from toolkit.errors import BindMissingError
from toolkit.preflight.model import Case, Finding


def look(case: Case) -> list[Finding]:
    return [
        Finding(
            BindMissingError(
                f"{name} should be in {path}, and is not there",
                place="datasets",
                next_step=f"--bind YOUR-COPY:/data/{name}:ro, or mend [datasets] of site {case.site.name}",
            ),
            case.source,
        )
        for name, path in case.seen.datasets.items()
    ]
