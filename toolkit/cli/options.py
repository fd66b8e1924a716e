"""Options of a job that more than one verb has, and how a command line becomes a layer of settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from toolkit.errors import UsageError
from toolkit.launchers import LAUNCHERS
from toolkit.settings import Layer

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def _images(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Tab completion of --image: recipes and built images."""
    del ctx, param
    from toolkit.images import store

    names = {*store.recipe_names(), *store.image_names(store.images_directory())}
    return sorted(name for name in names if name.startswith(incomplete))


def _launchers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    del ctx, param
    return [name for name in LAUNCHERS if name.startswith(incomplete)]


def _sites(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    del ctx, param
    from toolkit import sites

    return [name for name in ("auto", *sites.names()) if name.startswith(incomplete)]


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Tab completion of RUN: the runs of the directory that is asked for."""
    del param
    from toolkit.runs.store import all_runs

    return [paths.name for paths in all_runs(Path(ctx.params.get("runs") or "runs")) if paths.name.startswith(incomplete)]


JOB_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option("--image", metavar="NAME|PATH", shell_complete=_images, help="A recipe's name, or the path of a SIF."),
    click.option("--nodes", "-N", type=click.IntRange(1), help="Nodes (default 1)."),
    click.option("--ntasks-per-node", type=click.IntRange(1), help="Ranks on each node (default: one per GPU, else 1)."),
    click.option("--gpus", "--gpus-per-node", "gpus", type=click.IntRange(0), help="GPUs on each node (default 0)."),
    click.option("--cpus-per-task", "-c", type=click.IntRange(1), help="CPUs for each rank (default: the GPUs' share of the node)."),
    click.option("--time", "-t", metavar="TIME", help="Limit: MM, HH:MM:SS or D-HH:MM:SS (default: the partition's)."),
    click.option("--partition", "-p", metavar="NAME", help="Partition (default: the cluster's)."),
    click.option("--comment", metavar="TEXT", help="Slurm's comment; some sites require one."),
    click.option("--job-name", "-J", metavar="NAME", help="Name of the job and of its run's directory (default: the script's)."),
    click.option("--bind", "-B", metavar="SRC:DST[:ro]", multiple=True, help="Show a directory of the host in the container; repeatable."),
    click.option("--env", metavar="K=V", multiple=True, help="Set a variable for every rank; repeatable."),
    click.option(
        "--launcher", metavar="NAME", shell_complete=_launchers, help=f"How ranks are started (default torchrun): {', '.join(LAUNCHERS)}."
    ),
    click.option(
        "--site", metavar="NAME", shell_complete=_sites, help="The cluster (default auto: the local one if it is up, else PATH's)."
    ),
)


def job_options(function: AnyFunction) -> AnyFunction:
    """Give a command all options that describe a job."""
    for option in reversed(JOB_OPTIONS):
        function = option(function)
    return function


def flags(values: dict[str, Any], arguments: tuple[str, ...]) -> Layer:
    """What was said on the command line, as the topmost layer.

    Raises:
        UsageError: an ``--env`` has no ``=``.
    """
    said = {key: value for key, value in values.items() if value not in (None, ())}
    if "env" in said:
        said["env"] = dict(_variable(text) for text in said["env"])
    if arguments:
        said["arguments"] = arguments
    return Layer("flag", said)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{text!r} is not NAME=VALUE", place="--env", next_step=f"--env {name or 'NAME'}=VALUE")
    return name, value
