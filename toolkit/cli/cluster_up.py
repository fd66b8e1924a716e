"""`toolkit cluster up` and `down`: a real Slurm on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import click
from msgspec.structs import replace

from toolkit import sites
from toolkit.cli import console
from toolkit.cli.cluster_local import name_option
from toolkit.cli.shared import complete_sites
from toolkit.errors import UsageError
from toolkit.localcluster.access import default_name
from toolkit.localcluster.devices import gpus_of
from toolkit.localcluster.imitation import Imitation, imitate
from toolkit.localcluster.lifecycle import down as take_down
from toolkit.localcluster.lifecycle import up as bring_up
from toolkit.localcluster.options import from_file, from_options, with_light
from toolkit.localcluster.packages import has_submit_plugin
from toolkit.localcluster.paths import paths_of
from toolkit.localcluster.shape import Shape, all_nodes

_OF_NODES = ("--cpus-per-node", "--mem-per-node", "--gpus-per-node", "--gpu-type")


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
def up(
    ctx: click.Context,
    /,
    name: str,
    nodes: int,
    light: bool | None,
    cpus_per_node: int,
    mem_per_node: str,
    gpus_per_node: str,
    gpu_type: str | None,
    partitions: tuple[str, ...],
    shape_file: Path | None,
    like: str | None,
    accounting: bool,
    share: tuple[str, ...],
) -> None:
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
    differences: tuple[str, ...] = ()
    if like is not None:
        file = f"a site of yours that extends {like}"
        _require_alone(ctx, "--like", (*_OF_NODES, "--shape"), file)
        shape, differences = _imitation(like, nodes, partitions, accounting=accounting)
    elif shape_file is not None:
        _require_alone(ctx, "--shape", ("--nodes", *_OF_NODES, "--partition"), str(shape_file))
        shape = from_file(shape_file)
        shape = replace(shape, accounting=shape.accounting or accounting)
    else:
        shape = from_options(
            nodes=nodes,
            cpus=cpus_per_node,
            memory=mem_per_node,
            gpus=gpus_per_node,
            gpu_type=gpu_type,
            partitions=partitions,
            accounting=accounting,
        )
    shape = with_light(shape, light)
    with console.Steps() as steps:
        if text := _gpus(shape):
            steps.say("gpus", text)
        for text in differences:
            steps.say("differs", text)
        started = bring_up(name, shape, steps, share=share)
    console.fact("cluster", f"{name} is up" if started else f"{name} is up already")
    _say_how_to_use(name)


def _say_how_to_use(name: str) -> None:
    named = "" if name == default_name() else f" --name {name}"
    if named:
        each = f"or with each command: --cluster {name}"
        console.fact("use it", f"export TOOLKIT_CLUSTER={name}     {each}")
    stop = f"stop it: toolkit cluster down{named}"
    console.fact("next", f"toolkit cluster exec{named} -- sinfo     {stop}")


def _gpus(shape: Shape) -> str:
    """Return which GPUs the nodes have, or nothing if they have none."""
    if not any(node.gpus for node in all_nodes(shape)):
        return ""
    if real := gpus_of(shape):
        return f"this machine's: {', '.join(f'/dev/nvidia{number}' for number in real)}"
    return "simulated: Slurm allocates them as real ones, but this machine has none, or fewer"


def _imitation(
    name: str, nodes: int, partitions: tuple[str, ...], *, accounting: bool
) -> Imitation:
    """Return the shape of a cluster like a site, and what is different there.

    Raises:
        UnknownSiteError: there is no such site.
    """
    shape, differences = imitate(
        sites.load(name, "--like"),
        most=nodes,
        chosen=partitions,
        accounting=accounting,
        local_directory=_local_directory,
    )
    if has_submit_plugin():
        return Imitation(shape, differences)
    missing = "Slurm does not apply the rules: it lacks the plugin job_submit/lua"
    return Imitation(replace(shape, job_submit=""), (*differences, missing))


def _local_directory(text: str) -> str:
    """Return a directory of a site if this machine has it, else an empty string."""
    path = Path(os.path.expandvars(text))
    return str(path.resolve()) if path.is_dir() else ""


def _require_alone(ctx: click.Context, flag: str, others: tuple[str, ...], file: str) -> None:
    """Raise UsageError if an option was given that describes what another one does.

    Args:
        ctx: the command line.
        flag: the option that describes it.
        others: the options that do not go with it.
        file: where it can be written instead.
    """
    for parameter in ctx.command.params:
        option, source = parameter.opts[0], ctx.get_parameter_source(str(parameter.name))
        if option in others and source is not click.core.ParameterSource.DEFAULT:
            raise UsageError(
                f"{option} and {flag} both describe the cluster",
                place=option,
                next_step=f"write it in {file}",
            )


@click.command("down")
@name_option
@click.option("--keep-logs", is_flag=True, help="Keep the logs; all other files are removed.")
def down(name: str, keep_logs: bool) -> None:
    """Stop the cluster and end its jobs.

    No process, mount, interface or file stays.

    \b
    Examples:
      toolkit cluster down
      toolkit cluster down --keep-logs
    """
    with console.Steps() as steps:
        was_up = take_down(name, steps, keep_logs=keep_logs)
    console.fact("cluster", f"{name} is down" if was_up else f"{name} was not up")
    if keep_logs and was_up:
        console.fact("logs", str(paths_of(name).logs))
