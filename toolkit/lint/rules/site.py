"""Rules of a site: its comment, options, partitions and modules."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.checks import Edit, Result, at, check
from toolkit.errors import nearest
from toolkit.lint.calls import calls
from toolkit.lint.linter import LintCase
from toolkit.lint.script import Directive, Script
from toolkit.model.site import Site, SitePartition
from toolkit.model.slurm_options import OTHER_NAMES
from toolkit.sites.comment import form, problem
from toolkit.slurm.parse import minutes
from toolkit.units import counted


@check(
    "site-comment",
    "the comment is one of the site's",
    cause="the site refuses a job whose comment is not one of its own",
    source="the site's profile: toolkit site show",
)
def check_site_comment(case: LintCase) -> Iterator[Result]:
    """Compare the last ``--comment`` of the directives with the site's rule."""
    script = case.script
    rule = case.site.comment if case.site else None
    if case.site is None or rule is None or not script.is_batch:
        return
    given = list(script.options("comment"))
    value = given[-1][1].value if given else None
    wrong = problem(rule, value)
    # A directive with a typographic dash is reported by another rule.
    if wrong and (
        given or not any("comment" in word for each in script.directives for word in each.strays)
    ):
        example = (
            f'#SBATCH --comment="{rule.example}"'
            if rule.example
            else f"#SBATCH --comment={form(rule)}"
        )
        yield at(
            given[-1][0].line if given else script.directives[0].line,
            f"{wrong} ({case.site.name})",
            fix=example,
        )


@check(
    "site-option",
    "options that the site requires and forbids",
    cause="the site refuses the job, or runs it otherwise than was meant",
    source="the site's profile: toolkit site show",
)
def check_site_options(case: LintCase) -> Iterator[Result]:
    """Find forbidden options, and required ones that are missing."""
    script = case.script
    site = case.site
    if site is None or not script.is_batch:
        return
    for name, rule in site.forbidden.items():
        names = (name, *OTHER_NAMES.get(name, ()))
        for directive, option in (pair for other in names for pair in script.options(other)):
            edits = [Edit(line=directive.line, text=None)] if len(directive.options) == 1 else []
            yield at(
                directive.line,
                f"{option.written} is not to be used at {site.name}: {rule.why}",
                edits=edits,
                fix=rule.instead,
            )
    for name, rule in site.required.items():
        if all(script.value(other) is None for other in (name, *OTHER_NAMES.get(name, ()))):
            yield at(
                script.directives[0].line,
                f"{site.name} requires --{name}: {rule.why}",
                fix=rule.instead,
            )


_GPUS = re.compile(r"gpu(?::[\w-]+)?:(\d+)")


@check(
    "site-partition",
    "the partition exists and is large enough",
    cause="Slurm refuses the job",
    source="the site's profile: toolkit site show",
)
def check_site_partition(case: LintCase) -> Iterator[Result]:
    """Check the partition's name, the GPUs of its nodes, and the time."""
    script = case.script
    site = case.site
    if site is None or not site.partitions:
        return
    for directive, option in script.options("partition"):
        partition = site.partitions.get(option.value or "")
        if partition is None:
            close = nearest(option.value or "", site.partitions)
            yield at(
                directive.line,
                f"{site.name} has no partition {option.value!r}",
                fix=f"close: {close}" if close else f"one of {', '.join(sorted(site.partitions))}",
            )
        else:
            yield from _shape(script, option.value or "", partition)
    yield from _time(script, site)


def _shape(script: Script, name: str, partition: SitePartition) -> Iterator[Result]:
    for directive, value in _gpu_values(script):
        match = _GPUS.match(value) or re.fullmatch(r"(\d+)", value)
        if match and int(match[1]) > partition.gpus:
            yield at(
                directive.line,
                f"a node of {name} has {counted(partition.gpus, 'GPU')}, {match[1]} are asked for",
            )
    if not partition.batch:
        yield at(next(script.options("partition"))[0].line, f"{name} takes no batch jobs")


def _gpu_values(script: Script) -> Iterator[tuple[Directive, str]]:
    for option_name in ("gres", "gpus-per-node"):
        yield from (
            (directive, option.value or "") for directive, option in script.options(option_name)
        )


def _time(script: Script, site: Site) -> Iterator[Result]:
    for directive, option in script.options("time"):
        try:
            asked = minutes(option.value or "")
        except ValueError:
            continue  # reported by the rule of values
        if site.max_minutes is not None and asked is not None and asked > site.max_minutes:
            yield at(directive.line, f"{site.name} gives {site.max_minutes // 60} hours at most")


@check(
    "site-module",
    "the site has the modules",
    severity="warning",
    cause="module load fails, and without set -e the script goes on without it",
    source="the site's profile: toolkit site show",
)
def check_site_module(case: LintCase) -> Iterator[Result]:
    """Compare the loaded modules with those that the site has."""
    script = case.script
    site = case.site
    if site is None or not site.available_modules:
        return
    known = {*site.available_modules, *(name.split("/")[0] for name in site.available_modules)}
    for call in calls(script, "module", "ml"):
        words = call.words[1:]
        names = (
            words[1:]
            if words[:1] in (("load",), ("add",))
            else ()
            if call.program == "module"
            else words
        )
        for name in names:
            if name not in known and re.fullmatch(r"[\w.+/-]+", name) and "{" not in call.text:
                close = nearest(name, site.available_modules)
                yield at(
                    call.line,
                    f"{site.name} has no module {name}",
                    fix=f"close: {close}" if close else "module avail",
                )
