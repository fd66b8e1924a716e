"""`toolkit cluster`: a cluster as it is now, and the local one, a real Slurm on this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from toolkit import sites
from toolkit.cli import console
from toolkit.cli.options import NODES
from toolkit.cli.shared import (
    cluster_option,
    complete_sites,
    gpus_option,
    json_option,
    options,
    site_option,
)
from toolkit.errors import SlurmUnreachableError, UsageError
from toolkit.localcluster import lifecycle
from toolkit.localcluster.access import default_name
from toolkit.localcluster.imitation import imitate
from toolkit.localcluster.options import from_file, from_options, with_light
from toolkit.localcluster.packages import gpus_of
from toolkit.localcluster.shape import Shape
from toolkit.localcluster.status import Verb, enter, switch
from toolkit.localcluster.status import status as query
from toolkit.model.base import Model
from toolkit.model.site import PartitionState
from toolkit.planning.settings import chosen, find_cluster
from toolkit.slurm.cluster import partition_states, soonest
from toolkit.units import human_size

_OF_NODES = ("--cpus-per-node", "--mem-per-node", "--gpus-per-node", "--gpu-type")
_DONE: dict[Verb, str] = {
    "cut": "is cut off",
    "join": "is joined",
    "kill": "is switched off",
    "start": "is switched on",
}


def complete_nodes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete NODE."""
    del param
    nodes = query(ctx.params.get("name") or default_name())["nodes"]
    return [node["name"] for node in nodes if node["name"].startswith(incomplete)]


name_option = click.option(
    "--name",
    "--cluster",
    "name",
    metavar="NAME",
    default=default_name,
    show_default=False,
    help="The local cluster (default: $TOOLKIT_CLUSTER, else local).",
)
_node_option = click.option(
    "--node",
    metavar="NODE",
    shell_complete=complete_nodes,
    help="Run on this node (default: on the login side).",
)


@click.command("show")
@click.option(
    "--nodes",
    "-N",
    metavar="N",
    type=NODES,
    help="Ask where a job of so many nodes would start soonest.",
)
@gpus_option("GPUs on each node of this job.", smallest=0)
@click.option("--ntasks-per-node", type=click.IntRange(1), help="Ranks on each node of this job.")
@click.option(
    "--cpus-per-task", "-c", type=click.IntRange(1), help="CPUs for each rank of this job."
)
@click.option("--time", "-t", metavar="TIME", help="Time limit of this job.")
@click.option("--account", "-A", metavar="NAME", help="Account of this job.")
@click.option("--qos", "-q", metavar="NAME", help="Quality of service of this job.")
@click.option(
    "--constraint", "-C", metavar="LIST", help="Features that the nodes of this job must have."
)
@click.option(
    "--comment",
    metavar="TEXT",
    help="Slurm's comment of this job (default: the site's own example, if it requires one).",
)
@site_option("The cluster (default auto, as for `toolkit run`).")
@json_option
@cluster_option
def show(
    nodes: int | str | None,
    gpus: int | None,
    site: str | None,
    as_json: bool,
    **more: int | str | None,
) -> None:
    """Show partitions, free GPUs, limits, and how much of them you use.

    It works on any cluster, also on the one of `toolkit cluster up`. With the shape of a job, it
    asks Slurm where the job would start soonest (sbatch --test-only; nothing is submitted).

    \b
    Examples:
      toolkit cluster show
      toolkit cluster show --nodes 2 --gpus 4 --time 1:00:00
      toolkit cluster show --json
    """
    asked = {
        "nodes": str(nodes).replace(":", "-") if nodes else None,
        "gres": f"gpu:{gpus}" if gpus else None,
    }
    asked |= {
        name.replace("_", "-"): str(value) for name, value in more.items() if value is not None
    }
    shape = [f"--{name}={value}" for name, value in asked.items() if value is not None]
    place = find_cluster(site or chosen(Path.cwd()).site)
    partitions = partition_states(place.client, place.site, shape or None)
    data = {"site": place.site.name, "partitions": [_whole(each) for each in partitions]}
    console.result(data, "\n".join(_lines(partitions, " ".join(shape))), as_json=as_json)


def _whole(value: Any) -> Any:
    """Return a model with all of its keys, also those with default values."""
    if not isinstance(value, Model):
        return value
    return {name: _whole(part) for name, part in structs.asdict(value).items()}


def _lines(partitions: Sequence[PartitionState], shape: str) -> Iterator[str]:
    """Yield the table of partitions, and where a job of a shape would start."""
    header = (
        *("PARTITION", "GPUS PER NODE", "IDLE", "MIXED", "FULL", "DOWN", "FREE GPUS", "TIME"),
        *("YOUR JOBS", "RUNNING", "YOUR GPUS"),
    )
    yield console.table(header, [_row(partition) for partition in partitions])
    sources = [partition.limits.source for partition in partitions if partition.limits.source]
    if sources:
        yield f"limits: {', '.join(dict.fromkeys(sources))}"
    if shape:
        yield ""
        yield from _starts(partitions, shape)


def _row(partition: PartitionState) -> tuple[object, ...]:
    settings, use, limits = partition.settings, partition.use, partition.limits
    minutes = settings.max_minutes
    # As Slurm writes it.
    time = re.sub(" days?, ", "-", str(timedelta(minutes=minutes))) if minutes is not None else ""
    gpus = partition.gpus_per_node
    return (
        settings.name + "*" * settings.default + ("" if settings.available else " (off)"),
        f"{gpus} {partition.gpu}".strip() if gpus else "-",
        *(partition.idle, partition.mixed, partition.full, partition.down),
        f"{partition.gpus_free} of {partition.gpus}" if partition.gpus else "-",
        time or "no limit",
        _of(use.submitted, limits.jobs_submitted),
        _of(use.running, limits.jobs_running),
        _of(use.gpus, limits.gpus) if gpus else "-",
    )


def _of(used: int, limit: int | None) -> str:
    return f"{used} of {limit}" if limit is not None else str(used)


def _starts(partitions: Sequence[PartitionState], shape: str) -> Iterator[str]:
    """Yield the partitions where a job would start, the soonest first.

    Those where it would never start come last.
    """
    able = soonest(partitions)
    rows = [
        (partition.settings.name, partition.start.at.replace("T", " "), partition.start.nodes)
        for partition in able
        if partition.start
    ]
    rows += [
        (partition.settings.name, "never", partition.start.refused)
        for partition in partitions
        if partition.start and not partition.start.at
    ]
    yield f"a job of {shape}, as Slurm guesses now:"
    yield console.table(("PARTITION", "STARTS", "WHERE, OR WHY NOT"), rows)
    if able:
        yield f"next: toolkit run --partition {able[0].settings.name} ..."


@click.command("status")
@name_option
@json_option
def status(name: str, as_json: bool) -> int:
    """Show the nodes and daemons of the cluster.

    The exit code is 69 if it is not up.

    \b
    Examples:
      toolkit cluster status
      toolkit cluster status --json
    """
    try:
        cluster = query(name)
    except SlurmUnreachableError as error:
        if not as_json:
            raise
        console.out_json({"name": name, "up": False})
        return error.exit_code
    console.result(cluster, _describe(cluster), as_json=as_json)
    return 0


def _describe(cluster: dict[str, Any]) -> str:
    """Return the nodes and the daemons of a local cluster as text."""
    header = ("NODE", "STATE", "POWER", "CPUS", "MEMORY", "GPUS", "ADDRESS", "REASON")
    rows = [
        (
            *(node["name"], node["state"], node["power"], node["cpus"]),
            *(human_size(node["memory"] * 1e6), f"{node['gpus']} {node['gpu_type'] or ''}".strip()),
            *(node["address"], node["reason"]),
        )
        for node in cluster["nodes"]
    ]
    gpus = "of this machine" if cluster["real_gpus"] else "simulated"
    is_up, has_sacct = cluster["controller"], cluster["accounting"]
    shared = ", ".join(["everything but /tmp and /dev/shm", *cluster["shared"]])
    light = "everything but host names and addresses: the nodes are light"
    facts = {
        "controller": "answers"
        if is_up
        else "does not answer; next: toolkit cluster down, then up",
        "accounting": "on: sacct answers"
        if has_sacct
        else "off: finished jobs are in squeue --states=all",
        "gpus": gpus if any(node["gpus"] for node in cluster["nodes"]) else "none",
        "logs": cluster["logs"],
        "slurm.conf": cluster["slurm_conf"],
        "shared": light if cluster["light"] else shared,
    }
    return f"{console.table(header, rows)}\n\n{console.mapping(facts)}"


@click.command(
    "exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@name_option
@_node_option
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND...")
def execute(name: str, node: str | None, words: tuple[str, ...]) -> None:
    """Run a command in the cluster: one of Slurm's, or any other.

    The exit code is the command's.

    \b
    Examples:
      toolkit cluster exec -- sbatch job.sbatch
      toolkit cluster exec -- srun -N2 --pty bash
      toolkit cluster exec bash
      toolkit cluster exec --node nid001 -- ps aux
    """
    enter(name, words, node=node)


def _switch_command(verb: Verb, *, wait: bool, summary: str) -> click.Command:
    """Return the command that switches a node.

    Args:
        verb: what it does.
        wait: the default of ``--wait``.
        summary: its help.
    """

    def switch_node(name: str, node: str, wait: bool) -> None:
        with console.Steps() as steps:
            state = switch(name, verb, node, steps, wait=wait)
        console.fact(node, state.state if state else _DONE[verb])

    own = click.option(
        "--wait/--no-wait", default=wait, show_default=True, help="Wait until Slurm has noticed."
    )
    node_argument = click.argument("node", shell_complete=complete_nodes)
    decorate = options(click.command(verb, help=summary), name_option, own, node_argument)
    command: click.Command = decorate(switch_node)
    return command


cut = _switch_command(
    "cut",
    wait=False,
    summary="""Cut NODE off the network, as if its cable was pulled.

Its processes run on. Slurm calls the node down after about 25 s.

\b
Examples:
  toolkit cluster cut nid002
  toolkit cluster cut --wait nid002
""",
)
join = _switch_command(
    "join",
    wait=True,
    summary="""Connect NODE to the network again, and wait until Slurm uses it.

\b
Example:
  toolkit cluster join nid002
""",
)
kill = _switch_command(
    "kill",
    wait=False,
    summary="""Switch NODE off, as a power failure does.

All its processes die at once.

\b
Example:
  toolkit cluster kill nid002
""",
)
start = _switch_command(
    "start",
    wait=True,
    summary="""Switch NODE on again, and wait until Slurm uses it.

\b
Example:
  toolkit cluster start nid002
""",
)


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
    type=click.IntRange(1, 4096),
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
    type=click.IntRange(0, 64),
    default=0,
    show_default=True,
    help="GPUs of each node. They are this machine's if it has enough for all nodes, else "
    "simulated.",
)
@click.option(
    "--gpu-type", metavar="TYPE", help="Type of these GPUs, such as v100, for --gres=gpu:v100:2."
)
@click.option(
    "--partition",
    "partitions",
    metavar="NAME",
    multiple=True,
    help="Partition of all nodes; repeatable (default: main).",
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
    gpus_per_node: int,
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
      toolkit cluster up --shape cluster.toml --name imitation
      toolkit cluster up --like neuron --partition cas_v100_4 --partition gh200_1
      toolkit cluster up --nodes 1000
    """
    if like is not None:
        file = f"a site of yours that extends {like}"
        _require_alone(ctx, "--like", (*_OF_NODES, "--shape"), file)
        shape = imitate(
            sites.load(like, "--like"),
            most=nodes,
            chosen=partitions,
            accounting=accounting,
            local_directory=_local_directory,
        )
    elif shape_file is not None:
        _require_alone(ctx, "--shape", ("--nodes", *_OF_NODES, "--partition"), str(shape_file))
        shape = from_file(shape_file)
        shape = structs.replace(shape, accounting=shape.accounting or accounting)
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
        started = lifecycle.up(name, shape, steps, share=share)
    _show_started(name, is_new=started)


def _show_started(name: str, *, is_new: bool) -> None:
    """Print that a cluster is up, and how to use and stop it."""
    console.fact("cluster", f"{name} is up" if is_new else f"{name} is up already")
    named = "" if name == default_name() else f" --name {name}"
    if named:
        each = f"or with each command: --cluster {name}"
        console.fact("use it", f"export TOOLKIT_CLUSTER={name}     {each}")
    stop = f"stop it: toolkit cluster down{named}"
    console.fact("next", f"toolkit cluster exec{named} -- sinfo     {stop}")


def _gpus(shape: Shape) -> str:
    """Return which GPUs the nodes have, or nothing if they have none."""
    if not any(group.gpus for group in shape.nodes):
        return ""
    if real := gpus_of(shape):
        return f"this machine's: {', '.join(f'/dev/nvidia{number}' for number in real)}"
    return "simulated: Slurm allocates them as real ones, but this machine has none, or fewer"


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
def down(name: str) -> None:
    """Stop the cluster and end its jobs.

    No process, mount, interface or file stays.

    \b
    Example:
      toolkit cluster down
    """
    with console.Steps() as steps:
        was_up = lifecycle.down(name, steps)
    console.fact("cluster", f"{name} is down" if was_up else f"{name} was not up")
