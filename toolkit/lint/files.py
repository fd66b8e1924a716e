"""Read scripts for lint, check their syntax by bash, and write fixed ones. The edge of lint."""

from __future__ import annotations

import os
import re
import stat
import sys
from itertools import chain, count
from pathlib import Path

from toolkit import shell
from toolkit.errors import ConfigError, UsageError
from toolkit.files import read_text, write_atomically
from toolkit.lint.script import Context
from toolkit.model.site import Site

_SYNTAX = re.compile(r".*?: line (\d+): (.*)")


def read(file: Path) -> str:
    """Return the text of a script; ``-`` is standard input.

    Raises:
        ConfigError: The script cannot be read.
    """
    if str(file) == "-":
        return sys.stdin.read()
    try:
        return read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"the script cannot be read: {reason}", place=str(file)) from None


def context_of(file: Path, text: str, site: Site | None) -> Context:
    """Return what rules know of the place of a script."""
    directory = file.parent if str(file) != "-" else Path()
    return Context(
        site=site, is_directory=lambda path: (directory / path).is_dir(), syntax=_syntax(text)
    )


def _syntax(text: str) -> tuple[tuple[int, str], ...]:
    """Return bash's errors about a script, without running it.

    There are none if another program is to read it, or if there is no bash.
    """
    first = text.split("\n", 1)[0]
    bash = shell.which("bash")
    if bash is None or (first.startswith("#!") and not re.search(r"\b(?:ba|da|k)?sh\b", first)):
        return ()
    answer = shell.run([bash, "-n"], input=text.replace("\r", ""), check=False, timeout=10)
    matches = (_SYNTAX.match(line) for line in answer.stderr.splitlines())
    return tuple(
        (int(match[1]), match[2]) for match in matches if match and not match[2].startswith("`")
    )


def save(file: Path, text: str) -> Path:
    """Replace a script's text; mode, owner and symbolic links to it stay.

    Returns:
        The path of the original: ``FILE.orig``, or ``FILE.orig.2`` and so on if that is taken.

    Raises:
        UsageError: It is not a regular file.
        OSError: It cannot be written; then it is as before.
    """
    target = file.resolve()
    status = target.stat()
    if not stat.S_ISREG(status.st_mode):
        step = f"toolkit lint {file}"
        raise UsageError("--fix writes regular files only", place=str(file), next_step=step)
    first = target.with_name(f"{target.name}.orig")
    others = (first.with_name(f"{first.name}.{number}") for number in count(2))
    original = next(path for path in chain([first], others) if not os.path.lexists(path))
    mode, owner = stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid)
    write_atomically(original, read_text(target), mode=mode, owner=owner)
    os.utime(original, ns=(status.st_atime_ns, status.st_mtime_ns))
    try:
        write_atomically(target, text, mode=mode, owner=owner)
    except BaseException:
        original.unlink()
        raise
    return original
