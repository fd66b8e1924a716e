"""Store secret variables in a file of the run's directory that only its owner can read.

The job's script reads it; plan, settings, logs and dry runs have only the names.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from toolkit.files import open_regular, read_text
from toolkit.quoting import shell

NAME = "secrets"


def write(directory: Path, prefix: str, values: Mapping[str, str]) -> None:
    """Write variables for the job's script; from now on only the owner can enter the directory.

    Args:
        directory: of the run.
        prefix: of a variable's name, by which it reaches the ranks.
        values: of the variables, by name.
    """
    directory.chmod(0o700)
    handle = os.open(directory / NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.writelines(
            f"export {prefix}{name}={shell(value)}\n" for name, value in sorted(values.items())
        )


def read(directory: Path) -> dict[str, str]:
    """Return the variables of a run, to repeat it; empty if it has none that the caller wrote."""
    try:
        with open_regular(directory / NAME, below=directory) as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return {}
            text = file.read().decode()  # a carriage return belongs to its value
        plan = json.loads(read_text(directory / "plan.json", below=directory))
        prefix = plan["container"]["prefix"]
    except (OSError, ValueError, KeyError):
        return {}
    pairs = [word.removeprefix(prefix).partition("=") for word in shlex.split(text) if "=" in word]
    return {name: value for name, _, value in pairs}
