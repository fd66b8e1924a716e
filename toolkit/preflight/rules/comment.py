"""What a site wants in ``--comment``."""

from __future__ import annotations

from toolkit.errors import UsageError
from toolkit.preflight.model import Case, Finding
from toolkit.sites.comment import form, problem


def look(case: Case) -> list[Finding]:
    rule = case.site.comment
    wrong = problem(rule, case.job.comment) if rule else None
    if rule is None or wrong is None:
        return []
    source = ", ".join(filter(None, (rule.source or case.source, rule.date)))
    return [
        Finding(
            UsageError(
                wrong, place="--comment", next_step=f'--comment "{rule.example or form(rule)}"'
            ),
            source,
        )
    ]
