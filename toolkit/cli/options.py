"""Options of a job that more than one verb has, and how a command line becomes a layer of settings."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from toolkit.errors import UsageError
from toolkit.launchers import LAUNCHERS
from toolkit.planning.settings import Layer
from toolkit.runtimes import RUNTIMES


class Pattern(click.ParamType):  # type: ignore[type-arg]  # only generic in newer versions
    """A number, or text of a form that is told by an example.

    Args:
        name: what it is, for the help.
        form: a regular expression of the whole text.
        example: such a text.
    """

    def __init__(self, name: str, form: str, example: str) -> None:
        self.name = name
        self.form = form
        self.example = example

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        text = str(value)
        if not re.fullmatch(self.form, text, re.ASCII):
            self.fail(f"{text!r} is no {self.name}; {self.example} would be", param, ctx)
        return int(text) if text.isdigit() else text


NODES = Pattern("number of nodes", r"[1-9]\d*([:-][1-9]\d*)?", "2, or 1:4 for an elastic run,")
GPUS = Pattern("number of GPUs", r"\d+(,\d+)*", "4, or 8,4 for two nodes that differ,")

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def _images(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Tab completion of --image: recipes and built images."""
    del ctx, param
    from toolkit.images.store import store

    names = {*store.recipe_names(), *store.image_names(store.images_directory())}
    return sorted(name for name in names if name.startswith(incomplete))


def _launchers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    del ctx, param
    return [name for name in LAUNCHERS if name.startswith(incomplete)]


def _runtimes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    del ctx, param
    return [name for name in RUNTIMES if name.startswith(incomplete)]


def _environments(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete --env by the environments of a runtime that has named ones."""
    del param
    runtime = RUNTIMES.get(ctx.params.get("runtime") or "")
    names = runtime.environment_names() if runtime else ()
    return [name for name in names if name.startswith(incomplete)]


def complete_sites(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    del ctx, param
    from toolkit import sites

    return [name for name in ("auto", *sites.names()) if name.startswith(incomplete)]


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Tab completion of RUN: the runs of the directory that is asked for."""
    del param
    from toolkit.runs.store import all_runs

    return [
        paths.name
        for paths in all_runs(Path(ctx.params.get("runs") or "runs"))
        if paths.name.startswith(incomplete)
    ]


def complete_after(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Tab completion of --after."""
    how, colon, name = incomplete.rpartition(":")
    return [how + colon + run for run in complete_runs(ctx, param, name)]


JOB_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--image",
        metavar="NAME|PATH|URI",
        shell_complete=_images,
        help="A recipe's name, the path of a SIF, or docker://... or oras://..., which is fetched once and kept; "
        "with --runtime docker or pyxis a reference.",
    ),
    click.option(
        "--runtime",
        metavar="NAME",
        shell_complete=_runtimes,
        help=f"What ranks run inside (default apptainer): {', '.join(RUNTIMES)}.",
    ),
    click.option(
        "--module",
        "modules",
        metavar="NAME",
        multiple=True,
        help="Load a module of the site after its own; repeatable.",
    ),
    click.option(
        "--nodes",
        "-N",
        metavar="N|MIN:MAX",
        type=NODES,
        help="Nodes (default 1); 1:4 takes what there is, and goes on when one is lost.",
    ),
    click.option(
        "--ntasks-per-node",
        type=click.IntRange(1),
        help="Ranks on each node (default: one per GPU, else 1).",
    ),
    click.option(
        "--gpus-per-node",
        metavar="N|N,N",
        type=GPUS,
        help="GPUs on each node (default 0); 8,4 for two nodes that differ.",
    ),
    click.option(
        "--gpus",
        metavar="N|N,N",
        type=GPUS,
        help="The same as --gpus-per-node; where a node has fewer, the GPUs of the job, as in Slurm.",
    ),
    click.option(
        "--cpus-per-task",
        "-c",
        type=click.IntRange(1),
        help="CPUs for each rank (default: the GPUs' share of the node).",
    ),
    click.option(
        "--time",
        "-t",
        metavar="TIME",
        help="Limit: MM, HH:MM:SS or D-HH:MM:SS (default: the partition's).",
    ),
    click.option("--partition", "-p", metavar="NAME", help="Partition (default: the cluster's)."),
    click.option("--comment", metavar="TEXT", help="Slurm's comment; some sites require one."),
    click.option(
        "--job-name",
        "-J",
        metavar="NAME",
        help="Name of the job and of its run's directory (default: the script's).",
    ),
    click.option(
        "--bind",
        "-B",
        metavar="SRC:DST[:ro]",
        multiple=True,
        help="Show a directory of the host in the container; repeatable.",
    ),
    click.option(
        "--secret",
        metavar="NAME",
        multiple=True,
        help="Give every rank a variable of this shell, and show its value nowhere; repeatable.",
    ),
    click.option(
        "--env",
        metavar="K=V|NAME",
        multiple=True,
        shell_complete=_environments,
        help="Set a variable for every rank, or pass one of this shell on; repeatable. "
        "With --runtime conda also: the environment, by name or path.",
    ),
    click.option(
        "--launcher",
        metavar="NAME",
        shell_complete=_launchers,
        help=f"How ranks are started (default auto, by what the script imports): {', '.join(LAUNCHERS)}.",
    ),
    click.option(
        "--max-restarts",
        type=click.IntRange(0),
        help="How often failed ranks are started again (default 0; elastic: 3).",
    ),
    click.option(
        "--init",
        type=click.Choice(("env", "tcp", "file")),
        help="How ranks of the launcher srun find each other (default env).",
    ),
    click.option(
        "--mem", metavar="SIZE", help="Memory on each node, as 16G (default: the partition's)."
    ),
    click.option("--account", "-A", metavar="NAME", help="Account that is charged."),
    click.option("--qos", "-q", metavar="NAME", help="Quality of service."),
    click.option("--constraint", "-C", metavar="LIST", help="Features that the nodes must have."),
    click.option(
        "--nodelist", "-w", metavar="HOSTS", help="Nodes that must be among those of the job."
    ),
    click.option("--exclude", "-x", metavar="HOSTS", help="Nodes that must not."),
    click.option(
        "--exclusive", is_flag=True, default=None, help="Share the nodes with no other job."
    ),
    click.option("--reservation", metavar="NAME", help="Reservation that the job belongs to."),
    click.option(
        "--after",
        metavar="RUN",
        multiple=True,
        shell_complete=complete_after,
        help="Start when this run has ended well; afterany:RUN: in whatever way. Repeatable.",
    ),
    click.option("--dependency", metavar="LIST", help="Start after other jobs: afterok:7."),
    click.option(
        "--signal",
        metavar="SIGNAL",
        help="Signal before the time limit: B:USR1@60 (to the batch shell, 60 s before).",
    ),
    click.option(
        "--array",
        "-a",
        metavar="LIST",
        help="As many jobs as numbers, each with its own SLURM_ARRAY_TASK_ID: 0-9%2.",
    ),
    click.option(
        "--sweep",
        metavar="NAME=V,V",
        multiple=True,
        help="A job array with an element for each value, given to the script as --NAME V; repeatable: each with each.",
    ),
    click.option(
        "--requeue",
        is_flag=True,
        default=None,
        help="Go back into the queue before the time is over, and go on from what was saved. Ranks get USR1 120 s before the limit, or "
        "what --signal says, perhaps twice. After it, exit code 0 means finished; any other (75 is usual), or none, means go on.",
    ),
    click.option(
        "--max-requeues",
        metavar="N",
        type=click.IntRange(1),
        help="With --requeue: how often at most (default 20).",
    ),
    click.option(
        "--snapshot/--no-snapshot",
        default=None,
        help="Run a frozen copy of the git work tree; running the run again runs it, too.",
    ),
    click.option(
        "--pty",
        is_flag=True,
        default=None,
        help="Give each rank a terminal; with --interactive the first has yours.",
    ),
    click.option(
        "--require-signed",
        is_flag=True,
        default=None,
        help="Run the image only if it is signed by --signature-key.",
    ),
    click.option(
        "--signature-key",
        metavar="FILE|FINGERPRINT",
        help="A public key in PEM, or the fingerprint of a PGP key.",
    ),
    click.option(
        "--site",
        metavar="NAME",
        shell_complete=complete_sites,
        help="The cluster (default auto: the local one if it is up, else PATH's).",
    ),
)


def job_options(function: AnyFunction) -> AnyFunction:
    """Give a command all options that describe a job."""
    for option in reversed(JOB_OPTIONS):
        function = option(function)
    return function


def flags(values: dict[str, Any], arguments: tuple[str, ...]) -> Layer:
    """Return the options of the command line as the topmost layer.

    Raises:
        UsageError: an ``--env`` names no variable.
    """
    said = {key: value for key, value in values.items() if value not in (None, ())}
    if "env" in said:
        given = said.pop("env")
        variables = dict(_variable(text) for text in given if "=" in text)
        passed = tuple(text for text in given if "=" not in text)
        if "" in passed:
            raise _not_a_variable("")
        said |= {"env": variables} if variables else {}
        said |= {"pass_env": passed} if passed else {}
    if arguments:
        said["arguments"] = arguments
    return Layer("flag", said)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise _not_a_variable(text)
    return name, value


def _not_a_variable(text: str) -> UsageError:
    cause = f"--env expects NAME=VALUE, or NAME for a variable that is set here, got {text!r}"
    return UsageError(cause, place="--env", next_step="--env NAME=VALUE")
