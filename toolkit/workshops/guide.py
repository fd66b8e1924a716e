"""Render the guide of a workshop as static pages of HTML. Pure.

Of Markdown it knows headings, paragraphs, lists, code blocks (fenced or indented), and in a line
code, emphasis and links. All else is shown as it is written; nothing of the text becomes markup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import NamedTuple

from toolkit.workshops.model import Workshop

_HEADING = re.compile(r"(?P<level>#{1,6})[ \t]+(?P<text>\S.*)\Z")
_ITEM = re.compile(r"[ ]{0,3}(?P<mark>[-*]|\d{1,3}\.)[ ]+(?P<text>\S.*)\Z")
_LINK = re.compile(r"\[(?P<text>[^\]\[]{1,300})\]\((?P<url>https?://[^\s()<>\"]{1,500})\)")
_STRONG = re.compile(r"\*\*(?P<text>[^*\n]{1,500})\*\*")
_WORDS = {
    "en": ("Join", "Exercises", "Run it"),
    "ko": ("참가하기", "실습", "실행"),
}
_STYLE = """\
body { max-width: 46rem; margin: 0 auto; padding: 1rem; line-height: 1.6;
       font-family: system-ui, "Noto Sans KR", "Malgun Gothic", "Apple SD Gothic Neo", sans-serif;
       color: #1b1b1b; background: #fff; }
pre, code { font-family: ui-monospace, monospace; background: #f2f2f2; }
pre { padding: .7rem; overflow-x: auto; }
a { color: #0b57d0; }
h2 { border-top: 1px solid #ccc; padding-top: 1rem; }
@media (prefers-color-scheme: dark) {
  body { color: #e6e6e6; background: #1b1b1b; } pre, code { background: #2b2b2b; }
  a { color: #8ab4f8; } }"""


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
    """Return the guide in one language as a page that requests nothing from outside.

    Args:
        workshop: the workshop.
        language: of the page.
        sections: the exercises in their order.
        join: the word after ``toolkit workshop join``.
    """
    title = escape(workshop.title_in(language))
    joining, exercises, run = _WORDS.get(language, _WORDS["en"])
    return "\n".join(
        (
            "<!DOCTYPE html>",
            f'<html lang="{language}"><head><meta charset="utf-8"><title>{title}</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>\n{_STYLE}\n</style></head><body>",
            *_languages(workshop, language),
            f"<h1>{title}</h1>",
            *([f"<p>{escape(workshop.date)}</p>"] if workshop.date else ()),
            f"<h2>{joining}</h2>",
            f"<pre>toolkit workshop join {escape(join)}</pre>",
            f"<h2>{exercises}</h2>",
            "<ol>",
            *(f'<li><a href="#{each.name}">{each.name}</a></li>' for each in sections),
            "</ol>",
            *(line for each in sections for line in _section(each, run)),
            "</body></html>\n",
        )
    )


def _languages(workshop: Workshop, current: str) -> Iterator[str]:
    others = [language for language in workshop.language if language != current]
    links = (
        f'<a href="{page_name(workshop, other)}" hreflang="{other}">{other}</a>' for other in others
    )
    if others:
        yield f"<nav>{' '.join(links)}</nav>"


def _section(section: Section, run: str) -> Iterator[str]:
    yield f'<section id="{section.name}"><h2>{section.name}</h2>'
    yield to_html(section.text, level=2)
    yield f"<p>{run}:</p><pre>{escape(section.command)}</pre></section>"


def to_html(text: str, *, level: int = 0) -> str:
    """Return Markdown as HTML; ``level`` is added to that of each heading."""
    return "\n".join(_blocks(text.expandtabs(4).splitlines(), level))


def _blocks(lines: Sequence[str], level: int) -> Iterator[str]:
    at = 0
    while at < len(lines):
        line = lines[at]
        heading = _HEADING.match(line)
        if not line.strip():
            at += 1
        elif line.startswith("```"):
            end = next((n for n in range(at + 1, len(lines)) if lines[n].startswith("```")), None)
            end = len(lines) if end is None else end
            yield _code(lines[at + 1 : end])
            at = end + 1
        elif line.startswith("    "):
            end = _end(lines, at, lambda text: not text.strip() or text.startswith("    "))
            yield _code([text[4:] for text in lines[at:end]])
            at = end
        elif heading:
            number = min(6, len(heading["level"]) + level)
            yield f"<h{number}>{inline(heading['text'])}</h{number}>"
            at += 1
        elif item := _ITEM.match(line):
            end = _end(lines, at, lambda text: bool(_ITEM.match(text) or text.startswith("  ")))
            tag = "ul" if item["mark"] in "-*" else "ol"
            yield f"<{tag}>{''.join(_items(lines[at:end]))}</{tag}>"
            at = end
        else:
            end = max(at + 1, _end(lines, at, _is_paragraph))
            yield f"<p>{inline(' '.join(text.strip() for text in lines[at:end]))}</p>"
            at = end


def _end(lines: Sequence[str], start: int, belongs: Callable[[str], bool]) -> int:
    """Return the number of the first line that does not belong to the block at ``start``."""
    return next((n for n in range(start, len(lines)) if not belongs(lines[n])), len(lines))


def _is_paragraph(line: str) -> bool:
    return bool(line.strip()) and not (
        line.startswith("```") or _HEADING.match(line) or _ITEM.match(line)
    )


def _code(lines: Sequence[str]) -> str:
    return f"<pre>{escape(chr(10).join(lines).rstrip())}</pre>"


def _items(lines: Sequence[str]) -> Iterator[str]:
    items: list[str] = []
    for line in lines:
        match = _ITEM.match(line)
        if match:
            items.append(match["text"])
        else:
            items[-1] += " " + line.strip()
    return (f"<li>{inline(item)}</li>" for item in items)


def inline(text: str) -> str:
    """Return a line of Markdown as HTML: code, strong text and links to web pages."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick without its partner
        parts = [*parts[:-2], "`".join(parts[-2:])]
    marked = (
        f"<code>{escape(part)}</code>" if number % 2 else _plain(part)
        for number, part in enumerate(parts)
    )
    return "".join(marked)


def _plain(text: str) -> str:
    text = _STRONG.sub(lambda match: f"<strong>{match['text']}</strong>", escape(text, quote=False))
    return _LINK.sub(
        lambda match: f'<a href="{match["url"].replace(chr(34), "")}">{match["text"]}</a>', text
    )
