"""The rules of lint, in the order in which they are listed."""

from toolkit.lint.rules import commands, directives, ranks, site

RULES = (*directives.RULES, *commands.RULES, *ranks.RULES, *site.RULES)
