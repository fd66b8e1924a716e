"""Rules of a site: its comment, options, partitions and modules."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.checks import Edit, Result, at, check
from toolkit.errors import ToolkitError, UsageError
from toolkit.lint.script import Script
from toolkit.model.case import Case
from toolkit.model.job import Job
from toolkit.model.site import Site
from toolkit.rules import job


@check(
    "site",
    "the site takes the job",
    cause="the site refuses the job, or runs it otherwise than was meant",
    source="the site's profile: toolkit site show",
)
def _site(script: Script) -> Iterator[Result]:
    site = script.context.site
    if site is None or not script.is_batch:
        return
    for finding in _findings(script, site):
        place = (finding.place or "").rpartition(" ")[2].removeprefix("--")
        uses = ([*script.options(name)] for name in _PLACES.get(place, (place,)))
        own = next((each[-1] for each in uses if each), None)
        directive, _ = own or [(script.directives[0], None), *script.options("partition")][-1]
        is_removable = place in site.forbidden and len(directive.options) == 1
        edits = [Edit(line=directive.line, text=None)] if own and is_removable else []
        message = f"--{place}: {finding.cause}"
        yield at(directive.line, message, edits=edits, fix=finding.advice)


def _findings(script: Script, site: Site) -> Iterator[ToolkitError]:
    """Yield what the rules of `toolkit run` find in a script's job."""
    asked = Case(_job(script), site)
    name, known = asked.job.partition, site.partitions
    if known and name is not None and name not in known:
        cause = f"{site.name} has no partition {name!r}"
        yield UsageError(cause, place="--partition", choices=known, value=name)
    given = Job(
        slurm={option.name: True for _, option in script.options()},
        comment=script.value("comment"),
    )
    for case, rules in (
        (asked, (job.partition, job.size, job.gpus, job.anywhere, job.user_gpus, job.time)),
        (Case(given, site), (job.options, job.comment)),
    ):
        for rule in rules:
            yield from rule(case)


_GPUS = re.compile(r"(?:gpu:)?(?:[\w.-]{1,64}:)?(\d{1,4})(?:\(.*)?")
# The directives that decide what a rule's option is about.
_PLACES = {
    "cpus-per-task": ("cpus-per-task", "ntasks-per-node", "ntasks"),
    "gpus-per-node": ("gpus-per-node", "gres"),
}


def _job(script: Script) -> Job:
    """Return what a script asks of its partition; what cannot be read is left out."""
    nodes = script.nodes
    each = script.number("ntasks-per-node") or script.number("tasks-per-node")
    if each is None and nodes and (tasks := script.number("ntasks")):
        each = -(-tasks // max(nodes))  # on the node that has the most of them
    on_node = _GPUS.fullmatch(script.value("gpus-per-node") or script.value("gres") or "")
    return Job(
        partition=script.value("partition"),
        nodes=":".join(map(str, nodes)) if nodes else None,
        ntasks_per_node=each or 1,
        cpus_per_task=script.number("cpus-per-task"),
        gpus_per_node=int(on_node[1]) if on_node else None,
        time=script.value("time"),
        mem=script.value("mem"),
    )


@check(
    "site-module",
    "the site has the modules",
    severity="warning",
    cause="module load fails, and without set -e the script goes on without it",
    source="the site's profile: toolkit site show",
)
def _site_module(script: Script) -> Iterator[Result]:
    if script.context.site is None:
        return
    for call in script.calls("module", "ml"):
        words = call.words[1:]
        is_load = words[:1] in (("load",), ("add",))
        names = words[1:] if is_load else () if call.program == "module" else words
        known = (name for name in names if re.fullmatch(r"[\w.+/-]+", name))
        loads = Job(modules=() if "{" in call.text else tuple(known))
        for finding in job.modules(Case(loads, script.context.site)):
            fix = f"close: {finding.close}" if finding.close else finding.advice
            yield at(call.line, finding.cause, fix=fix)


RULES = (_site, _site_module)
