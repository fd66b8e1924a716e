"""The rules of lint, in the order in which they are listed."""

from toolkit.lint.rules import characters, commands, directives, environments, ranks, site

RULES = (
    *characters.RULES,
    *commands.RULES,
    *directives.RULES,
    *environments.RULES,
    *ranks.RULES,
    *site.RULES,
)
