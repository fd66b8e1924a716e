"""The guide of a workshop as static pages of HTML, from texts in Markdown. Pure.

HTML in a text is shown as it is written, links lead to web pages only, and there are no images: a
page requests nothing from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from toolkit import reports
from toolkit.workshops.model import Workshop

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_WORDS = {
    "en": ("Join", "Exercises", "Run it"),
    "ko": ("참가하기", "실습", "실행"),
}


class Section(NamedTuple):
    """The text of an exercise in one language.

    Attributes:
        name: of the exercise.
        text: in Markdown.
        command: that runs or opens it.
    """

    name: str
    text: str
    command: str


def page_name(workshop: Workshop, language: str) -> str:
    """Return the file name of the guide in a language."""
    return "index.html" if language == workshop.language[0] else f"{language}.html"


def page(workshop: Workshop, language: str, sections: Sequence[Section], join: str) -> str:
    """Return the guide in one language.

    Args:
        workshop: the workshop.
        language: of the page.
        sections: the exercises in their order.
        join: the word after ``toolkit workshop join``.
    """
    others = [other for other in workshop.language if other != language]
    return reports.render(
        "guide.html.j2",
        language=language,
        title=workshop.title_in(language),
        date=workshop.date,
        words=_WORDS.get(language, _WORDS["en"]),
        others=[(page_name(workshop, other), other) for other in others],
        join=join,
        sections=[
            {"name": each.name, "text": reports.markup(to_html(each.text)), "command": each.command}
            for each in sections
        ],
    )


@lru_cache(maxsize=1)
def _markdown() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).disable("image")
    parser.validateLink = lambda url: url.startswith(  # type: ignore[method-assign]
        ("http://", "https://")
    )
    return parser


def to_html(text: str) -> str:
    """Return Markdown as HTML whose headings are below those of an exercise."""
    parser = _markdown()
    tokens = parser.parse(text)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + 2)}"
    return str(parser.renderer.render(tokens, parser.options, {}))
