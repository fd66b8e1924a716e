"""A group of commands each of which is imported when it is used: help and start-up cost nothing for the others."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Mapping
from typing import Any

import click

from toolkit.errors import UsageError


class LazyGroup(click.Group):
    """A group whose commands are the objects named `command` in modules of their own.

    Args:
        verbs: verb -> (module, what it does).
    """

    def __init__(self, *arguments: Any, verbs: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.verbs = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in self.verbs:
            return None
        command: click.Command = importlib.import_module(self.verbs[cmd_name][0]).command
        gc.freeze()  # what was imported stays: no collection need look at it
        gc.enable()
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.verbs and not args[0].startswith("-"):
            raise UsageError(f"there is no verb {args[0]!r}", choices=self.verbs, value=args[0], next_step=f"{ctx.command_path} --help")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in self.verbs.items()])
