"""The command `toolkit cluster`: a real Slurm on this machine."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from toolkit.cli import cluster_show, cluster_up, console
from toolkit.cli.cluster_up import cluster_option
from toolkit.cli.shared import json_option
from toolkit.errors import SlurmUnreachableError
from toolkit.localcluster.access import default_name
from toolkit.localcluster.control import Verb
from toolkit.units import human_size

if TYPE_CHECKING:
    from toolkit.localcluster.status import Status


def _node_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete NODE."""
    del param
    from toolkit.localcluster.status import status

    return [
        node.name
        for node in status(ctx.params.get("name") or default_name()).nodes
        if node.name.startswith(incomplete)
    ]


@click.group("cluster", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Show the cluster's free nodes, and run a real Slurm on this machine.

    The local cluster is slurmctld, and a slurmd for each node.

    Without a command it is `show`: partitions, free GPUs, limits, of the cluster that `toolkit run`
    would take.

    Every node has a host name, an address, a /tmp and a /dev/shm of its own, and processes that die
    with it. Everything else is shared, as on a cluster with a parallel file system. It needs no
    root where Slurm is installed.

    \b
    Examples:
      toolkit cluster
      toolkit cluster show --nodes 2 --gpus 4 --time 1:00:00
      toolkit cluster up --nodes 2 --gpus-per-node 2
      toolkit cluster exec -- srun -N2 hostname
      toolkit cluster kill nid002
      toolkit cluster down
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(cluster_show.command)


command.add_command(cluster_show.command)
command.add_command(cluster_up.up)


@command.command("down")
@cluster_option
@click.option("--keep-logs", is_flag=True, help="Keep the logs; all other files are removed.")
def down(name: str, keep_logs: bool) -> None:
    """Take the cluster down and end its jobs: no process, mount, interface or file stays.

    \b
    Examples:
      toolkit cluster down
      toolkit cluster down --keep-logs
    """
    from toolkit.localcluster.down import down as take_down
    from toolkit.localcluster.paths import paths_of

    with console.Steps() as steps:
        was_up = take_down(name, steps, keep_logs=keep_logs)
    console.out(console.subject("cluster", f"{name} is down" if was_up else f"{name} was not up"))
    if keep_logs and was_up:
        console.out(console.subject("logs", str(paths_of(name).logs)))


@command.command("status")
@cluster_option
@json_option
def status(name: str, as_json: bool) -> int:
    """Show the nodes, partitions and daemons of the cluster. Exit code 69 if it is not up.

    \b
    Examples:
      toolkit cluster status
      toolkit cluster status --json
    """
    from toolkit.localcluster import status as query
    from toolkit.localcluster.access import all_up

    try:
        cluster = query.status(name)
    except SlurmUnreachableError as error:
        if not as_json:
            raise
        console.out_json({"name": name, "up": False})
        return error.exit_code
    if as_json:
        console.out_json(dataclasses.asdict(cluster))
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
    facts = {
        "controller": "answers"
        if cluster.controller
        else "does not answer; next: toolkit cluster down, then up",
        "accounting": "on: sacct answers"
        if cluster.accounting
        else "off: finished jobs are in squeue --states=all",
        "gpus": "simulated" if any(node.gpus for node in cluster.nodes) else "none",
        "logs": cluster.logs,
        "slurm.conf": cluster.slurm_conf,
        "shared": ", ".join(["everything but /tmp and /dev/shm", *cluster.shared]),
    }
    console.out(console.mapping(facts | ({"also up": ", ".join(others)} if others else {})))


@command.command(
    "exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@cluster_option
@click.option(
    "--node",
    metavar="NODE",
    shell_complete=_node_names,
    help="On this node; without it, on the login side.",
)
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND...")
def execute(name: str, node: str | None, words: tuple[str, ...]) -> None:
    """Run a command in the cluster: Slurm's own, or any other, whose exit code is returned.

    \b
    Examples:
      toolkit cluster exec -- sbatch job.sbatch
      toolkit cluster exec -- srun -N2 --pty bash
      toolkit cluster exec --node nid001 -- ps aux
    """
    from toolkit.localcluster.enter import enter

    enter(name, words, node=node)


@command.command("shell")
@cluster_option
@click.option(
    "--node",
    metavar="NODE",
    shell_complete=_node_names,
    help="On this node; without it, on the login side.",
)
def shell(name: str, node: str | None) -> None:
    """Open a shell on the login side of the cluster, where sbatch, srun and the others are at hand.

    \b
    Examples:
      toolkit cluster shell
      toolkit cluster shell --node nid001
    """
    from toolkit.localcluster.enter import enter, interactive

    enter(name, interactive(), node=node)


def _switch(verb: Verb, help_text: str, *, wait: bool) -> None:
    @command.command(verb, help=help_text)
    @cluster_option
    @click.option(
        "--wait/--no-wait", default=wait, show_default=True, help="Wait until Slurm has noticed."
    )
    @click.argument("node", shell_complete=_node_names)
    def switch(name: str, wait: bool, node: str) -> None:
        from toolkit.localcluster.status import switch as act

        with console.Steps() as steps:
            state = act(name, verb, node, steps, wait=wait)
        console.out(console.subject(node, state.state if state else _DONE[verb]))


_DONE: dict[Verb, str] = {
    "cut": "is cut off",
    "join": "is joined",
    "kill": "is switched off",
    "start": "is switched on",
}

_switch(
    "cut",
    """Pull the network cable of NODE. Its processes run on; Slurm calls it down after about 25 s.

    \b
    Examples:
      toolkit cluster cut nid002
      toolkit cluster cut --wait nid002
    """,
    wait=False,
)
_switch(
    "join",
    """Put the network cable of NODE back, and wait until Slurm uses it again.

    \b
    Example:
      toolkit cluster join nid002
    """,
    wait=True,
)
_switch(
    "kill",
    """Switch NODE off, as a power failure does: all that runs there dies at once.

    \b
    Example:
      toolkit cluster kill nid002
    """,
    wait=False,
)
_switch(
    "start",
    """Switch NODE on again, and wait until Slurm uses it.

    \b
    Example:
      toolkit cluster start nid002
    """,
    wait=True,
)
