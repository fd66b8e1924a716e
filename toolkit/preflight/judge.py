"""What would be refused, or would fail, before it queues. A rule is a module with ``look`` and a line here. Pure.

All rules are asked, so that a user mends everything at once. ``--force`` with a reason lets a job
pass that a rule would have stopped: tables of sites move, and a person may know better. What no
script can be written for (``refusals``) cannot be forced.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from toolkit.errors import ToolkitError
from toolkit.model.plan import Forced

if TYPE_CHECKING:
    from toolkit.preflight.model import Case, Finding, Rule

# rule -> what it is about; the module of the same name has ``look``. In the order in which findings
# are shown.
RULES: dict[str, str] = {
    "partition": "the partition takes batch jobs and is up",
    "size": "as many nodes and CPUs as there are",
    "gpus": "as many GPUs as a node has",
    "gpu_types": "GPUs of a type that a partition has",
    "anywhere": "a partition that fits, where none is named",
    "user_gpus": "GPUs that one user may have",
    "user_jobs": "jobs that one user may have",
    "time": "time limits",
    "options": "options that a site requires or forbids",
    "comment": "what a site wants in --comment",
    "directory": "where a site takes jobs from",
    "hidden": "what the nodes do not see",
    "script": "a script that can be read",
    "imports": "modules that the script imports",
    "binds": "sources of --bind that are there",
    "datasets": "data sets that are there",
    "architecture": "image and nodes of one architecture",
    "driver": "the nodes' driver runs the image's CUDA",
    "locked": "the image is what was locked",
    "purge": "files that the site deletes",
    "space": "room for the run",
    "cache": "caches that do not fill the home",
    "ports": "ports that ranks may use",
    "modules": "modules that a site has",
}


class Judgement(NamedTuple):
    """What all rules say of a job.

    Attributes:
        errors: what stops it.
        warnings: what does not.
        forced: what would have, and why it does not.
    """

    errors: tuple[ToolkitError, ...] = ()
    warnings: tuple[str, ...] = ()
    forced: Forced | None = None


def findings(case: Case) -> list[Finding]:
    """What every rule finds, each error with its source."""
    found: list[Finding] = []
    for name in RULES:
        rule: Rule = import_module(f"toolkit.preflight.rules.{name}")
        for finding in rule.look(case):
            finding.error.source = finding.source
            found.append(finding)
    return found


def judge(case: Case, force: str | None = None) -> Judgement:
    """All findings, sorted into what stops and what does not.

    Args:
        case: the job.
        force: why errors shall not stop it; None: they do.
    """
    found = findings(case)
    errors = tuple(finding.error for finding in found if finding.stops)
    warnings = tuple(sentence(finding.error) for finding in found if not finding.stops)
    if force is None or not errors:
        return Judgement(errors, warnings)
    texts = tuple(sentence(error) for error in errors)
    return Judgement(
        (),
        (*(f"forced: {text}" for text in texts), *warnings),
        Forced(reason=force, findings=texts),
    )


def sentence(error: ToolkitError) -> str:
    """``--gpus: a node has 4 GPUs, 8 were asked for (site neuron, 2026-08); 8 per node: amd_a100nv_8``."""
    step = error.next_step or (f"close: {error.close}" if error.close else "")
    return f"{error.place}: {error.cause}{f' ({error.source})' if error.source else ''}{f'; {step}' if step else ''}"
