"""`toolkit image`: build images from recipes, show them, prove them.

The module of a command is imported when the command is used.
"""

from __future__ import annotations

import click

from toolkit.cli.lazy import LazyGroup

SECTION = "Images and clusters"


@click.group(
    "image",
    cls=LazyGroup,
    package=__name__,
    sections=("Find", "Build", "Check and sign", "Share", "Remove"),
)
def command() -> None:
    """Build, find, check and share images.

    \b
    Examples:
      toolkit image list
      toolkit image build pytorch_cpu
      toolkit image check pytorch_cpu
      toolkit image render pytorch_cpu        # the definition, for plain `apptainer build`
    """
