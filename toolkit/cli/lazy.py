"""Groups of commands that find their commands by themselves, and import each when it is used.

A module of a group's package adds a command by having one: ``@click.command("NAME")`` on a function
whose docstring's first line is its summary. ``SECTION = "..."`` in the module is the heading under
which help lists its commands. Names, summaries and sections are read from the text of the modules,
so help and start-up import nothing that is not used.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import click

from toolkit.errors import UsageError

_COMMAND = re.compile(r'^@click\.(?:command|group)\(\s*"([\w-]+)"', re.MULTILINE)
_FUNCTION = re.compile(r"^def (\w+)", re.MULTILINE)
_SUMMARY = re.compile(r'^    """(.+?)(?:"""|$)', re.MULTILINE)
_SECTION = re.compile(r'^SECTION = "([^"\n]+)"$', re.MULTILINE)


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


def _add_cluster_option(command: click.Command) -> None:
    """Give a command, and those below it, the hidden option that names the local cluster."""
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        _add_cluster_option(below)
    if not any("--cluster" in parameter.opts for parameter in command.params):
        cluster_option(is_hidden=True)(command)


class Entry(NamedTuple):
    """A command before its import.

    Attributes:
        module, function: where it is.
        summary: one sentence.
        section: the heading under which help lists it.
    """

    module: str
    function: str
    summary: str
    section: str


def _read_entries(file: Path, module: str) -> Iterator[tuple[str, Entry]]:
    """Yield the name and the entry of each command in the text of a module."""
    text = file.read_text(encoding="utf-8")
    section = _SECTION.search(text)
    for command in _COMMAND.finditer(text):
        function = _FUNCTION.search(text, command.end())
        summary = function and _SUMMARY.search(text, function.end())
        if function is None or summary is None:
            raise ValueError(f"the command {command[1]} of {module} has no docstring")
        heading = section[1] if section else "Commands"
        yield command[1], Entry(module, function[1], summary[1], heading)


class Group(click.Group):
    """A group that shows its help without arguments, and names the nearest command for a slip."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read no arguments as ``--help``, if the group does nothing without a command."""
        return super().parse_args(ctx, args if args or self.invoke_without_command else ["--help"])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command in the arguments; name the nearest one if there is none."""
        if not args or args[0].startswith("-"):
            return super().resolve_command(ctx, args)
        command = self.get_command(ctx, args[0])
        if command is None:
            names = self.list_commands(ctx)
            help_line = f"{ctx.command_path} --help"
            error = UsageError(f"there is no command {args[0]!r}", choices=names, value=args[0])
            error.next_step = (
                help_line if error.close else f"one of {', '.join(names)}; {help_line}"
            )
            raise error
        return args[0], command, args[1:]

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an error of its options knows the command, whose help is the next step."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            name = ctx.invoked_subcommand
            if error.ctx is None and name and (command := self.get_command(ctx, name)):
                error.ctx = click.Context(command, info_name=name, parent=ctx)
            raise

    def summaries(self) -> Iterator[tuple[str, str, str]]:
        """Yield the section, name and summary of each command."""
        for name, command in sorted(self.commands.items()):
            yield "Commands", name, (command.help or "").partition("\n")[0]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their summaries, section by section."""
        del ctx
        for section, commands in groupby(self.summaries(), key=itemgetter(0)):
            with formatter.section(section):
                formatter.write_dl([(name, summary) for _, name, summary in commands])


class LazyGroup(Group):
    """A group whose commands are in the modules of a package.

    Args:
        package: dotted name of the package.
        sections: headings of the help, in their order; others follow.
    """

    def __init__(
        self, *arguments: Any, package: str, sections: Sequence[str] = (), **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._package = package
        self._sections = sections

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """The commands by name, section by section; the module called as its command is first."""
        files = [*self._directory.glob("[!_]*.py"), *self._directory.glob("*/__init__.py")]
        entries = [entry for file in files for entry in _read_entries(file, self._module(file))]
        order = {section: number for number, section in enumerate(self._sections)}
        return dict(
            sorted(entries, key=lambda entry: (order.get(entry[1].section, len(order)), entry[0]))
        )

    @property
    def _directory(self) -> Path:
        return Path(importlib.import_module(self._package).__path__[0])

    def _module(self, file: Path) -> str:
        return f"{self._package}.{file.parent.name if file.stem == '__init__' else file.stem}"

    def _entry(self, name: str) -> Entry | None:
        """Return a command's entry; only the module called so is read, if there is one."""
        stem = self._directory / name.replace("-", "_")
        for file in (stem.with_suffix(".py"), stem / "__init__.py"):
            if os.path.isfile(file):  # noqa: PTH113 - Path.is_file raises for names that are too long
                quick = dict(_read_entries(file, self._module(file)))
                if name in quick:
                    return quick[name]
        return self.entries.get(name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands without importing them."""
        del ctx
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command's module and return the command."""
        del ctx
        entry = self._entry(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(importlib.import_module(entry.module), entry.function)
        _add_cluster_option(command)
        gc.freeze()  # imported modules stay; the collector need not examine them
        gc.enable()
        return command

    def summaries(self) -> Iterator[tuple[str, str, str]]:
        """Yield the section, name and summary of each command, without importing it."""
        for name, entry in self.entries.items():
            yield entry.section, name, entry.summary
