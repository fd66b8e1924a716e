"""Modules that a site is known to have, where somebody wrote them down."""

from __future__ import annotations

from toolkit.errors import UsageError
from toolkit.preflight.model import Case, Finding


def look(case: Case) -> list[Finding]:
    known = case.site.available_modules
    held = {*known, *case.site.modules}
    held |= {name.partition("/")[0] for name in held}
    return [
        Finding(
            UsageError(
                f"site {case.site.name} is not known to have the module {name}",
                place="--module",
                choices=known,
                value=name,
                next_step="module avail shows what there is",
            ),
            case.source,
        )
        for name in case.job.modules
        if known and name not in held
    ]
