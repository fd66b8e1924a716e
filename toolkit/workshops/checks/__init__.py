"""Checks of a joined workshop: what keeps a participant from the first accuracy."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from toolkit.checks import Result, unchecked
from toolkit.errors import ToolkitError
from toolkit.workshops.case import JoinCase
from toolkit.workshops.checks import access
from toolkit.workshops.join import Membership

SECONDS = 60.0  # the longest time of all checks together
CHECKS = (
    access.images,
    access.slurm,
    access.partition,
    access.reservation,
    access.account,
    access.jobs,
    access.room,
    access.nodes,
    access.results,
)


def examine(member: Membership) -> Iterator[Result]:
    """Make the checks in their order; those that are left after a minute are not made."""
    case, until = JoinCase(member), time.monotonic() + SECONDS
    before = Path.cwd()
    os.chdir(member.directory)  # its settings name the directory of images
    try:
        for check in CHECKS:
            if time.monotonic() > until:
                text = f"after {SECONDS:.0f} s there was no time left"
                yield unchecked(text)._replace(name=check.name)
                continue
            try:
                yield from check(case)
            except ToolkitError as error:
                yield unchecked(error.cause)._replace(name=check.name)
    finally:
        os.chdir(before)
