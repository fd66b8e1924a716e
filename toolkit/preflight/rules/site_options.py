"""Rules of a site about options, its comment and its modules."""

from __future__ import annotations

from toolkit.checks import Result, check, from_error
from toolkit.errors import UsageError
from toolkit.preflight.model import PreflightCase
from toolkit.sites.comment import form, problem


@check("options", "options that a site requires or forbids", order=80)
def check_options(case: PreflightCase) -> list[Result]:
    """Check the options of sbatch that a site requires or forbids."""
    job, site = case.job, case.site
    given = {
        name
        for name in (*site.forbidden, *site.required)
        if getattr(job, name.replace("-", "_"), None) is not None
    }
    results = []
    for name, rule in site.forbidden.items():
        if name in given:
            cause = f"site {site.name} does not take it: {rule.why}"
            results.append(
                from_error(
                    UsageError(
                        cause, place=f"--{name}", next_step=rule.instead or f"leave --{name} out"
                    ),
                    rule.source,
                )
            )
    for name, rule in site.required.items():
        if name not in given and hasattr(job, name.replace("-", "_")):
            error = UsageError(
                f"site {site.name} wants it: {rule.why}",
                place=f"--{name}",
                next_step=rule.instead or None,
            )
            results.append(from_error(error, rule.source))
    return results


@check("comment", "what a site wants in --comment", order=90)
def check_comment(case: PreflightCase) -> list[Result]:
    """Check ``--comment`` against the site's rule."""
    rule = case.site.comment
    wrong = problem(rule, case.job.comment) if rule else None
    if rule is None or wrong is None:
        return []
    source = ", ".join(filter(None, (rule.source or case.source, rule.date)))
    return [
        from_error(
            UsageError(
                wrong, place="--comment", next_step=f'--comment "{rule.example or form(rule)}"'
            ),
            source,
        )
    ]


@check("modules", "modules that a site has", order=230)
def check_modules(case: PreflightCase) -> list[Result]:
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
            case.source,
        )
        for name in case.job.modules
        if known and name not in held
    ]
