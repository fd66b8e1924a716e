"""`toolkit site`: what is written of clusters."""

from __future__ import annotations

import click

from toolkit.cli.lazy import LazyGroup

SECTION = "Images and clusters"


@click.group("site", cls=LazyGroup, package=__name__, sections=("Read", "Write and check your own"))
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
