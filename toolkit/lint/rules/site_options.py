"""Options that a site requires or forbids."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.lint.model import Context, Edit, Finding, Rule
from toolkit.lint.script import Script

RULE = Rule(
    "site-option",
    "error",
    "the site refuses the job, or runs it otherwise than was meant",
    "the site's profile: toolkit site show",
)


def check(script: Script, context: Context) -> Iterator[Finding]:
    """What is missing and what is too much."""
    site = context.site
    if site is None or not script.is_batch:
        return
    for name, rule in site.forbidden.items():
        for directive, option in script.options(name):
            fix = [Edit(line=directive.line, text=None)] if len(directive.options) == 1 else []
            yield RULE.at(
                directive.line,
                f"{option.written} is not to be used at {site.name}: {rule.why}",
                fix=fix,
                advice=rule.instead,
            )
    for name, rule in site.required.items():
        if script.value(name) is None:
            yield RULE.at(
                script.directives[0].line,
                f"{site.name} requires --{name}: {rule.why}",
                advice=rule.instead,
            )
