"""Rules of a site: its options, its comment, its ports and its modules."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.checks import Rule
from toolkit.errors import ToolkitError, UsageError
from toolkit.model.case import Case
from toolkit.model.job import Job
from toolkit.model.site import PORTS
from toolkit.model.slurm_options import OTHER_NAMES
from toolkit.quoting import shell
from toolkit.sites.rules import comment_example, comment_problem

_LOWEST, _HIGHEST = 1024, 65535  # ports that a user can listen at
_LEAST = 64  # with fewer, jobs on one node meet at the same ones


def options(case: Case) -> Iterator[ToolkitError]:
    """Require and refuse the options of sbatch that the site requires and forbids."""
    site = case.site
    for name, rule in site.forbidden.items():
        for place in _given(name, case.job):
            yield UsageError(
                f"site {site.name} does not take it: {rule.why}",
                place=place,
                next_step=rule.instead or f"leave {place} out",
                source=rule.source,
            )
    for name, rule in site.required.items():
        if not _given(name, case.job):
            yield UsageError(
                f"site {site.name} wants it: {rule.why}",
                place=f"--{name}",
                next_step=rule.instead or None,
                source=rule.source,
            )


def _given(name: str, job: Job) -> list[str]:
    """Return the options by which a job has what an option of sbatch sets, as users write them."""
    own = getattr(job, name.replace("-", "_"), None) not in (None, 0)
    others = [other for other in (name, *OTHER_NAMES.get(name, ())) if other in job.slurm]
    return [*([f"--{name}"] if own else ()), *(f"--slurm {other}" for other in others)]


def comment(case: Case) -> Iterator[ToolkitError]:
    """Compare ``--comment`` with the site's rule."""
    rule = case.site.comment
    if rule and (wrong := comment_problem(rule, case.job.comment)):
        yield UsageError(
            wrong,
            place="--comment",
            next_step=f"--comment {shell(comment_example(rule))}",
            source=", ".join(filter(None, (rule.source or case.site.cited, rule.date))),
        )


def ports(case: Case) -> Iterator[ToolkitError]:
    """Require ports at which ranks may meet, and warn of a fixed one.

    The next job on a shared node takes the same one.
    """
    first, last = case.site.ports
    if first < _LOWEST or last > _HIGHEST or last - first + 1 < _LEAST:
        yield UsageError(
            f"ranks cannot meet at ports {first} to {last}: "
            f"it takes {_LEAST} of those from {_LOWEST} to {_HIGHEST}",
            place="ports",
            next_step=f"correct ports of site {case.site.name}, or leave it out: "
            f"{PORTS[0]} to {PORTS[1]}",
            source=case.site.cited,
        )
    text = case.job.env.get("MASTER_PORT")
    if text is None:
        return
    source, is_fixed = "pytorch#116974", False
    if not text.isdecimal() or not _LOWEST <= int(text) <= _HIGHEST:
        why, source = f"not a port that a user can listen at: {_LOWEST} to {_HIGHEST}", "ip(7)"
    elif case.site.ports != PORTS and not first <= int(text) <= last:
        why = f"not among the ports at which ranks may meet: {first} to {last}"
        source = case.site.cited
    else:
        why, is_fixed = "the same for every job, and taken where two of them share a node", True
    yield UsageError(
        f"MASTER_PORT={text} is {why}",
        place="--env",
        next_step="leave it out: the script takes a free one by the job's number",
        source=source,
        is_warning=is_fixed,
    )


def modules(case: Case) -> Iterator[ToolkitError]:
    """Compare the modules with those that the site is known to have."""
    known = case.site.available_modules
    held = {*known, *case.site.modules}
    held |= {name.partition("/")[0] for name in held}
    for name in case.job.modules if known else ():
        if name not in held:
            yield UsageError(
                f"site {case.site.name} is not known to have the module {name}",
                place="--module",
                choices=known,
                value=name,
                next_step="module avail shows what there is",
                source=case.site.cited,
            )


RULES = (
    Rule("options", "options that a site requires or forbids", options),
    Rule("comment", "what a site wants in --comment", comment),
    Rule("ports", "ports that ranks may use", ports),
    Rule("modules", "modules that a site has", modules),
)
