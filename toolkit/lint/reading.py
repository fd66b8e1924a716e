"""The edge of lint: reads a script, asks bash for its syntax, and looks which directories are there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from toolkit import shell
from toolkit.errors import ConfigError
from toolkit.lint.model import Context
from toolkit.model.site import Site

_SYNTAX = re.compile(r".*?: line (\d+): (.*)")
_PATIENCE = 10.0  # seconds for bash


def read(file: Path) -> str:
    """The text of a script; ``-`` is standard input.

    Raises:
        ConfigError: it cannot be read.
    """
    if str(file) == "-":
        return sys.stdin.read()
    try:
        with file.open(encoding="utf-8", newline="") as stream:  # its line ends as they are
            return stream.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"the script cannot be read: {reason}", place=str(file), next_step=f"ls -l {file}"
        ) from None


def context_of(file: Path, text: str, site: Site | None) -> Context:
    """What rules may know of the place that a script lies in."""
    directory = file.parent if str(file) != "-" else Path()
    return Context(
        site=site, is_directory=lambda path: (directory / path).is_dir(), syntax=_syntax(text)
    )


def _syntax(text: str) -> tuple[tuple[int, str], ...]:
    """What bash says of it without running it; nothing where another program is to read it, or there is no bash."""
    first = text.split("\n", 1)[0]
    bash = shell.which("bash")
    if bash is None or (first.startswith("#!") and not re.search(r"\b(?:ba|da|k)?sh\b", first)):
        return ()
    said = shell.run([bash, "-n"], input=text.replace("\r", ""), check=False, timeout=_PATIENCE)
    found = (_SYNTAX.match(line) for line in said.stderr.splitlines())
    return tuple(
        (int(match[1]), match[2]) for match in found if match and not match[2].startswith("`")
    )
