"""Rules that a job must keep before it is submitted. Pure.

A rule is a generator of findings over a case: errors that stop the job, or warnings. Each module
lists its own. All rules are asked, so that a user can fix everything at once.
"""

from __future__ import annotations

from toolkit.errors import ToolkitError
from toolkit.model.case import Case
from toolkit.rules import files, image, options, partition

# In the order in which findings are shown. ``--force`` with a reason lets a job pass that a rule
# would have stopped: tables of sites change, and a person may know better.
RULES = (
    *partition.RULES,
    *options.RULES,
    *files.RULES,
    *image.RULES,
)


def judge(case: Case) -> list[ToolkitError]:
    """Return what all rules find in a job."""
    return [finding for rule in RULES for finding in rule.findings(case)]
