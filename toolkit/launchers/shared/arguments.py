"""Arguments that a launcher fills in: those that the script defines and the user has not given.

What a rank learns when it starts (its number, where the others are) is in its environment; a shell
in the container expands it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from toolkit.model.case import Case
from toolkit.quoting import shell_words


class Argument(NamedTuple):
    """An argument that a launcher can fill in.

    Attributes:
        names: names that scripts give the option, with ``-``: ``("dist-url", "init-method")``.
        value: for the shell: ``"$INIT_METHOD"`` or a plain word; None for a switch.
    """

    names: tuple[str, ...]
    value: str | None


MEETING = (
    Argument(("dist-url", "init-method", "dist-init"), '"$INIT_METHOD"'),
    Argument(("master-addr", "master-ip"), '"$MASTER_ADDR"'),
    Argument(("master-port",), '"$MASTER_PORT"'),
)


def backend(case: Case) -> tuple[Argument, ...]:
    """Return the argument for Gloo in a job without GPUs: the default of most scripts is NCCL."""
    return () if case.job.most_gpus else (Argument(("dist-backend", "backend"), "gloo"),)


def launcher(case: Case, name: str) -> tuple[Argument, ...]:
    """Return the argument that tells scripts of OpenMMLab what starts their ranks.

    Without it each of them trains alone.
    """
    is_openmmlab = case.source.imports_any("mmengine", "mmcv")
    return (Argument(("launcher",), name),) if is_openmmlab else ()


def words(case: Case, arguments: Sequence[Argument]) -> tuple[str, ...]:
    """Return arguments with plain values that are filled in."""
    return tuple(" ".join(_filled(case, argument) for argument in arguments).split())


def command(case: Case, arguments: Sequence[Argument]) -> tuple[str, ...]:
    """Return the script with the arguments that are filled in, then the user's own arguments."""
    filled = [words for argument in arguments if (words := _filled(case, argument))]
    if not filled:
        return (*case.command, *case.job.arguments)
    return (
        "sh",
        "-c",
        " ".join(("exec", shell_words(case.command), *filled, '"$@"')),
        case.target.script,
        *case.job.arguments,
    )


def _filled(case: Case, argument: Argument) -> str:
    """Return an argument as words for a shell; empty if it is not filled in."""
    option = case.source.option(*argument.names)
    if option is None or option.takes_value != (argument.value is not None):
        return ""
    is_given = any(
        word == option.flag or word.startswith(f"{option.flag}=") for word in case.job.arguments
    )
    if is_given:
        return ""
    return option.flag if argument.value is None else f"{option.flag} {argument.value}"
