"""Modules that a site does not have any more."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.errors import nearest
from toolkit.lint.calls import calls
from toolkit.lint.model import Context, Finding, Rule
from toolkit.lint.script import Script

RULE = Rule(
    "site-module",
    "warning",
    "module load fails, and without set -e the script goes on without it",
    "the site's profile: toolkit site show",
)


def check(script: Script, context: Context) -> Iterator[Finding]:
    """Every module that is loaded, against those that are known to be there."""
    site = context.site
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
                yield RULE.at(
                    call.line,
                    f"{site.name} has no module {name}",
                    advice=f"close: {close}" if close else "module avail",
                )
