"""Parse an sbatch script: directives in sbatch's own grammar, and commands with quotes. Pure.

This is no shell: what a command does is not known, only where it begins and ends, which parts of it
are quoted, what is a comment, and which programs it starts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from toolkit.model import slurm_options
from toolkit.model.site import Site

_HEREDOC = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_]\w*)\1")
_MARK = "#SBATCH"
# name -> ``value``, ``maybe`` (the value is optional) or ``flag``. Some options are those of
# versions before 22.05, or of srun.
LONG: dict[str, str] = {
    **{name: option.takes for name, option in slurm_options.OPTIONS.items()},
    "bcast": "value",
    "share": "flag",
    "workdir": "value",
}
# What a scanner reads at once outside of quotes, and within them.
_TOKENS = {
    "": re.compile(r"\\.?|[^\\'\"#()\s]+|\s+|."),
    "'": re.compile(r"[^']+|'"),
    '"': re.compile(r"[^\"\\]+|\\.?|\""),
}
_BEFORE = (
    r"(?:^|[\n|&;(`{]|\b(?:then|do|else|exec|time|nohup|if|while|until)\s|!\s)\s*"
    r"(?:[A-Za-z_]\w*=(?:\$\(|[^\s$(])*\s+)*"
)
_CONDITIONAL = re.compile(r"\A(?:\s|\[\[? |(?:if|case)\b)|&&")
# "2>&1" and "&>" are no end of a command.
_END = re.compile(r"[|;)`]|(?<!>)&(?!>)|(?<!\\)\n")


class Option(NamedTuple):
    """An option of a directive or command: its long name, as written, and its value."""

    name: str
    written: str
    value: str | None


class Directive(NamedTuple):
    """A line that begins with ``#SBATCH``.

    Attributes:
        line: its number.
        text: the line.
        options: as sbatch reads them; a bare ``#`` ends them.
        strays: words that belong to no option, which sbatch refuses.
        effective: whether it is before the first command, so that sbatch reads it.
        problem: why it cannot be read; empty if it can.
    """

    line: int
    text: str
    options: tuple[Option, ...]
    strays: tuple[str, ...]
    effective: bool
    problem: str = ""


class Command(NamedTuple):
    """A command with all its lines, continued ones and those of strings, or a call in it.

    Attributes:
        line: number of its first line.
        text: as written, without comments.
        bare: the same with everything within single quotes blanked out, as the shell reads it.
        plain: the same with everything within any quotes blanked out.
        program: that a call starts; empty for a whole command.
    """

    line: int
    text: str
    bare: str
    plain: str
    program: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """Its words, with their quotes."""
        return tuple(self.text.replace("\\\n", " ").split())

    def line_of(self, offset: int) -> int:
        """Return the number of the line of a place in ``text``."""
        return self.line + self.text.count("\n", 0, offset)

    def calls(self, *programs: str) -> Iterator[Command]:
        """Yield every call of these programs."""
        names = "|".join(map(re.escape, programs))
        pattern = rf"{_BEFORE}(?P<program>(?:[\w./~$-]*/)?(?:{names}))(?=[\s;&|)]|$)"
        for match in re.finditer(pattern, self.plain, re.MULTILINE):
            yield self.call_at(match)

    def call_at(self, match: re.Match[str]) -> Command:
        """Return the call whose program has matched as ``program``, with its arguments."""
        start = match.start("program")
        end = _END.search(self.plain, start)
        cut = slice(start, end.start() if end else len(self.plain))
        program = match["program"].rpartition("/")[2]
        parts = (self.text[cut], self.bare[cut], self.plain[cut])
        return Command(self.line_of(start), *parts, program)


class Context(NamedTuple):
    """Facts that rules know apart from the script.

    Attributes:
        site: the cluster that the script is for; None if rules of sites do not apply.
        is_directory: whether a path, relative to the script's directory, is a directory; if that is
            not known, every path is taken for one.
        syntax: bash's own errors: line and message.
    """

    site: Site | None = None
    is_directory: Callable[[str], bool] = bool
    syntax: tuple[tuple[int, str], ...] = ()


class Script(NamedTuple):
    """A whole script, and its context; ``first`` is the line of the first command.

    After that sbatch reads no directives.
    """

    lines: tuple[str, ...]
    directives: tuple[Directive, ...]
    commands: tuple[Command, ...]
    first: int
    context: Context

    def options(self, *names: str) -> Iterator[tuple[Directive, Option]]:
        """Return every effective use of options, by their long names; without names of all."""
        return (
            (directive, option)
            for directive in self.directives
            if directive.effective
            for option in directive.options
            if option.name in names or not names
        )

    def value(self, name: str) -> str | None:
        """Return the value of an option, the last if there are several; None if unset."""
        values = [option.value or "" for _, option in self.options(name)]
        return values[-1] if values else None

    def number(self, name: str) -> int | None:
        """Return the value of an option that is a number above zero; None if it is none."""
        value = self.value(name) or ""
        return int(value) or None if value.isdecimal() else None

    def find(
        self, pattern: re.Pattern[str], part: str = "text", group: str | int = 0
    ) -> Iterator[tuple[int, re.Match[str], Command]]:
        """Yield where a pattern matches in commands: the line, the match, and the command.

        Args:
            pattern: is searched for.
            part: ``text``, ``bare`` or ``plain`` of each command.
            group: whose line is meant.
        """
        for command in self.commands:
            for match in pattern.finditer(getattr(command, part)):
                yield command.line_of(match.start(group)), match, command

    def calls(self, *programs: str) -> Iterator[Command]:
        """Return every call of these programs, in the order of the script."""
        return (call for command in self.commands for call in command.calls(*programs))

    @property
    def is_batch(self) -> bool:
        """True for a script for sbatch: it has directives."""
        return bool(self.directives)

    @property
    def nodes(self) -> tuple[int, int] | None:
        """The least and the most nodes of the job; None if its directives do not tell."""
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", self.value("nodes") or "")
        return (int(match[1]), int(match[2] or match[1])) if match else None

    @property
    def tasks(self) -> int | None:
        """The number of tasks of the job; None if its directives do not tell."""
        if (total := self.value("ntasks")) is not None:
            return int(total) if total.isdecimal() else None
        each = self.number("ntasks-per-node") or self.number("tasks-per-node")
        nodes = self.number("nodes") if self.value("nodes") else 1
        return each * nodes if each and nodes else None


def parse(text: str, context: Context | None = None) -> Script:
    """Parse a script."""
    lines = text.removesuffix("\n").split("\n")  # a carriage return stays, since it is a fault
    commands: list[Command] = []
    written: set[int] = set()  # lines of strings and here-documents: a script may write another
    number = 1
    while number <= len(lines):
        command = _command(lines, number)
        if command.plain.strip():
            commands.append(command)
        last = number + command.text.count("\n")
        for heredoc in _HEREDOC.finditer(command.text):
            while last < len(lines) and lines[last].strip() != heredoc[2]:
                last += 1
            last += 1
        written |= set(range(number + 1, last + 1)) if command.plain.strip() else set()
        number = last + 1
    first = commands[0].line if commands else len(lines) + 1
    directives = tuple(
        directive(line, number, effective=number < first)
        for number, line in enumerate(lines, 1)
        if line.startswith(_MARK) and number not in written
    )
    return Script(tuple(lines), directives, tuple(commands), first, context or Context())


def _command(lines: Sequence[str], first: int) -> Command:
    """Read a command with all lines that backslashes, quotes and arrays add to its first."""
    text, bare, plain, quote, depth = "", "", "", "", 0
    for number in range(first, len(lines) + 1):
        line, place, is_continued = lines[number - 1], 0, False
        while (match := _TOKENS[quote].match(line, place)) is not None:
            token, before = match[0], line[place - 1 : place] if place else " "
            place, is_continued = match.end(), match[0] == "\\" and quote != "'"
            if token == "#" and not quote and (before.isspace() or before in ";&|("):
                break
            hidden, is_array = quote, depth > 0 or plain.endswith("=")
            if token == quote or (not quote and token in ("'", '"')):
                quote, hidden = "" if quote else token, ""
            elif token == "(" and not quote and is_array:
                depth += 1  # of an array, whose lines need no backslash
            elif token == ")" and not quote and depth:
                depth -= 1
            blank = " " * len(token)
            text += token
            bare += blank if hidden == "'" else token
            plain += blank if hidden else token
        if not (is_continued or quote or depth):
            break
        text, bare, plain = text + "\n", bare + "\n", plain + "\n"
    return Command(first, text.rstrip(), bare.rstrip(), plain.rstrip())


def directive(text: str, number: int = 1, *, effective: bool = True) -> Directive:
    r"""Parse a directive as sbatch does: ``\`` escapes everywhere, and a bare ``#`` ends it."""
    lexer = shlex.shlex(text.removeprefix(_MARK), posix=True)
    lexer.whitespace_split, lexer.escapedquotes = True, "\"'"
    try:
        options, strays = _read_options(list(lexer))
    except ValueError as error:
        return Directive(number, text, (), (), effective, f"it cannot be read: {error}")
    return Directive(number, text, tuple(options), tuple(strays), effective)


def _read_options(words: Sequence[str]) -> tuple[list[Option], list[str]]:
    """Return the options among the words of a directive, and the words that belong to none."""
    options: list[Option] = []
    strays: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--") and len(word) > 2:
            name, sign, value = word[2:].partition("=")
            if not sign and LONG.get(name) == "value" and rest:
                value, sign = rest.pop(0), "="
            options.append(Option(name, f"--{name}", value if sign else None))
        elif re.match(r"-[A-Za-z]", word):
            name = slurm_options.SHORT.get(word[1], word[1])
            takes = LONG.get(name) == "value"
            own = word[2:] or (rest.pop(0) if takes and rest else None)
            options.append(Option(name, word[:2], own))
        else:
            strays.append(word)
    return options, strays


def is_conditional(command: Command) -> bool:
    """Return whether a condition seems to decide about a command: it is indented, or says so."""
    return bool(_CONDITIONAL.search(command.plain))
