"""A site's comment."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.lint.model import Context, Finding, Rule
from toolkit.lint.script import Script
from toolkit.sites.comment import form, problem

RULE = Rule(
    "site-comment",
    "error",
    "the site refuses a job whose comment is not one of its own",
    "the site's profile: toolkit site show",
)


def check(script: Script, context: Context) -> Iterator[Finding]:
    """The last ``--comment`` of the directives against the site's rule."""
    rule = context.site.comment if context.site else None
    if context.site is None or rule is None or not script.is_batch:
        return
    given = list(script.options("comment"))
    value = given[-1][1].value if given else None
    wrong = problem(rule, value)
    # A directive with a bent dash was meant, and is said by another rule.
    if wrong and (
        given or not any("comment" in word for one in script.directives for word in one.strays)
    ):
        example = (
            f'#SBATCH --comment="{rule.example}"'
            if rule.example
            else f"#SBATCH --comment={form(rule)}"
        )
        yield RULE.at(
            given[-1][0].line if given else script.directives[0].line,
            f"{wrong} ({context.site.name})",
            advice=example,
        )
