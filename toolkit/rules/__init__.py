"""Rules that a job must keep before it is submitted. Pure.

A rule is a generator of findings over a case: errors that stop the job, or warnings. Each module
lists its own. All rules are asked, so that a user can fix everything at once.
"""

from __future__ import annotations

from typing import NamedTuple

from toolkit.errors import ToolkitError
from toolkit.model.case import Case
from toolkit.model.plan import Forced
from toolkit.rules import files, image, options, partition

# In the order in which findings are shown. ``--force`` with a reason lets a job pass that a rule
# would have stopped: tables of sites change, and a person may know better.
RULES = (
    *partition.RULES,
    *options.RULES,
    *files.RULES,
    *image.RULES,
)


class Judgement(NamedTuple):
    """The judgement of all rules.

    Attributes:
        errors: what stops the job.
        warnings: what does not.
        forced: what would have stopped it, and why it does not.
    """

    errors: tuple[ToolkitError, ...] = ()
    warnings: tuple[str, ...] = ()
    forced: Forced | None = None


def judge(case: Case) -> Judgement:
    """Judge a job by all rules; ``case.force`` is why errors must not stop it."""
    findings = [finding for rule in RULES for finding in rule.findings(case)]
    errors = tuple(finding for finding in findings if not finding.is_warning)
    warnings = tuple(finding.summary for finding in findings if finding.is_warning)
    if case.force is None or not errors:
        return Judgement(errors, warnings)
    texts = tuple(error.summary for error in errors)
    forced = Forced(reason=case.force, findings=texts)
    return Judgement((), (*(f"forced: {text}" for text in texts), *warnings), forced)
