"""Groups of commands, whose tables say where each is: it is imported when it is used."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import click

from toolkit.errors import UsageError

# Heading -> name -> (MODULE:FUNCTION in this package, the first line of its help).
Commands = Mapping[str, Mapping[str, tuple[str, str]]]


def _choose_cluster(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
    """Have everything in this process, and what it starts, mean this local cluster."""
    del context, parameter
    if name is None:
        return
    from toolkit.localcluster.paths import require_name

    require_name(name, "--cluster")
    os.environ["TOOLKIT_CLUSTER"] = name


def cluster_option(*, is_hidden: bool = False) -> Callable[[Any], Any]:
    """Return the option that names the local cluster.

    Every command takes it; help shows it only for those that are decorated with it.
    """
    return click.option(
        "--cluster",
        metavar="NAME",
        is_eager=True,  # defaults of other options depend on it
        expose_value=False,
        hidden=is_hidden,
        callback=_choose_cluster,
        help="Local cluster (default: $TOOLKIT_CLUSTER, else local).",
    )


class Group(click.Group):
    """A group whose commands are imported when they are used.

    Without arguments it shows its help, and for a slip it names the nearest command.

    Args:
        table: the commands, in the order of the help.
    """

    def __init__(self, *arguments: Any, table: Commands, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._table = table
        self.entries = {name: entry for rows in table.values() for name, entry in rows.items()}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read no arguments as ``--help``, if the group does nothing without a command."""
        return super().parse_args(ctx, args if args or self.invoke_without_command else ["--help"])

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands without importing them."""
        del ctx
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command's module and return the command."""
        del ctx
        if cmd_name not in self.entries:
            return None
        module, function = self.entries[cmd_name][0].split(":")
        command: click.Command = getattr(import_module(f"toolkit.cli.{module}"), function)
        if not any("--cluster" in parameter.opts for parameter in command.params):
            cluster_option(is_hidden=True)(command)
        gc.freeze()  # imported modules stay; the collector need not examine them
        gc.enable()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command in the arguments; name the nearest one if there is none."""
        name = args[0] if args else ""
        if not name or name.startswith("-") or name in self.entries:
            return super().resolve_command(ctx, args)
        names, help_line = self.list_commands(ctx), f"{ctx.command_path} --help"
        error = UsageError(f"there is no command {name!r}", choices=names, value=name)
        error.next_step = help_line if error.close else f"one of {', '.join(names)}; {help_line}"
        raise error

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an error of its options knows the command, whose help is the next step."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            name = ctx.invoked_subcommand
            if error.ctx is None and name and (command := self.get_command(ctx, name)):
                error.ctx = click.Context(command, info_name=name, parent=ctx)
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their summaries, section by section."""
        del ctx
        for section, rows in self._table.items():
            with formatter.section(section):
                formatter.write_dl([(name, summary) for name, (_, summary) in rows.items()])
