"""Judge a job by all preflight rules before it is submitted. Pure.

All rules are asked, so that a user can fix everything at once. ``--force`` with a reason lets a job
pass that a rule would have stopped: tables of sites change, and a person may know better. What no
script can be written for (``options``) cannot be forced.
"""

from __future__ import annotations

from typing import NamedTuple

from toolkit.checks import Registry, next_step
from toolkit.errors import ToolkitError
from toolkit.model.case import Case
from toolkit.model.plan import Forced

# Their order is that in which findings are shown.
REGISTRY = Registry("toolkit.preflight.rules")


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


def judge(case: Case, force: str | None = None) -> Judgement:
    """Judge a job by all rules.

    Args:
        case: the job.
        force: why errors must not stop it; None if they must.
    """
    results = [(result.error, result.outcome) for result in REGISTRY.results(case)]
    errors = tuple(error for error, outcome in results if error and outcome == "failed")
    warnings = tuple(
        format_message(error) for error, outcome in results if error and outcome == "warning"
    )
    if force is None or not errors:
        return Judgement(errors, warnings)
    texts = tuple(map(format_message, errors))
    forced = Forced(reason=force, findings=texts)
    return Judgement((), (*(f"forced: {text}" for text in texts), *warnings), forced)


def format_message(error: ToolkitError) -> str:
    """Return an error on one line.

    ``--gpus: a node has 4 GPUs, 8 were asked for (site neuron, 2026-08); 8 per node: amd_a100nv``.
    """
    source = f" ({error.source})" if error.source else ""
    step = next_step(error)
    return f"{error.place}: {error.cause}{source}{f'; {step}' if step else ''}"
