"""The command `toolkit cluster up`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from toolkit.cli import console
from toolkit.cli.shared import complete_sites
from toolkit.errors import UsageError
from toolkit.localcluster.access import default_name

if TYPE_CHECKING:
    from toolkit.localcluster.imitation import Imitation
    from toolkit.localcluster.shape import Shape

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def name_option(function: AnyFunction) -> AnyFunction:
    """Add the option that names the local cluster that a command acts on."""
    help_text = "The local cluster (default: $TOOLKIT_CLUSTER, else local)."
    return click.option(
        "--name",
        "--cluster",
        "name",
        metavar="NAME",
        default=default_name,
        show_default=False,
        help=help_text,
    )(function)


def complete_nodes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete NODE."""
    del param
    from toolkit.localcluster.status import status

    return [
        node.name
        for node in status(ctx.params.get("name") or default_name()).nodes
        if node.name.startswith(incomplete)
    ]


@click.command("up")
@name_option
@click.option(
    "--nodes",
    type=click.IntRange(1, 1000),
    default=2,
    show_default=True,
    help="Number of nodes; they are called nid001, nid002, ...",
)
@click.option(
    "--light/--no-light",
    default=None,
    help="Nodes share processes, network and /tmp; see above (default: above 200 nodes).",
)
@click.option(
    "--cpus-per-node",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="CPUs of each node; may be more than this machine has.",
)
@click.option(
    "--mem-per-node",
    metavar="SIZE",
    default="4000",
    show_default=True,
    help="Memory of each node in MB, or with a unit: 16G; may be more than this machine has.",
)
@click.option(
    "--gpus-per-node",
    metavar="N[,N...]",
    default="0",
    show_default=True,
    help="GPUs of each node: one number, or one for each node. They are this machine's if it has "
    "enough for all nodes, else simulated.",
)
@click.option(
    "--gpu-type", metavar="TYPE", help="Type of these GPUs, such as v100, for --gres=gpu:v100:2."
)
@click.option(
    "--partition",
    "partitions",
    metavar="SPEC",
    multiple=True,
    help="NAME[:KEY=VALUE,...]; repeatable (default: main). See above.",
)
@click.option(
    "--shape",
    "shape_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Nodes and partitions from a TOML file.",
)
@click.option(
    "--like",
    metavar="SITE",
    shell_complete=complete_sites,
    help="Imitate a site's partitions and rules, with --nodes of each; with --partition,"
    " only these.",
)
@click.option(
    "--accounting", is_flag=True, help="Run slurmdbd and MariaDB too, so that sacct answers."
)
@click.option(
    "--share",
    type=click.Path(),
    metavar="DIR",
    multiple=True,
    help="Directory below /tmp that all nodes share; repeatable.",
)
@click.pass_context
def up(ctx: click.Context, /, name: str, share: tuple[str, ...], **options: Any) -> None:
    """Start a local cluster: nodes and partitions as you describe them.

    If it is up already, nothing happens.

    \b
    A partition with all of its settings:
      NAME:nodes=nid[001-002],max-nodes=2,max-time=1:00:00,default-time=10:00,default
    A shape file has nodes that differ, and literal lines of slurm.conf:
      extra = ["PriorityType=priority/multifactor"]
      [[nodes]]
      names = "gpu[01-02]"       # cpus, memory (MB), gpus, gpu_type, features
      [[partitions]]
      name = "long"              # nodes, default, max_nodes, max_time, default_time, options

    All nodes have the working directory and your home, also below /tmp.

    Above 200 nodes, or with --light, nodes are light: each has a real slurmd, a host name and an
    address, but they share processes, ports, /tmp and /dev/shm. So a process that leaves its job's
    session outlives the job, a job may take more memory than it asked for, MPI over PMIx works
    with one node only, and no cable can be cut.

    \b
    Examples:
      toolkit cluster up
      toolkit cluster up --nodes 4 --cpus-per-node 40 --gpus-per-node 8 --gpu-type a100
      toolkit cluster up --gpus-per-node 4,2 --partition debug:max-nodes=1 --partition all:default
      toolkit cluster up --shape cluster.toml --name imitation
      toolkit cluster up --like neuron --partition cas_v100_4 --partition gh200_1
      toolkit cluster up --nodes 1000
    """
    from toolkit.localcluster.lifecycle import up as bring_up
    from toolkit.localcluster.options import with_light

    imitated = _imitation(ctx, **options)
    shape = imitated.shape if imitated else _shape_of(ctx, **options)
    shape = with_light(shape, options["light"])
    with console.Steps() as steps:
        if text := _gpus(shape):
            steps.say("gpus", text)
        for text in imitated.differences if imitated else ():
            steps.say("differs", text)
        started = bring_up(name, shape, steps, share=share)
    named = "" if name == default_name() else f" --name {name}"
    console.fact("cluster", f"{name} is up" if started else f"{name} is up already")
    if named:
        console.fact(
            "use it", f"export TOOLKIT_CLUSTER={name}     or with each command: --cluster {name}"
        )
    console.fact(
        "next", f"toolkit cluster exec{named} -- sinfo     stop it: toolkit cluster down{named}"
    )


def _gpus(shape: Shape) -> str:
    """Return which GPUs the nodes have, or nothing if they have none."""
    from toolkit.localcluster.devices import gpus_of
    from toolkit.localcluster.shape import all_nodes

    if not any(node.gpus for node in all_nodes(shape)):
        return ""
    if real := gpus_of(shape):
        return f"this machine's: {', '.join(f'/dev/nvidia{number}' for number in real)}"
    return "simulated: Slurm allocates them as real ones, but this machine has none, or fewer"


def _shape_of(ctx: click.Context, *, shape_file: Path | None, nodes: int, **options: Any) -> Shape:
    """Return the shape from a file or from options, not from both.

    Raises:
        UsageError: an option is invalid, or describes what the file describes.
    """
    from msgspec.structs import replace

    from toolkit.localcluster import options as shapes

    if shape_file is None:
        return shapes.from_options(
            nodes=nodes,
            cpus=options["cpus_per_node"],
            memory=options["mem_per_node"],
            gpus=options["gpus_per_node"],
            gpu_type=options["gpu_type"],
            partitions=options["partitions"],
            accounting=options["accounting"],
        )
    _require_alone(
        ctx,
        "--shape",
        str(shape_file),
        ("nodes", "cpus_per_node", "mem_per_node", "gpus_per_node", "gpu_type", "partitions"),
    )
    shape = shapes.from_file(shape_file)
    return replace(shape, accounting=True) if options["accounting"] else shape


def _imitation(
    ctx: click.Context,
    *,
    like: str | None,
    nodes: int,
    partitions: tuple[str, ...],
    accounting: bool,
    **_: Any,
) -> Imitation | None:
    """Return the imitation of a site, or None without ``--like``.

    Raises:
        UnknownSiteError: there is no such site.
        UsageError: an option describes what the site describes.
    """
    if like is None:
        return None
    from msgspec.structs import replace

    from toolkit import sites
    from toolkit.localcluster import packages
    from toolkit.localcluster.imitation import Imitation, imitate

    others = ("cpus_per_node", "mem_per_node", "gpus_per_node", "gpu_type", "shape_file")
    _require_alone(ctx, "--like", f"a site of yours that extends {like}", others)
    imitated = imitate(
        sites.load(like, "--like"),
        most=nodes,
        chosen=partitions,
        accounting=accounting,
        local_directory=_local_directory,
    )
    if packages.has_submit_plugin():
        return imitated
    missing = "Slurm does not apply the rules: it lacks the plugin job_submit/lua"
    return Imitation(replace(imitated.shape, job_submit=""), (*imitated.differences, missing))


def _local_directory(text: str) -> str:
    """Return a directory of a site if this machine has it, else an empty string."""
    path = Path(os.path.expandvars(text))
    return str(path.resolve()) if path.is_dir() else ""


def _require_alone(ctx: click.Context, flag: str, file: str, others: tuple[str, ...]) -> None:
    """Raise UsageError if one of the options ``others`` was given beside a flag."""
    flags = {"partitions": "--partition", "shape_file": "--shape"}
    for option in others:
        if ctx.get_parameter_source(option) is not click.core.ParameterSource.DEFAULT:
            other = flags.get(option, "--" + option.replace("_", "-"))
            raise UsageError(
                f"{other} and {flag} both describe the cluster",
                place=other,
                next_step=f"write it in {file}",
            )
