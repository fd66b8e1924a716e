"""`toolkit cluster`: a real Slurm on this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from toolkit.cli import cluster_show, console
from toolkit.cli.options import complete_sites
from toolkit.errors import SlurmUnreachableError
from toolkit.localcluster.access import default_name
from toolkit.localcluster.plan import Verb
from toolkit.units import human_size

if TYPE_CHECKING:
    from toolkit.localcluster.status import Status

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def _named(function: AnyFunction) -> AnyFunction:
    help_text = "Which cluster (default: $TOOLKIT_CLUSTER, else local)."
    return click.option(
        "--name",
        "--cluster",
        "name",
        metavar="NAME",
        default=default_name,
        show_default=False,
        help=help_text,
    )(function)


def _node_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Tab completion of NODE."""
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

    Without a command it is `show`: partitions, free GPUs, limits, of the cluster that `toolkit run` would take.

    Every node has a host name, an address, a /tmp and a /dev/shm of its own, and processes that die with it. Everything else is
    shared, as on a cluster with a parallel file system. It needs no root where Slurm is installed.

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


@command.command("up")
@_named
@click.option(
    "--nodes",
    type=click.IntRange(1, 200),
    default=2,
    show_default=True,
    help="How many, called nid001, nid002, ...",
)
@click.option(
    "--cpus-per-node",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="May be more than this machine has.",
)
@click.option(
    "--mem-per-node",
    metavar="SIZE",
    default="4000",
    show_default=True,
    help="In MB, or with a unit: 16G. May be more, too.",
)
@click.option(
    "--gpus-per-node",
    metavar="N[,N...]",
    default="0",
    show_default=True,
    help="Simulated; one number, or one for each node.",
)
@click.option("--gpu-type", metavar="TYPE", help="Such as v100, for --gres=gpu:v100:2.")
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
    help="A site's partitions and rules; --nodes of each, --partition: only these.",
)
@click.option(
    "--accounting", is_flag=True, help="Run slurmdbd and MariaDB too, so that sacct answers."
)
@click.option(
    "--share",
    type=click.Path(),
    metavar="DIR",
    multiple=True,
    help="A directory below /tmp that all nodes see; repeatable.",
)
@click.pass_context
def up(ctx: click.Context, /, name: str, share: tuple[str, ...], **options: Any) -> None:
    """Bring the cluster up. If it is up already, nothing happens.

    \b
    A partition, with all of its options:
      NAME:nodes=nid[001-002],max-nodes=2,max-time=1:00:00,default-time=10:00,default
    A shape file has nodes that differ, and lines of slurm.conf:
      extra = ["PriorityType=priority/multifactor"]
      [[nodes]]
      names = "gpu[01-02]"       # cpus, memory (MB), gpus, gpu_type, features
      [[partitions]]
      name = "long"              # nodes, default, max_nodes, max_time, default_time, options

    The nodes see the working directory and your home also where those are below /tmp.

    \b
    Examples:
      toolkit cluster up
      toolkit cluster up --nodes 4 --cpus-per-node 40 --mem-per-node 380G --gpus-per-node 8 --gpu-type a100
      toolkit cluster up --gpus-per-node 4,2 --partition debug:max-nodes=1,max-time=30:00 --partition all:default
      toolkit cluster up --shape cluster.toml --name imitation
      toolkit cluster up --like neuron --partition cas_v100_4 --partition gh200_1
    """
    from toolkit.cli.cluster_shape import likeness, shape_of
    from toolkit.localcluster.up import up as bring_up

    like = likeness(ctx, **options)
    shape = like.shape if like else shape_of(ctx, **options)
    gpus = sum(group.gpus for group in shape.nodes)
    with console.Steps() as steps:
        if gpus:
            steps.say(
                "gpus", "simulated: Slurm hands them out as it would real ones, no GPU is there"
            )
        for text in like.said if like else ():
            steps.say("differs", text)
        started = bring_up(name, shape, steps, share=share)
    named = "" if name == default_name() else f" --name {name}"
    console.out(console.subject("cluster", f"{name} is up" if started else f"{name} is up already"))
    if named:
        console.out(
            console.subject(
                "use it",
                f"export TOOLKIT_CLUSTER={name}     or with each command: --cluster {name}",
            )
        )
    console.out(
        console.subject(
            "next",
            f"toolkit cluster exec{named} -- sinfo     down again: toolkit cluster down{named}",
        )
    )


@command.command("down")
@_named
@click.option("--keep-logs", is_flag=True, help="Leave the logs; everything else goes.")
def down(name: str, keep_logs: bool) -> None:
    """Take the cluster down: no process, mount, interface or file stays. Jobs that run there are ended.

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
@_named
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def status(name: str, as_json: bool) -> int:
    """Show the nodes, partitions and daemons of the cluster. Exit code 69 if it is not up.

    \b
    Examples:
      toolkit cluster status
      toolkit cluster status --json
    """
    from toolkit.localcluster import status as query

    try:
        state = query.status(name)
    except SlurmUnreachableError as error:
        if not as_json:
            raise
        console.out_json({"name": name, "up": False})
        return error.exit_code
    if as_json:
        console.out_json(dataclasses.asdict(state))
    else:
        _show(state, tuple(other for other in query.all_up() if other != name))
    return 0


def _show(state: Status, others: tuple[str, ...]) -> None:
    header = ("NODE", "STATE", "POWER", "CPUS", "MEMORY", "GPUS", "ADDRESS", "REASON")
    rows = [
        (
            *(node.name, node.state, node.power, node.cpus, human_size(node.memory * 1e6)),
            *(f"{node.gpus} {node.gpu_type or ''}".strip(), node.address, node.reason),
        )
        for node in state.nodes
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
        for part in state.partitions
    ]
    console.out(console.table(("PARTITION", "NODES", "MAX-NODES", "MAX-TIME"), limits))
    console.out()
    facts = {
        "controller": "answers"
        if state.controller
        else "does not answer; next: toolkit cluster down, then up",
        "accounting": "on: sacct answers"
        if state.accounting
        else "off: finished jobs are in squeue --states=all",
        "gpus": "simulated; no GPU is there" if any(node.gpus for node in state.nodes) else "none",
        "logs": state.logs,
        "slurm.conf": state.slurm_conf,
        "shared": ", ".join(["everything but /tmp and /dev/shm", *state.shared]),
    }
    console.out(console.mapping(facts | ({"also up": ", ".join(others)} if others else {})))


@command.command(
    "exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@_named
@click.option(
    "--node",
    metavar="NODE",
    shell_complete=_node_names,
    help="On this node; without it, on the login side.",
)
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND...")
def execute(name: str, node: str | None, words: tuple[str, ...]) -> None:
    """Run a command in the cluster: Slurm's own, or any other. The exit code is that of the command.

    \b
    Examples:
      toolkit cluster exec -- sbatch job.sbatch
      toolkit cluster exec -- srun -N2 --pty bash
      toolkit cluster exec --node nid001 -- ps aux
    """
    from toolkit.localcluster.enter import enter

    enter(name, words, node=node)


@command.command("shell")
@_named
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
    @_named
    @click.option(
        "--wait/--no-wait", default=wait, show_default=True, help="Wait until Slurm has noticed."
    )
    @click.argument("node", shell_complete=_node_names)
    def switch(name: str, wait: bool, node: str) -> None:
        from toolkit.localcluster.nodes import switch as act

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
    """Pull the network cable of NODE. Slurm calls it down after about 25 s, and its processes run on.

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
