"""A cache of compiled templates: compiling takes a tenth of the time of `toolkit run --dry-run`.

It is a directory that only this user can write to, since compiled templates are code. There is none
if the user wants no byte code of Python (PYTHONDONTWRITEBYTECODE).
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from jinja2 import FileSystemBytecodeCache
from jinja2.bccache import Bucket

from toolkit.errors import UntrustedError
from toolkit.trust import require_trusted


class _Cache(FileSystemBytecodeCache):
    """Jinja2's own cache, which a full disk does not stop."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError):
            super().dump_bytecode(bucket)

    def load_bytecode(self, bucket: Bucket) -> None:
        with suppress(
            OSError, EOFError, ValueError, TypeError
        ):  # one that was cut off is compiled again
            super().load_bytecode(bucket)


def cache() -> FileSystemBytecodeCache | None:
    """Return the cache; None if there is no safe place for it."""
    if sys.dont_write_bytecode:
        return None
    try:
        directory = (
            Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            / "toolkit"
            / "templates"
        )
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_trusted(directory)
    except (OSError, RuntimeError, UntrustedError):
        return None
    return _Cache(str(directory))
