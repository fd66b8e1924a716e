"""The stages of a Dockerfile, as text. Pure."""

from __future__ import annotations

import re

_FROM = re.compile(r"^FROM \S+(?: AS (?P<name>\S+))?", re.MULTILINE)
_MOUNTED = re.compile(r"(?<=--mount=type=bind,from=)[^,\s]+")


def first_mounted_stage(dockerfile: str) -> str:
    """The first stage whose files a step of another stage mounts; empty: there is none."""
    names = set(_MOUNTED.findall(dockerfile))
    return next(
        (found["name"] for found in _FROM.finditer(dockerfile) if found["name"] in names), ""
    )


def replace_stage(dockerfile: str, stage: str, image: str) -> str:
    """The Dockerfile without a stage, whose files are mounted from an image."""
    begins = [found.start() for found in _FROM.finditer(dockerfile)]
    ends = [*begins[1:], len(dockerfile)]
    names = [found["name"] for found in _FROM.finditer(dockerfile)]
    at = names.index(stage)
    rest = dockerfile[: begins[at]] + dockerfile[ends[at] :]
    return _MOUNTED.sub(lambda found: image if found[0] == stage else found[0], rest)
