"""`toolkit cluster`: any cluster as it is now, and a real Slurm on this machine."""

from __future__ import annotations

import click

from toolkit.cli.lazy import Commands, LazyGroup

COMMANDS: Commands = {
    "Any cluster": {
        "show": (
            "show:command",
            "Show partitions, free GPUs, limits, and how much of them you use.",
        ),
    },
    "The local cluster": {
        "down": ("control:down", "Stop the cluster and end its jobs."),
        "exec": ("control:execute", "Run a command in the cluster: one of Slurm's, or any other."),
        "shell": (
            "control:shell",
            "Open a shell on the login side of the cluster, with sbatch and srun.",
        ),
        "status": ("control:status", "Show the nodes, partitions and daemons of the cluster."),
        "up": ("up:up", "Start a local cluster: nodes and partitions as you describe them."),
    },
    "Faults of nodes": {
        "cut": ("faults:cut", "Cut NODE off the network, as if its cable was pulled."),
        "join": ("faults:join", "Connect NODE to the network again, and wait until Slurm uses it."),
        "kill": ("faults:kill", "Switch NODE off, as a power failure does."),
        "start": ("faults:start", "Switch NODE on again, and wait until Slurm uses it."),
    },
}


@click.group(
    "cluster",
    cls=LazyGroup,
    package=__name__,
    commands=COMMANDS,
    invoke_without_command=True,
)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Show free nodes of a cluster; run a real Slurm on this machine.

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
        from toolkit.cli.cluster.show import command as show

        ctx.invoke(show)
