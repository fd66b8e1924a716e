"""A group of commands that imports each of them when it is used.

Help and start-up cost nothing for the others.
"""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import click

from toolkit.errors import UsageError

# Verbs whose help names --cluster; the others take it, too, so that it can be typed after any.
_ON_CLUSTERS = frozenset(
    (
        "run",
        "shell",
        "ps",
        "top",
        "logs",
        "results",
        "cancel",
        "rm",
        "prune",
        "explain",
        "doctor",
        "show",
        "demo",
    )
)


def _choose_cluster(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
    """Have everything in this process, and what it starts, mean this local cluster."""
    del context, parameter
    if name is None:
        return
    from toolkit.localcluster.paths import require_name

    require_name(name, "--cluster")
    os.environ["TOOLKIT_CLUSTER"] = name


def cluster_option(*, is_hidden: bool) -> Callable[[Any], Any]:
    """Return the option that names the local cluster."""
    return click.option(
        "--cluster",
        metavar="NAME",
        is_eager=True,  # defaults of other options depend on it
        expose_value=False,
        hidden=is_hidden,
        callback=_choose_cluster,
        help="Local cluster (default: $TOOLKIT_CLUSTER, else local).",
    )


def add_cluster_option(command: click.Command, *, is_hidden: bool) -> None:
    """Give a command, and those below it, the option that names the local cluster."""
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        add_cluster_option(below, is_hidden=below.name not in _ON_CLUSTERS)
    if not any("--cluster" in parameter.opts for parameter in command.params):
        cluster_option(is_hidden=is_hidden)(command)


class LazyGroup(click.Group):
    """A group that imports a command when it is used.

    Args:
        verbs: verb -> (where, what it does). ``where`` is ``module:name`` of the click command, or
            ``module`` if its name is ``command``.
    """

    def __init__(
        self, *arguments: Any, verbs: Mapping[str, tuple[str, str]], **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.verbs = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands without importing them."""
        del ctx
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command's module and return the command."""
        del ctx
        if cmd_name not in self.verbs:
            return None
        module, _, name = self.verbs[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name or "command")
        add_cluster_option(command, is_hidden=cmd_name not in _ON_CLUSTERS)
        gc.freeze()  # imported modules stay; the collector need not examine them
        gc.enable()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command in the arguments; name the nearest one if there is none."""
        if args and args[0] not in self.verbs and not args[0].startswith("-"):
            raise UsageError(
                f"there is no command {args[0]!r}",
                choices=self.verbs,
                value=args[0],
                next_step=f"{ctx.command_path} --help",
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their summaries, without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.verbs.items()])
