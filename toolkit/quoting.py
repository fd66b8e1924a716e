r"""Quote a word of the shell, and a value of an ``#SBATCH`` line.

They have different grammars. The shell's is known; sbatch's is ``get_argument`` in Slurm's
``src/sbatch/opt.c``: it ends a value at white space or a bare ``#``, takes ``\`` as an escape
everywhere, also within quotes of either kind, cannot hold a newline, and rewrites the word
``packjob`` before it parses anything else.

Every value that goes into a generated script passes through this module; the templates know these
functions as ``shell`` and ``sbatch``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from toolkit.errors import UsageError

_PLAIN_SBATCH = r"[A-Za-z0-9_@%+=:,./\[\]-]+\Z"
_OPTION = r"[A-Za-z][A-Za-z0-9_-]{0,63}\Z"
_PACKJOB = "(?i)(pack)(job)"


def shell(word: object) -> str:
    """Quote a word for bash: ``it's`` becomes ``'it'"'"'s'``.

    Raises:
        UsageError: it has a NUL, which no argument of a program can, or bytes that are not UTF-8.
    """
    text = str(word)
    if "\0" in text:
        raise UsageError("a NUL byte cannot be part of a command's argument", place=repr(text))
    import shlex  # the rooms of images have a quoting of their own

    return shlex.quote(_whole(text))


def _whole(text: str) -> str:
    """Return the text if a script can hold it.

    Raises:
        UsageError: some of its bytes are not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(
            "a script can only have UTF-8, and these bytes are not UTF-8",
            place=repr(text),
            next_step="rename it",
        ) from None
    return text


def shell_words(words: Iterable[object]) -> str:
    """Quote each of several words of a command line, and join them."""
    return " ".join(shell(word) for word in words)


def alternatives(option: str, values: Iterable[object]) -> str:
    """Return an option with each of some values, so that one can be pasted."""
    return " or ".join(f"{option} {shell(value)}" for value in values)


def sbatch(value: object) -> str:
    r"""Quote a value for an ``#SBATCH`` line: ``a "b" # c`` becomes ``"a \"b\" # c"``.

    Raises:
        UsageError: it has a newline or NUL, which such a line cannot carry.
    """
    text = str(value)
    for character, name in (("\n", "a newline"), ("\r", "a carriage return"), ("\0", "a NUL byte")):
        if character in text:
            raise UsageError(
                f"an #SBATCH line cannot carry {name}",
                place=repr(text),
                next_step="leave it out of the value",
            )
    _whole(text)
    if re.match(_PLAIN_SBATCH, text) and not re.search(_PACKJOB, text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    # sbatch writes "hetjob" over "packjob" in the raw line; an escape in its middle hides the word
    # and is dropped afterwards.
    return '"' + re.sub(_PACKJOB, r"\1\\\2", escaped) + '"'


def sbatch_option(name: str) -> str:
    """Return the long name of an option of sbatch.

    Raises:
        UsageError: it is not a name that a program could give an option.
    """
    if not re.match(_OPTION, name):
        raise UsageError(f"{name!r} cannot be an option of sbatch", place="--slurm")
    return name


def sbatch_path(path: object) -> str:
    """Quote a file name for ``--output``.

    It is quoted as by ``sbatch``, with ``%`` doubled, which Slurm otherwise takes for a pattern.

    Raises:
        UsageError: it has a backslash, which makes Slurm ignore every pattern of the name.
    """
    text = str(path)
    if "\\" in text:
        raise UsageError(
            "a path for logs cannot have a backslash in it",
            place=repr(text),
            next_step="run from another directory",
        )
    return sbatch(text.replace("%", "%%"))


def comment(text: object) -> str:
    """Return a text for a comment of a script.

    It is on one line, and has no control characters that could end the line.
    """
    return "".join(character if character.isprintable() else "?" for character in str(text))


def shell_with_variables(text: object) -> str:
    """Quote a text as one word in which only ``$NAME`` and ``${NAME}`` are expanded.

    It is for directories in a site file.

    Raises:
        UsageError: as ``shell``.
    """
    plain = shell(text)
    parts = re.split(r"(\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\}))", str(text))
    if len(parts) == 1:
        return plain
    parts[::2] = (re.sub(r'([\\"$`])', r"\\\1", part) for part in parts[::2])
    return f'"{"".join(parts)}"'
