"""From a recipe to an image in the store: once at a time, only when something changed, whole or not at all."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from toolkit.errors import ForbiddenError, ImageMissingError
from toolkit.images import library, store
from toolkit.images.bases import LocalImage
from toolkit.images.builders import apptainer, layered
from toolkit.images.builders.apptainer import Outcome
from toolkit.images.builders.lock import held
from toolkit.images.builders.workspace import Workspace, require_space, scratch_parent, workspace
from toolkit.images.chain import chain
from toolkit.images.recipes import Resolved
from toolkit.model.base import Model
from toolkit.model.image import Manifest
from toolkit.progress import Progress


class Built(Model, frozen=True, kw_only=True):
    """What `image build` came to.

    Attributes:
        path: of the SIF.
        kept: it was there already, and nothing that it is made from has changed.
        seconds: that the build took; 0 where it was kept.
    """

    path: str
    manifest: Manifest
    kept: bool
    seconds: float = 0.0


class Wish(Model, frozen=True, kw_only=True):
    """How somebody wants it built.

    Attributes:
        force: also where nothing has changed, and with nothing that was kept of earlier builds.
        flat: packed as one by Apptainer alone, not in layers.
        wait: for somebody else who builds the same image; else give up.
    """

    force: bool = False
    flat: bool = False
    wait: bool = True


def build(recipe: str, progress: Progress, wish: Wish | None = None) -> Built:
    """Make the image of a recipe be there.

    Args:
        recipe: the name of one that is shipped, or a path to a ``.toml``.
        progress: is told the steps.

    Raises:
        UnknownImageError, ConfigError: of the recipe.
        BusyError: somebody else builds it, and ``wait`` is false.
        NoSpaceError, BuildError, NeedsInstallError, ForbiddenError: of the build.
    """
    wish = wish or Wish()
    resolved = library.load(recipe)
    directory = store.images_directory()
    _make(directory)
    with held(directory, resolved.name, wait=wish.wait, progress=progress):
        found = _existing(directory, resolved.name)
        state = _state(resolved)
        wanted = _hash(resolved, state)
        if found and found[1].recipe_hash == wanted and not wish.force:
            return Built(path=str(found[0]), manifest=found[1], kept=True)
        require_space(directory, resolved.space, twice=not wish.flat)
        task = _Task(
            resolved=resolved,
            wish=wish,
            state=state,
            wanted=wanted,
            # Until it is known to have worked, it is the log of a build that has not: also when nobody is left to rename it.
            log=directory / f"{resolved.name}.failed.log",
            expected={**resolved.seconds, **(found[1].seconds if found else {})},
        )
        task.log.unlink(missing_ok=True)
        try:
            return _build(task, progress)
        except KeyboardInterrupt:
            progress.end("stopped")
            still = "is the one from before" if found else "is not there"
            progress.say("stopped", f"nothing runs any more; the image {still}; left: {task.log}")
            raise


@dataclass(frozen=True)
class _Task:
    """One build that has to be done.

    Attributes:
        state: of a base that lies on this machine: which one it is.
        wanted: the hash that the manifest gets.
        expected: seconds that each step is likely to take.
    """

    resolved: Resolved
    wish: Wish
    state: str
    wanted: str
    log: Path
    expected: dict[str, float]


def _make(directory: Path) -> None:
    for one in (directory, scratch_parent(directory)):
        try:
            one.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ForbiddenError(
                f"the directory {one} cannot be made: {error.strerror}", next_step="set TOOLKIT_IMAGES to a directory of your own"
            ) from None


def _build(task: _Task, progress: Progress) -> Built:
    """By the first way that works here."""
    directory = task.log.parent
    if not task.wish.flat:
        try:
            with workspace(directory) as place:
                return _finished(task, _layered(task, place, progress), place)
        except layered.NotHereError as error:
            progress.say("flat", f"no layers on this machine: {error}")
    with workspace(directory) as place:
        definition = library.rendered(task.resolved)
        return _finished(task, apptainer.build(task.resolved, definition, place, task.log, progress, task.expected), place)


def _layered(task: _Task, place: Workspace, progress: Progress) -> Outcome:
    resolved = task.resolved
    links, definition = chain(resolved, task.state), library.rendered(resolved)
    return layered.build(resolved.name, links, definition, place, task.log, progress, task.expected, fresh=task.wish.force)


def _finished(task: _Task, outcome: Outcome, place: Workspace) -> Built:
    """What was built becomes the image, with what is known of it."""
    name = task.resolved.name
    manifest = Manifest(
        name=name,
        sif_id=store.whole_header(place.sif).sif_id,
        size=place.sif.stat().st_size,
        recipe_hash=task.wanted,
        built=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        seconds={step: task.expected.get(step, 0.0) if step in outcome.kept else passed for step, passed in outcome.seconds.items()},
        frameworks=outcome.results.frameworks,
        mpi=tuple(outcome.results.mpi),
        builder=outcome.builder,
        checks=tuple(outcome.results.checks),
    )
    path = store.publish(place.sif, manifest, task.log.parent)
    task.log.replace(task.log.with_name(f"{name}.log"))
    return Built(path=str(path), manifest=manifest, kept=False, seconds=round(sum(outcome.seconds.values()), 1))


def _existing(directory: Path, name: str) -> tuple[Path, Manifest] | None:
    path = directory / f"{name}.sif"
    try:
        manifest = store.manifest_of(path, store.whole_header(path))
    except ImageMissingError:
        return None
    return (path, manifest) if manifest else None


def _state(resolved: Resolved) -> str:
    """Of a base that lies on this machine, what tells it from another in the same place."""
    if not isinstance(resolved.base, LocalImage):
        return ""
    path = Path(resolved.base.path)
    try:
        state = path.stat()
    except OSError as error:
        raise ImageMissingError(f"the base of {resolved.name} cannot be read: {error.strerror}", place=str(path)) from None
    return f"{state.st_ino} {state.st_size} {state.st_mtime_ns}"


def _hash(resolved: Resolved, state: str) -> str:
    """The recipe's hash, and for a base that lies on this machine also what that is now."""
    recipe_hash = library.recipe_hash(resolved)
    return hashlib.sha256(f"{recipe_hash} {state}".encode()).hexdigest() if state else recipe_hash
