"""Which commands only show, and how tests call them; every command of the tree is in one of the tables."""

from __future__ import annotations

from collections.abc import Iterator

import click

# Commands that show: words after the command, several times where it has several ways. RUN stands for
# the name of a run, DIR for a directory of another user with anything in it.
SHOWING: dict[str, tuple[str, ...]] = {
    "cluster show": ("", "--json"),
    "cluster status": ("", "--json"),
    "docs": ("", "run"),
    "explain": ("RUN", "--json RUN", "DIR/fifo", "DIR/log", "DIR/link"),
    "image cache": ("",),
    "image diff": ("DIR/images/fifo.sif DIR/images/link.sif",),
    "image list": ("", "--json"),
    "image path": ("fifo", "link"),
    "image render": ("DIR/fifo.toml",),
    "image sbom": ("fifo", "broken"),
    "image search": ("pytorch",),
    "image show": ("fifo", "link", "broken", "DIR/images/broken.sif"),
    "jobs list": ("", "--json"),
    "lint": ("DIR/fifo", "DIR/link", "DIR/job.sbatch"),
    "logs": ("RUN", "--raw --rank 0 RUN"),
    "ps": ("", "--all", "--all --json", "--all-directories --all"),
    "report": ("RUN", "--json RUN"),
    "results": ("RUN", "--json RUN"),
    "site check": ("DIR/fifo.toml",),
    "site list": ("",),
    "site rules": ("",),
    "site schema": ("",),
    "site show": ("local", "DIR/fifo.toml"),
    "top": ("RUN",),
    "usage": ("", "--by user --json"),
    "workshop schema": ("",),
    "workshop show": ("DIR/workshop", "DIR"),
    "workshop status": ("DIR/workshop", "DIR"),
}
# Commands that end or remove, and refuse the runs of another user.
REFUSING: dict[str, tuple[str, ...]] = {
    "cancel": ("RUN",),
    "notebook stop": ("RUN",),
    "prune": ("--keep 0", "--keep 0 --yes"),
    "rm": ("RUN", "--cancel RUN"),
    "stacks": ("RUN",),
}
# Commands that write, start or submit; showing is not what they are for.
ACTING = {
    *("demo", "doctor", "forward", "run", "setup", "shell", "ssh", "pull", "push", "jobs copy"),
    *("notebook connect", "notebook start", "image verify-signature", "site init", "site use"),
    *(f"bench {name}" for name in "stage allreduce compare scale".split()),
    *(f"cluster {name}" for name in "cut down exec join kill start up".split()),
    *(f"image {name}" for name in "build copy import lock new".split()),
    *(f"image {name}" for name in "prune pull push remove sign verify".split()),
    *(f"workshop {name}" for name in "close join new open pack rehearse reset unpack".split()),
}


def commands(command: click.Command, name: str = "") -> Iterator[str]:
    """Every command that can be typed, by its words."""
    if not isinstance(command, click.Group):
        yield name
    else:
        context = click.Context(command)
        for word in command.list_commands(context):
            below = command.get_command(context, word)
            assert below is not None
            yield from commands(below, f"{name} {word}".strip())
