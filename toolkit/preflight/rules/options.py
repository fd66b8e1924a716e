"""Options of sbatch that a site requires or forbids."""

from __future__ import annotations

from toolkit.errors import UsageError
from toolkit.preflight.model import Case, Finding


def look(case: Case) -> list[Finding]:
    job, site = case.job, case.site
    given = {
        name
        for name in (*site.forbidden, *site.required)
        if getattr(job, name.replace("-", "_"), None) is not None
    }
    found = []
    for name, rule in site.forbidden.items():
        if name in given:
            cause = f"site {site.name} does not take it: {rule.why}"
            found.append(
                Finding(
                    UsageError(
                        cause, place=f"--{name}", next_step=rule.instead or f"leave --{name} out"
                    ),
                    rule.source,
                )
            )
    for name, rule in site.required.items():
        if name not in given and hasattr(job, name.replace("-", "_")):
            error = UsageError(
                f"site {site.name} wants it: {rule.why}",
                place=f"--{name}",
                next_step=rule.instead or None,
            )
            found.append(Finding(error, rule.source))
    return found
