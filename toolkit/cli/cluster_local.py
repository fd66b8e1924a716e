"""The commands of a local cluster that is up: `toolkit cluster status`, `down`, `exec`, `shell`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from toolkit.cli import console
from toolkit.cli.cluster_up import complete_nodes, name_option
from toolkit.cli.shared import json_option
from toolkit.errors import SlurmUnreachableError
from toolkit.units import human_size

if TYPE_CHECKING:
    from toolkit.localcluster.status import Status


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
    from toolkit.localcluster.lifecycle import down as take_down
    from toolkit.localcluster.paths import paths_of

    with console.Steps() as steps:
        was_up = take_down(name, steps, keep_logs=keep_logs)
    console.fact("cluster", f"{name} is down" if was_up else f"{name} was not up")
    if keep_logs and was_up:
        console.fact("logs", str(paths_of(name).logs))


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
@click.option(
    "--node",
    metavar="NODE",
    shell_complete=complete_nodes,
    help="Run on this node (default: on the login side).",
)
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
    from toolkit.localcluster.enter import enter

    enter(name, words, node=node)


@click.command("shell")
@name_option
@click.option(
    "--node",
    metavar="NODE",
    shell_complete=complete_nodes,
    help="Run on this node (default: on the login side).",
)
def shell(name: str, node: str | None) -> None:
    """Open a shell on the login side of the cluster, with sbatch and srun.

    \b
    Examples:
      toolkit cluster shell
      toolkit cluster shell --node nid001
    """
    from toolkit.localcluster.enter import enter, interactive

    enter(name, interactive(), node=node)
