"""Rules of a site: its comment, options, partitions and modules."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.checks import Edit, Result, at, check
from toolkit.errors import nearest
from toolkit.lint.script import Script
from toolkit.model.case import Case
from toolkit.model.job import Job
from toolkit.quoting import sbatch
from toolkit.rules import options, partition
from toolkit.sites import comment_example, comment_problem


@check(
    "site-comment",
    "the comment is one of the site's",
    cause="the site refuses a job whose comment is not one of its own",
    source="the site's profile: toolkit site show",
)
def _site_comment(script: Script) -> Iterator[Result]:
    rule = script.context.site.comment if script.context.site else None
    if script.context.site is None or rule is None or not script.is_batch:
        return
    given = list(script.options("comment"))
    value = given[-1][1].value if given else None
    wrong = comment_problem(rule, value)
    # A directive with a typographic dash is reported by another rule.
    if wrong and (
        given or not any("comment" in word for each in script.directives for word in each.strays)
    ):
        yield at(
            given[-1][0].line if given else script.directives[0].line,
            f"{wrong} ({script.context.site.name})",
            fix=f"#SBATCH --comment={sbatch(comment_example(rule))}",
        )


@check(
    "site-option",
    "options that the site requires and forbids",
    cause="the site refuses the job, or runs it otherwise than was meant",
    source="the site's profile: toolkit site show",
)
def _site_options(script: Script) -> Iterator[Result]:
    site = script.context.site
    if site is None or not script.is_batch:
        return
    lines = [directive for directive in script.directives if directive.effective]
    given = {option.name: True for line in lines for option in line.options}
    for finding in options.options(Case(Job(slurm={**given}), site)):
        name = (finding.place or "").rpartition(" ")[2].removeprefix("--")
        for directive, option in script.options(name):
            edits = [Edit(line=directive.line, text=None)] if len(directive.options) == 1 else []
            message = f"{option.written}: {finding.cause}"
            yield at(directive.line, message, edits=edits, fix=finding.advice)
        if name not in given:
            message = f"--{name}: {finding.cause}"
            yield at(script.directives[0].line, message, fix=finding.advice)


@check(
    "site-partition",
    "the partition exists, and the job fits into it",
    cause="Slurm refuses the job",
    source="the site's profile: toolkit site show",
)
def _site_partition(script: Script) -> Iterator[Result]:
    site = script.context.site
    if site is None or not script.is_batch:
        return
    for directive, option in script.options("partition"):
        if site.partitions and option.value not in site.partitions:
            close = nearest(option.value or "", site.partitions)
            yield at(
                directive.line,
                f"{site.name} has no partition {option.value!r}",
                fix=f"close: {close}" if close else f"one of {', '.join(sorted(site.partitions))}",
            )
    asked = Case(_job(script), site)
    rules = (partition.partition, partition.size, partition.gpus, partition.anywhere)
    for rule in (*rules, partition.user_gpus, partition.time):
        for finding in rule(asked):
            place = finding.place or ""
            names = (*_PLACES.get(place, (place.removeprefix("--"),)), "partition")
            lines = (written.line for written, _ in script.options(*names))
            line = next(lines, script.directives[0].line)
            yield at(line, finding.cause, fix=finding.advice)


_GPUS = re.compile(r"(?:gpu:)?(?:[\w.-]{1,64}:)?(\d{1,4})(?:\(.*)?")
# The directives that decide what a rule's option is about.
_PLACES = {
    "--cpus-per-task": ("cpus-per-task", "ntasks-per-node", "ntasks"),
    "--gpus-per-node": ("gpus-per-node", "gres"),
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
        plain = [name for name in names if re.fullmatch(r"[\w.+/-]+", name)]
        loads = Job(modules=() if "{" in call.text else tuple(plain))
        for finding in options.modules(Case(loads, script.context.site)):
            fix = f"close: {finding.close}" if finding.close else finding.advice
            yield at(call.line, finding.cause, fix=fix)


RULES = (
    _site_comment,
    _site_options,
    _site_partition,
    _site_module,
)
