"""Gather what a job's program imports, from its settings and from this machine."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from toolkit.imports import entry
from toolkit.imports.places import Bound, find_work_tree, normalize_path
from toolkit.imports.walk import Surroundings, collect_imports
from toolkit.model.image import Manifest, Python
from toolkit.model.job import Job
from toolkit.model.site import Site
from toolkit.model.source import Imports, Shown
from toolkit.units import numbers


def find_work_trees(folder: Path, directory: Path) -> tuple[Shown, ...]:
    """Return the git work trees of the script's directory and of the working directory."""
    home = Path.home()
    places = {"the script": folder, "the working directory": directory}
    trees = {tree: name for name, place in places.items() if (tree := find_work_tree(place, home))}
    reasons = {str(tree): f"the git work tree of {name}" for tree, name in trees.items()}
    return tuple(Shown(path=path, reason=reason) for path, reason in reasons.items())


def gather(
    job: Job,
    site: Site,
    manifest: Manifest | None,
    *,
    directory: Path,
    script: Path | None,
    program: str,
    visible: tuple[Path, ...],
) -> Imports:
    """Return what the ranks import.

    Args:
        job: the merged settings.
        site: it goes to.
        manifest: of the image or environment.
        directory: working directory of the ranks.
        script: that they run; None: a program.
        program: in its place.
        visible: directories that they see.
    """
    words = (program, *job.arguments)
    start = entry.find_script(script) if script else entry.find_command(words, directory)
    if job.python_module:
        start = entry.find_module(job.python_module, directory)
    if start is None:
        return Imports()
    named = program if program.startswith("/") and script is None else ""
    needed = collect_imports(
        start, gather_surroundings(job, site, _python(manifest, named), directory, visible)
    )
    if any("-packages" in text for text in job.bind):
        needed = replace(needed, doubt="a directory of packages is bound by --bind")
    return replace(needed, python=named)


def _python(manifest: Manifest | None, path: str) -> Python | None:
    known = manifest.pythons if manifest else ()
    return next((python for python in known if python.path == path), known[0] if known else None)


def gather_surroundings(
    job: Job, site: Site, python: Python | None, directory: Path, visible: tuple[Path, ...]
) -> Surroundings:
    """Return where the program runs."""
    search = job.env.get("PYTHONPATH", site.environment.get("PYTHONPATH", ""))
    binds = tuple(_bound(text, directory) for text in job.bind)
    return Surroundings(
        directory=directory,
        home=Path.home(),
        search=tuple(part for part in search.split(":") if part),
        others=tuple(part for part in os.environ.get("PYTHONPATH", "").split(":") if part),
        visible=visible,
        binds=binds,
        known=frozenset(python.modules) if python and python.modules else None,
        version=numbers(python.version) if python else None,
    )


def _bound(text: str, directory: Path) -> Bound:
    source, _, rest = text.partition(":")
    target = rest.partition(":")[0]
    path = normalize_path(source, directory)
    return Bound(path, Path(target) if target.startswith("/") else path)
