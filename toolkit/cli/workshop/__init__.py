"""`toolkit workshop`."""

from __future__ import annotations

import click

from toolkit.cli.lazy import Commands, LazyGroup

COMMANDS: Commands = {
    "Prepare": {
        "new": ("folder:new", "Write a workshop with two exercises that works as it is."),
        "pack": ("folder:pack", "Pack a workshop into one file: images, exercises, data, guide."),
        "schema": ("folder:schema", "Print the JSON schema of workshop.toml, for editors."),
        "show": ("folder:show", "Check the workshop.toml of a folder, and show what it says."),
        "unpack": ("folder:unpack", "Unpack a workshop for all participants of a cluster."),
    },
    "Take part": {
        "join": (
            "taking:join",
            "Copy the exercises of a workshop, and check that they can run here.",
        ),
        "reset": ("taking:reset", "Start an exercise, or the results of a participant, again."),
    },
    "Lead": {
        "close": ("leading:close", "End a workshop: remove the shared directory of results."),
        "open": (
            "leading:open_",
            "Create the shared directory of results that workshop.toml names.",
        ),
        "rehearse": (
            "leading:rehearse",
            "Let many participants run all exercises at once, and report.",
        ),
        "status": ("leading:status", "Show who has done which exercise, by the shared results."),
    },
}


@click.group(
    "workshop",
    cls=LazyGroup,
    package=__name__,
    commands=COMMANDS,
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
