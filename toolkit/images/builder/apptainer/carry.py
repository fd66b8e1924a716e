"""Decide which checks of an image need not run again after a change. Pure.

A check is carried over from an earlier image only if three conditions hold. The image is the
earlier one with further steps at its end, each of which only added packages of Python and their
programs: nothing was replaced or removed, nothing runs at the start of Python, nothing registers
with another package. The check, its scripts and the image's variables have the same text. And the
modules that the check needs neither look for nor mention what was added; the new image itself is
asked. Whatever is in doubt runs again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from toolkit.images.builder.apptainer.protocol import Added, CheckTask, Reach
from toolkit.images.recipe.block import CHECKS, CheckCall
from toolkit.images.recipe.digests import hash_texts
from toolkit.images.recipe.names import normalize_name
from toolkit.images.recipe.protection import CONSTRAINTS
from toolkit.images.recipe.stages import runner
from toolkit.model.image import Check, Manifest

_SITE = re.compile(r"opt/venv/lib/python3\.\d+/site-packages/(?P<top>[^/]+)(?P<below>/.*)?")
_PROGRAM = re.compile(r"opt/venv/bin/(?P<name>[^/]+)")
_INFO = re.compile(r"(?P<name>.+)-[^-]+\.dist-info")
# Python imports or runs these by itself.
_AT_START = ("sitecustomize", "usercustomize")
_PLAIN_GROUPS = {"console_scripts", "gui_scripts"}


def key_of(call: CheckCall, files: Mapping[str, str], *circumstances: str) -> str:
    """Return what changes with a check's text, its scripts and what it runs in.

    Args:
        call: The check.
        files: The texts of the image's own files, by path.
        circumstances: The image's variables, its last step, the program that runs it.
    """
    scripts = (files[f"{CHECKS}/{name}"] for name in call.scripts)
    return hash_texts(runner((call,)), *scripts, *circumstances)


def candidates(
    earlier: Iterable[Manifest], layers: Sequence[str], keys: Mapping[str, str]
) -> tuple[dict[str, Check], int, str]:
    """Return the checks of an earlier image that may be carried over, its layers and its name.

    Args:
        earlier: Manifests of images that were built here.
        layers: Digests of this image's layers, the base first and the last step last.
        keys: Of this image's checks, by name.

    Returns:
        Of the image that has the most layers: its passed checks, how many layers are in both, its
        own last step not counted, and its name.
    """
    best: tuple[dict[str, Check], int, str] = ({}, 0, "")
    for manifest in earlier:
        below = [layer.sha256 for layer in manifest.layers[:-1]]
        checks = {
            check.name: check
            for check in manifest.checks
            if check.passed and check.key and check.key == keys.get(check.name)
        }
        if checks and list(layers[: len(below)]) == below and best[1] < len(below) < len(layers):
            best = (checks, len(below), manifest.name)
    return best


def added_by(paths: Iterable[tuple[str, bool]], names: Collection[str]) -> Added | None:
    """Return what layers added, or None if they did anything else.

    Args:
        paths: Of what is in the layers, but no directories; and whether it marks a removal.
        names: The names of all modules, distributions and programs below the layers.
    """
    modules: set[str] = set()
    distributions: set[str] = set()
    programs: set[str] = set()
    for path, is_removed in paths:
        if is_removed:
            return None
        if f"/{path}" == CONSTRAINTS:
            continue
        if program := _PROGRAM.fullmatch(path):
            programs.add(program["name"])
            continue
        match = _SITE.fullmatch(path)
        if match is None or match["top"].endswith((".pth", ".egg-link", ".egg-info")):
            return None
        top = match["top"]
        if top == "__pycache__":
            top = (match["below"] or "/").rpartition("/")[2]
        (distributions if _INFO.fullmatch(top) else modules).add(name_of(top))
    new = modules | distributions | programs
    if not new.isdisjoint(names) or not modules.isdisjoint(_AT_START):
        return None
    return Added(
        modules=tuple(sorted(modules)),
        distributions=tuple(sorted(distributions)),
        programs=tuple(sorted(programs)),
    )


def name_of(entry: str) -> str:
    """Return the module or distribution of an entry of a directory of packages."""
    info = _INFO.fullmatch(entry)
    return normalize_name(info["name"]) if info else entry.partition(".")[0]


def is_unaffected(task: CheckTask, added: Added, reach: Reach) -> bool:
    """Return whether what was added cannot change the result of a check.

    Args:
        task: The check.
        added: What was added to the image.
        reach: What the modules that the check needs look for, in the new image.
    """
    asked = {normalize_name(name) for name in reach.distributions}
    return (
        task.needs is not None
        and set(reach.groups) <= _PLAIN_GROUPS
        and not reach.mentioned
        and set(added.modules).isdisjoint(reach.modules)
        and set(added.distributions).isdisjoint(asked)
        and set(added.programs).isdisjoint(task.needs.programs)
    )
