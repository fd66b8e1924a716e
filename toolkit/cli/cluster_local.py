"""The local cluster that is up: `toolkit cluster status`, `exec`, `shell`, and faults of nodes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from toolkit.cli import console
from toolkit.cli.shared import Decorator, json_option, options
from toolkit.errors import SlurmUnreachableError
from toolkit.localcluster.access import all_up, default_name
from toolkit.localcluster.control import Verb
from toolkit.localcluster.enter import enter, interactive
from toolkit.localcluster.status import Status, switch
from toolkit.localcluster.status import status as query
from toolkit.units import human_size

_DONE: dict[Verb, str] = {
    "cut": "is cut off",
    "join": "is joined",
    "kill": "is switched off",
    "start": "is switched on",
}


def complete_nodes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete NODE."""
    del param
    nodes = query(ctx.params.get("name") or default_name()).nodes
    return [node.name for node in nodes if node.name.startswith(incomplete)]


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


@click.command("status")
@name_option
@json_option
def status(name: str, as_json: bool) -> int:
    """Show the nodes, partitions and daemons of the cluster.

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
    if as_json:
        console.out_json(asdict(cluster))
    else:
        _show(cluster, tuple(other for other in all_up() if other != name))
    return 0


def _show(cluster: Status, others: tuple[str, ...]) -> None:
    header = ("NODE", "STATE", "POWER", "CPUS", "MEMORY", "GPUS", "ADDRESS", "REASON")
    rows = [
        (
            *(node.name, node.state, node.power, node.cpus, human_size(node.memory * 1e6)),
            *(f"{node.gpus} {node.gpu_type or ''}".strip(), node.address, node.reason),
        )
        for node in cluster.nodes
    ]
    console.out(console.table(header, rows))
    console.out()
    limits = [
        (
            part.name + "*" * part.default,
            part.nodes,
            part.max_nodes or "no limit",
            part.max_time or "no limit",
        )
        for part in cluster.partitions
    ]
    console.out(console.table(("PARTITION", "NODES", "MAX-NODES", "MAX-TIME"), limits))
    console.out()
    gpus = "of this machine" if cluster.real_gpus else "simulated"
    facts = {
        "controller": "answers"
        if cluster.controller
        else "does not answer; next: toolkit cluster down, then up",
        "accounting": "on: sacct answers"
        if cluster.accounting
        else "off: finished jobs are in squeue --states=all",
        "gpus": gpus if any(node.gpus for node in cluster.nodes) else "none",
        "logs": cluster.logs,
        "slurm.conf": cluster.slurm_conf,
        "shared": "everything but host names and addresses: the nodes are light"
        if cluster.light
        else ", ".join(["everything but /tmp and /dev/shm", *cluster.shared]),
    }
    console.out(console.mapping(facts | ({"also up": ", ".join(others)} if others else {})))


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
      toolkit cluster exec --node nid001 -- ps aux
    """
    enter(name, words, node=node)


@click.command("shell")
@name_option
@_node_option
def shell(name: str, node: str | None) -> None:
    """Open a shell on the login side of the cluster, with sbatch and srun.

    \b
    Examples:
      toolkit cluster shell
      toolkit cluster shell --node nid001
    """
    enter(name, interactive(), node=node)


def _switch_options(*, wait: bool) -> Decorator[Any]:
    """Return the options of these commands; ``wait`` is the default of ``--wait``."""
    return options(
        name_option,
        click.option(
            "--wait/--no-wait",
            default=wait,
            show_default=True,
            help="Wait until Slurm has noticed.",
        ),
        click.argument("node", shell_complete=complete_nodes),
    )


def _switch(verb: Verb, name: str, node: str, *, wait: bool) -> None:
    with console.Steps() as steps:
        state = switch(name, verb, node, steps, wait=wait)
    console.fact(node, state.state if state else _DONE[verb])


@click.command("cut")
@_switch_options(wait=False)
def cut(name: str, wait: bool, node: str) -> None:
    """Cut NODE off the network, as if its cable was pulled.

    Its processes run on. Slurm calls the node down after about 25 s.

    \b
    Examples:
      toolkit cluster cut nid002
      toolkit cluster cut --wait nid002
    """
    _switch("cut", name, node, wait=wait)


@click.command("join")
@_switch_options(wait=True)
def join(name: str, wait: bool, node: str) -> None:
    """Connect NODE to the network again, and wait until Slurm uses it.

    \b
    Example:
      toolkit cluster join nid002
    """
    _switch("join", name, node, wait=wait)


@click.command("kill")
@_switch_options(wait=False)
def kill(name: str, wait: bool, node: str) -> None:
    """Switch NODE off, as a power failure does.

    All its processes die at once.

    \b
    Example:
      toolkit cluster kill nid002
    """
    _switch("kill", name, node, wait=wait)


@click.command("start")
@_switch_options(wait=True)
def start(name: str, wait: bool, node: str) -> None:
    """Switch NODE on again, and wait until Slurm uses it.

    \b
    Example:
      toolkit cluster start nid002
    """
    _switch("start", name, node, wait=wait)
