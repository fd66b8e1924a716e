"""Import modules; print every module and distribution that was looked for, as one line of JSON.

Argument, as JSON: the modules to import, the further ones, the packages whose source is searched
for names, these names, and the distributions whose groups of entry points are listed. A program of
Python and its arguments may follow: it runs afterwards, and need not import the modules again.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import os
import pathlib
import runpy
import signal
import sys
from importlib import metadata
from typing import Any

PATIENCE = 60  # seconds for the further modules to be imported
modules: set[str] = set()
distributions: set[str] = set()


class Recorder:
    """The first finder of modules and distributions, which finds none."""

    def find_spec(self, name: str, *_: Any) -> None:
        """Record a module, also one that is not there."""
        modules.add(name.partition(".")[0])

    def find_distributions(self, context: Any = None) -> tuple[()]:
        """Record a distribution that is asked for by its name."""
        if getattr(context, "name", None):
            distributions.add(context.name)
        return ()


def mentioned_in(package: str, words: list[str]) -> set[str]:
    """Return the words that are in the source of a package."""
    first, *others = package.split(".")
    spec = importlib.machinery.PathFinder.find_spec(first)
    mentioned: set[str] = set()
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for source in pathlib.Path(root, *others).rglob("*.py"):
            text = source.read_text(errors="replace")
            mentioned.update(word for word in words if word in text)
    return mentioned


def answer(asked: Any) -> bool:
    """Print the answer; return whether all modules could be imported.

    What is not imported by a program that runs afterwards is imported by a process of its own.
    """
    mentioned = {word for name in asked["searched"] for word in mentioned_in(name, asked["names"])}
    groups = {
        entry.group
        for name in asked["distributions"]
        for entry in metadata.distribution(name).entry_points
    }
    recorder: Any = Recorder()
    sys.meta_path.insert(0, recorder)
    is_whole = False not in [can_import(name) for name in asked["modules"]]
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(PATIENCE)
            report_with(asked["further"], mentioned, groups)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    sys.meta_path.remove(recorder)
    return is_whole


def report_with(further: list[str], mentioned: set[str], groups: set[str]) -> None:
    """Import the further modules, and print the answer."""
    for name in further:
        can_import(name)
    report = {
        "modules": sorted(modules),
        "distributions": sorted(distributions),
        "mentioned": sorted(mentioned),
        "groups": sorted(groups),
    }
    print("toolkit-json: " + json.dumps(report), flush=True)


def can_import(name: str) -> bool:
    """Import a module; what it looks for is recorded also if it is not there."""
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def main(question: str, *program: str) -> None:
    """Answer the question, and then run the program as it would run alone."""
    if program:
        sys.path[0] = str(pathlib.Path(program[0]).resolve().parent)
    try:
        is_whole = answer(json.loads(question))
    except Exception:
        if not program:
            raise
        is_whole = False
    if not program:
        return
    if not is_whole:  # what a failed import leaves could change the program's result
        os.execv(sys.executable, [sys.executable, *program])
    sys.argv = [*program]
    runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
