"""Reports as pages of HTML that request nothing from outside, with one table and one chart for all.

Names of scripts, hosts, runs and commits, and whole reports come from other users. Jinja escapes
every value; ``_shown`` also bounds it, and writes out characters that reorder or hide text.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from toolkit.config import make_templates
from toolkit.text import one_line

if TYPE_CHECKING:
    from jinja2 import Environment

_LONGEST = 2000  # characters of a value


def render(template: str, **values: object) -> str:
    """Return a template of this package with values; text in them is never markup."""
    return _environment().get_template(template).render(values)


def markup(html: str) -> object:
    """Return HTML that is known to be safe as a value that is not escaped."""
    from markupsafe import Markup

    return Markup(html)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = make_templates("reports/templates", autoescape=True, finalize=_shown)
    environment.filters["breakable"] = _breakable
    return environment


def _shown(value: object) -> object:
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return one_line(value if len(value) <= _LONGEST else f"{value[:_LONGEST]}...")


def _breakable(text: str) -> object:
    """Return a text that a narrow column may break behind underscores, as in names of metrics."""
    from markupsafe import Markup, escape

    return escape(_shown(text)).replace("_", Markup("_<wbr>"))
