"""`toolkit workshop`."""

from __future__ import annotations

import click

from toolkit.cli.lazy import LazyGroup

SECTION = "Start and learn"


@click.group(
    "workshop",
    cls=LazyGroup,
    package=__name__,
    sections=("Prepare", "Take part", "Lead"),
)
def command() -> None:
    """Give a workshop, or join one.

    A workshop is a folder with a workshop.toml: images, exercises and data for all participants.
    The instructor packs it into one file; a participant joins with that file, its address, or the
    directory it was unpacked to.

    \b
    Examples:
      toolkit workshop new first-steps          for the instructor
      toolkit workshop rehearse first-steps --people 6
      toolkit workshop pack first-steps
      toolkit workshop join first-steps.tar     for a participant
      cd first-steps && toolkit run 01-ddp
    """
