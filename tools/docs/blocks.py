"""The commands in pages, with their expected output and the marks before them. Pure.

A mark is a comment of HTML before a block, invisible to readers:

    <!-- not-run: REASON -->   its commands are not run by the tests
    <!-- overview: WHERE -->   other pages or tests run these commands, one by one
    <!-- long -->              they are run by `make test-all` only
    <!-- exit: 65 -->          the last command ends with this exit code
    <!-- file: NAME -->        the block is the file NAME of the page's directory
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from markdown_it import MarkdownIt

MARKS = ("not-run", "overview", "long", "exit", "file")
_PROGRAMS = tuple(
    f"{prompt}{program} "
    for prompt in ("", "$ ")
    for program in ("toolkit", "make", "git", "pip", "install", "sbatch")
)


class Block(NamedTuple):
    """A fenced or indented block of a page.

    Attributes:
        line: where it starts.
        language: of a fence; ``console`` for an indented block with commands.
        text: between the fences.
        marks: the marks before it, with their values.
    """

    line: int
    language: str
    text: str
    marks: dict[str, str]


class Command(NamedTuple):
    """A command of a page.

    Attributes:
        line: where it is.
        text: without the prompt; its further lines had the prompt ``>``.
        expected: the output that the page shows, with ``...`` for what does not matter.
    """

    line: int
    text: str
    expected: str


def blocks(page: str) -> Iterator[Block]:
    """Yield the blocks of a page with their marks.

    Raises:
        ValueError: a mark lacks its reason, or no block follows it.
    """
    marks: dict[str, str] = {}
    for token in MarkdownIt("commonmark").parse(page):
        number = token.map[0] + 1 if token.map else 0
        if token.type == "html_block":
            marks |= _mark(token.content.strip(), number)
        elif token.type == "fence":
            yield Block(number, token.info.strip(), token.content.rstrip("\n"), marks)
            marks = {}
        elif token.type == "code_block" and token.content.startswith(_PROGRAMS):
            yield Block(number, "console", token.content.rstrip(), marks)
            marks = {}
        elif marks:
            raise ValueError(f"line {number}: no block follows the mark")


def _mark(text: str, number: int) -> dict[str, str]:
    name, _, value = text.removeprefix("<!-- ").removesuffix(" -->").partition(":")
    if name not in MARKS:
        return {}  # other comments are not ours
    if name in ("not-run", "overview") and not value.strip():
        raise ValueError(f"line {number}: {name} needs a reason")
    return {name: value.strip()}


def commands(block: Block) -> list[Command]:
    """Return the commands of a console block; lines without a prompt are output."""
    result: list[Command] = []
    for number, line in enumerate(block.text.split("\n"), block.line + 1):
        if line.startswith("$ "):
            result.append(Command(number, line[2:], ""))
        elif not result:
            raise ValueError(f"line {number}: output without a command before it")
        elif line.startswith("> "):
            last = result.pop()
            result.append(last._replace(text=f"{last.text}\n{line[2:]}"))
        else:
            last = result.pop()
            result.append(last._replace(expected=f"{last.expected}{line}\n"))
    return result
