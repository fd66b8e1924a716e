"""The options that describe a job, and how a command line becomes a layer of settings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

import click

from toolkit.cli.shared import (
    Decorator,
    complete_images,
    complete_runs,
    completion,
    options,
    pattern,
    site_option,
)
from toolkit.launchers import offered
from toolkit.model.slurm_options import OWN, SlurmOption
from toolkit.planning.settings import Layer, named_values
from toolkit.runtimes import RUNTIMES


def split_words(_ctx: click.Context, _param: click.Parameter, text: str | None) -> tuple[str, ...]:
    """Return the words of an option that has several, quoted as in a shell."""
    try:
        return tuple(shlex.split(text or ""))
    except ValueError as error:  # quotes that are not closed
        raise click.BadParameter(f"{text!r} is not valid: {error}") from None


def _number_or_text(match: re.Match[str]) -> int | str:
    return int(match[0]) if match[0].isdigit() else match[0]


NODES = pattern(
    "a number of nodes",
    r"[1-9]\d*([:-][1-9]\d*)?",
    "2, or 1:4 for an elastic run",
    _number_or_text,
)
GPUS = pattern(
    "a number of GPUs",
    r"([\w.+-]+:)?\d+(,\d+)*",
    "4, a100:4 for a type, or 8,4 for two nodes that differ",
    _number_or_text,
)
_TYPES: dict[str, Any] = {
    "text": None,
    "number": click.IntRange(1),
    "nodes": NODES,
    "gpus": GPUS,
}
_TAKEN = "d"  # toolkit run -d is --detach


_OWN_OPTIONS: dict[str, Decorator[Any]] = {
    "image": click.option(
        "--image",
        metavar="NAME|PATH|URI",
        shell_complete=complete_images,
        help="A recipe's name, the path of a SIF, or docker://... or oras://..., which is fetched "
        "once and kept; with --runtime docker or pyxis a reference.",
    ),
    "runtime": click.option(
        "--runtime",
        metavar="NAME",
        shell_complete=completion(lambda: RUNTIMES),
        help=f"What ranks run inside (default apptainer): {', '.join(RUNTIMES)}.",
    ),
    "module": click.option(
        "--module",
        "modules",
        metavar="NAME",
        multiple=True,
        help="Load this module after the site's own modules; repeatable.",
    ),
    "launcher": click.option(
        "--launcher",
        metavar="NAME",
        shell_complete=completion(offered),
        help="How ranks are started (default auto, by what the script imports): "
        f"{', '.join(offered())}.",
    ),
    "bind": click.option(
        "--bind",
        "-B",
        metavar="SRC:DST[:ro]",
        multiple=True,
        help="Show a directory of the host in the container; repeatable.",
    ),
    "env": click.option(
        "--env",
        metavar="K=V|NAME",
        multiple=True,
        help="Set a variable for every rank, or pass one of this shell on; repeatable. "
        "With --runtime conda also: the environment, by name or path.",
    ),
    "secret": click.option(
        "--secret",
        metavar="NAME",
        multiple=True,
        help="Pass a variable of this shell to every rank without showing its value; repeatable.",
    ),
    "after": click.option(
        "--after",
        metavar="RUN",
        multiple=True,
        shell_complete=complete_runs,
        help="Start when this run has succeeded; afterany:RUN: when it has ended. Repeatable.",
    ),
    "sweep": click.option(
        "--sweep",
        metavar="NAME=V,V",
        multiple=True,
        help="Run the script once for each value, given to it as --NAME V, in a job array. "
        "Repeatable: all combinations.",
    ),
    "max_requeues": click.option(
        "--max-requeues",
        metavar="N",
        type=click.IntRange(1),
        help="With --requeue: requeue at most N times (default 20).",
    ),
    "notify": click.option(
        "--notify",
        metavar="mail|URL|@FILE|COMMAND",
        help="Tell of the end: by Slurm's mail, to a URL (better in a file of mode 0600), or by a "
        "command with $NOTIFY_TEXT.",
    ),
    "retry": click.option(
        "--retry",
        metavar="N",
        type=click.IntRange(1),
        help="Start again, at most N times, what a failed node, a preemption or a lost GPU ended, "
        "without the node that failed; never what failed by itself.",
    ),
    "stage_image": click.option(
        "--stage-image/--no-stage-image",
        default=None,
        help="Copy the image to each node's own disk first, where later jobs find it.",
    ),
    "snapshot": click.option(
        "--snapshot/--no-snapshot",
        default=None,
        help="Run a frozen copy of the git work tree; when the run is run again, the same "
        "copy is used.",
    ),
    "pty": click.option(
        "--pty",
        is_flag=True,
        default=None,
        help="Give each rank a terminal; with --interactive, the first rank has yours.",
    ),
    "max_restarts": click.option(
        "--max-restarts",
        type=click.IntRange(0),
        help="Start failed ranks again at most so often (default 0; elastic: 3).",
    ),
    "init": click.option(
        "--init",
        type=click.Choice(("env", "tcp", "file")),
        help="How ranks of the launcher srun find each other (default env).",
    ),
    "require_signed": click.option(
        "--require-signed",
        is_flag=True,
        default=None,
        help="Run the image only if it is signed by --signature-key.",
    ),
    "signature_key": click.option(
        "--signature-key",
        metavar="FILE",
        help="A public key in PEM.",
    ),
    "site": site_option(
        "The cluster (default auto: the local one if it is up, else the Slurm on PATH)."
    ),
    "slurm": click.option(
        "--slurm",
        metavar="NAME[=VALUE]",
        multiple=True,
        help="Any other option of sbatch, by its long name: licenses=matlab:1, mail-user=me@site, "
        "hold. Repeatable.",
    ),
}


def _slurm_option(option: SlurmOption) -> Callable[[Any], Any]:
    names = [f"--{option.name}"]
    names += [f"-{option.short}"] if option.short and option.short not in _TAKEN else []
    if option.kind == "switch":
        return click.option(*names, is_flag=True, default=None, help=option.help)
    return click.option(
        *names, metavar=option.metavar or None, type=_TYPES[option.kind], help=option.help
    )


JOB_OPTIONS = {
    **{option.name.replace("-", "_"): _slurm_option(option) for option in OWN},
    **_OWN_OPTIONS,
}


job_options = options(*JOB_OPTIONS.values())


def job_options_except(*names: str) -> Decorator[Any]:
    """Return the decorator of a command that has options of its own in place of some of a job."""
    return options(*(option for name, option in JOB_OPTIONS.items() if name not in names))


def flags(values: dict[str, Any], arguments: tuple[str, ...]) -> Layer:
    """Return the options of the command line as the topmost layer.

    Raises:
        UsageError: an ``--env`` names no variable.
    """
    given = {key: value for key, value in values.items() if value not in (None, ())}
    given = named_values(given)
    if arguments:
        given["arguments"] = arguments
    return Layer("flag", given)
