"""`toolkit site`: what is written of clusters."""

from __future__ import annotations

import click

from toolkit.cli.lazy import Commands, LazyGroup

COMMANDS: Commands = {
    "Read": {
        "list": ("show:list_sites", "List the known sites."),
        "show": ("show:show", "Show what the file of a site says, with what it extends."),
    },
    "Write and check your own": {
        "check": ("own:check", "Check a site's file, and compare it with the live cluster."),
        "init": ("own:init", "Write the file of a site from the live cluster."),
        "rules": ("own:rules", "List the rules that jobs are checked against before submission."),
        "schema": ("own:schema", "Print the JSON schema of a site's file."),
        "use": ("own:use", "Make NAME your default site."),
    },
}


@click.group("site", cls=LazyGroup, package=__name__, commands=COMMANDS)
def command() -> None:
    """Show and describe clusters: partitions, limits, rules.

    Each value has its source. Your own are files in ~/.config/toolkit/sites; `extends = "neuron"`
    says only what is different.

    \b
    Examples:
      toolkit site list
      toolkit site show neuron
      toolkit site init ours
    """
