"""The commands that make nodes fail: `toolkit cluster cut`, `join`, `kill` and `start`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from toolkit.cli import console
from toolkit.cli.cluster_up import complete_nodes, name_option
from toolkit.localcluster.control import Verb

_DONE: dict[Verb, str] = {
    "cut": "is cut off",
    "join": "is joined",
    "kill": "is switched off",
    "start": "is switched on",
}


def _switch_options(*, wait: bool) -> Callable[[Any], Any]:
    """Return the options of these commands; ``wait`` is the default of ``--wait``."""
    help_text = "Wait until Slurm has noticed."

    def decorate(function: Any) -> Any:
        node = click.argument("node", shell_complete=complete_nodes)
        waiting = click.option(
            "--wait/--no-wait",
            default=wait,
            show_default=True,
            help=help_text,
        )
        return name_option(waiting(node(function)))

    return decorate


def _switch(verb: Verb, name: str, node: str, *, wait: bool) -> None:
    from toolkit.localcluster.status import switch

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
