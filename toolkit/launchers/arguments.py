"""Arguments that a script wants to be told and its launcher knows: only those that the script defines, and nobody has given.

What a rank learns when it starts (its number, where the others are) is in its environment; a shell
in the container writes it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from toolkit.launchers import Request
from toolkit.launchers.common import python_command
from toolkit.quoting import shell_words


class Known(NamedTuple):
    """What a launcher can tell.

    Attributes:
        names: of options that ask for it, written with ``-``: ``("dist-url", "init-method")``.
        value: for the shell: ``"$INIT_METHOD"`` or a plain word; None for a switch.
    """

    names: tuple[str, ...]
    value: str | None


MEETING = (
    Known(("dist-url", "init-method", "dist-init"), '"$INIT_METHOD"'),
    Known(("master-addr", "master-ip"), '"$MASTER_ADDR"'),
    Known(("master-port",), '"$MASTER_PORT"'),
)


def backend(request: Request) -> tuple[Known, ...]:
    """Examples take NCCL where nobody says, which needs GPUs."""
    return () if request.job.most_gpus else (Known(("dist-backend", "backend"), "gloo"),)


def filled(request: Request, known: Sequence[Known]) -> tuple[str, ...]:
    """The options that are filled in, as words for a shell, in the order of ``known``."""
    found = ((request.source.option(*entry.names), entry.value) for entry in known)
    return tuple(
        option.flag if not option.takes_value else f"{option.flag} {value}"
        for option, value in found
        if option is not None
        and option.takes_value == (value is not None)
        and not _given(option.flag, request.arguments)
    )


def _given(flag: str, arguments: Sequence[str]) -> bool:
    return any(word == flag or word.startswith(f"{flag}=") for word in arguments)


def command(request: Request, known: Sequence[Known]) -> tuple[str, ...]:
    """The script with what is filled in, and then the user's own arguments."""
    words = python_command(request)
    more = filled(request, known)
    if not more:
        return (*words, *request.arguments)
    return (
        "sh",
        "-c",
        " ".join(("exec", shell_words(words), *more, '"$@"')),
        request.script,
        *request.arguments,
    )
