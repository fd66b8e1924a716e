"""Rules of a site about options, its comment and its modules."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.checks import Result, check, from_error
from toolkit.errors import UsageError
from toolkit.model.case import Case
from toolkit.model.job import Job
from toolkit.model.slurm_options import OTHER_NAMES
from toolkit.quoting import shell
from toolkit.sites.rules import comment_example, comment_problem


@check("options", "options that a site requires or forbids", order=80)
def check_options(case: Case) -> Iterator[Result]:
    """Check the options of sbatch that a site requires or forbids."""
    site = case.site
    for name, rule in site.forbidden.items():
        for place in _given(name, case.job):
            cause = f"site {site.name} does not take it: {rule.why}"
            step = rule.instead or f"leave {place} out"
            yield from_error(UsageError(cause, place=place, next_step=step), rule.source)
    for name, rule in site.required.items():
        if not _given(name, case.job):
            error = UsageError(
                f"site {site.name} wants it: {rule.why}",
                place=f"--{name}",
                next_step=rule.instead or None,
            )
            yield from_error(error, rule.source)


def _given(name: str, job: Job) -> list[str]:
    """Return the options by which a job has what an option of sbatch sets, as users write them."""
    own = getattr(job, name.replace("-", "_"), None) not in (None, 0)
    others = [other for other in (name, *OTHER_NAMES.get(name, ())) if other in job.slurm]
    return [*([f"--{name}"] if own else ()), *(f"--slurm {other}" for other in others)]


@check("comment", "what a site wants in --comment", order=90)
def check_comment(case: Case) -> list[Result]:
    """Check ``--comment`` against the site's rule."""
    rule = case.site.comment
    wrong = comment_problem(rule, case.job.comment) if rule else None
    if rule is None or wrong is None:
        return []
    source = ", ".join(filter(None, (rule.source or case.site.cited, rule.date)))
    return [
        from_error(
            UsageError(
                wrong, place="--comment", next_step=f"--comment {shell(comment_example(rule))}"
            ),
            source,
        )
    ]


@check("modules", "modules that a site has", order=230)
def check_modules(case: Case) -> list[Result]:
    """Check the modules against those that the site is known to have."""
    known = case.site.available_modules
    held = {*known, *case.site.modules}
    held |= {name.partition("/")[0] for name in held}
    return [
        from_error(
            UsageError(
                f"site {case.site.name} is not known to have the module {name}",
                place="--module",
                choices=known,
                value=name,
                next_step="module avail shows what there is",
            ),
            case.site.cited,
        )
        for name in case.job.modules
        if known and name not in held
    ]
