"""Partitions that a site has not, or that have less than is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.errors import nearest
from toolkit.lint.model import Context, Finding, Rule
from toolkit.lint.script import Directive, Script
from toolkit.model.site import Site, SitePartition
from toolkit.slurm.parse import minutes
from toolkit.units import counted

RULE = Rule(
    "site-partition", "error", "Slurm refuses the job", "the site's profile: toolkit site show"
)
_GPUS = re.compile(r"gpu(?::[\w-]+)?:(\d+)")


def check(script: Script, context: Context) -> Iterator[Finding]:
    """The partition's name, the GPUs of its nodes, the time."""
    site = context.site
    if site is None or not site.partitions:
        return
    for directive, option in script.options("partition"):
        partition = site.partitions.get(option.value or "")
        if partition is None:
            close = nearest(option.value or "", site.partitions)
            yield RULE.at(
                directive.line,
                f"{site.name} has no partition {option.value!r}",
                advice=f"close: {close}"
                if close
                else f"one of {', '.join(sorted(site.partitions))}",
            )
        else:
            yield from _shape(script, option.value or "", partition)
    yield from _time(script, site)


def _shape(script: Script, name: str, partition: SitePartition) -> Iterator[Finding]:
    for directive, value in _gpu_values(script):
        found = _GPUS.match(value) or re.fullmatch(r"(\d+)", value)
        if found and int(found[1]) > partition.gpus:
            yield RULE.at(
                directive.line,
                f"a node of {name} has {counted(partition.gpus, 'GPU')}, {found[1]} are asked for",
            )
    if not partition.batch:
        yield RULE.at(next(script.options("partition"))[0].line, f"{name} takes no batch jobs")


def _gpu_values(script: Script) -> Iterator[tuple[Directive, str]]:
    for option_name in ("gres", "gpus-per-node"):
        yield from (
            (directive, option.value or "") for directive, option in script.options(option_name)
        )


def _time(script: Script, site: Site) -> Iterator[Finding]:
    for directive, option in script.options("time"):
        try:
            asked = minutes(option.value or "")
        except ValueError:
            continue  # said by the rule of values
        if site.max_minutes is not None and asked is not None and asked > site.max_minutes:
            yield RULE.at(
                directive.line, f"{site.name} gives {site.max_minutes // 60} hours at most"
            )
