"""Rules that a job must keep before it is submitted. Pure.

A rule is a generator of findings over a case: errors that stop the job, or warnings. All rules are
asked, so that a user can fix everything at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from toolkit.errors import ToolkitError
from toolkit.model.case import Case
from toolkit.model.plan import Forced
from toolkit.rules import files, image, imports, options, partition, site


class Rule(NamedTuple):
    """A rule: its name, what must hold, and the generator of its findings."""

    name: str
    about: str
    findings: Callable[[Case], Iterator[ToolkitError]]


# In the order in which findings are shown. ``--force`` with a reason lets a job pass that a rule
# would have stopped: tables of sites change, and a person may know better.
RULES = (
    Rule("partition", "the partition takes batch jobs and is up", partition.partition),
    Rule("size", "as many nodes and CPUs as there are", partition.size),
    Rule("nodes", "nodes that the partition has", partition.nodes),
    Rule("features", "features that nodes of the partition have", partition.features),
    Rule("gpus", "as many GPUs as a node has", partition.gpus),
    Rule("gpu_types", "GPUs of a type that a partition has", partition.gpu_types),
    Rule("anywhere", "a partition that fits, where none is named", partition.anywhere),
    Rule("user_gpus", "GPUs that one user may have", partition.user_gpus),
    Rule("user_jobs", "jobs that one user may have", partition.user_jobs),
    Rule("mesh", "a mesh that divides the ranks", options.mesh),
    Rule("time", "time limits", partition.time),
    Rule("options", "options that a site requires or forbids", site.options),
    Rule("comment", "what a site wants in --comment", site.comment),
    Rule("directory", "where a site takes jobs from", files.directory),
    Rule("hidden", "what the nodes do not see", files.hidden),
    Rule("script", "a script that can be read", files.script),
    Rule("imports", "modules that the script imports", imports.imports),
    Rule("binds", "sources of --bind that are there", files.binds),
    Rule("datasets", "data sets that are there", files.datasets),
    Rule("architecture", "image and nodes of one architecture", image.architecture),
    Rule("driver", "the nodes' driver runs the image's CUDA", image.driver),
    Rule("locked", "the image is what was locked", image.locked),
    Rule("purge", "files that the site deletes", files.purge),
    Rule("space", "room for the run", files.space),
    Rule("cache", "caches that do not fill the home", files.cache),
    Rule("checkpoint", "a checkpoint that all nodes see", options.checkpoint),
    Rule("ports", "ports that ranks may use", site.ports),
    Rule("modules", "modules that a site has", site.modules),
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
