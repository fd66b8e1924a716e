"""From a recipe to an image in the store: once at a time, only when something changed, whole or not at all."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from pathlib import Path

from toolkit.errors import ForbiddenError, ImageMissingError
from toolkit.images import library, store
from toolkit.images.bases import LocalImage
from toolkit.images.builders import apptainer
from toolkit.images.builders.lock import held
from toolkit.images.builders.workspace import Workspace, require_space, scratch_parent, workspace
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


def build(recipe: str, progress: Progress, *, force: bool = False, wait: bool = True) -> Built:
    """Make the image of a recipe be there.

    Args:
        recipe: the name of one that is shipped, or a path to a ``.toml``.
        progress: is told the steps.
        force: build also where nothing has changed.
        wait: for somebody else who builds the same image; else give up.

    Raises:
        UnknownImageError, ConfigError: of the recipe.
        BusyError: somebody else builds it, and ``wait`` is false.
        NoSpaceError, BuildError, NeedsInstallError, ForbiddenError: of the build.
    """
    resolved = library.load(recipe)
    directory = store.images_directory()
    _make(directory)
    with held(directory, resolved.name, wait=wait, progress=progress):
        found = _existing(directory, resolved.name)
        wanted = _hash(resolved)
        if found and found[1].recipe_hash == wanted and not force:
            return Built(path=str(found[0]), manifest=found[1], kept=True)
        require_space(directory, resolved.space)
        expected = {**resolved.seconds, **(found[1].seconds if found else {})}
        # Until it is known to have worked, it is the log of a build that has not: also when nobody is left to rename it.
        log = directory / f"{resolved.name}.failed.log"
        log.unlink(missing_ok=True)
        try:
            with workspace(directory) as place:
                return _build(resolved, wanted, log, place, progress, expected)
        except KeyboardInterrupt:
            progress.end("stopped")
            still = "is the one from before" if found else "is not there"
            progress.say("stopped", f"nothing runs any more; the image {still}; left: {log}")
            raise


def _make(directory: Path) -> None:
    for one in (directory, scratch_parent(directory)):
        try:
            one.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ForbiddenError(
                f"the directory {one} cannot be made: {error.strerror}", next_step="set TOOLKIT_IMAGES to a directory of your own"
            ) from None


def _build(resolved: Resolved, wanted: str, log: Path, place: Workspace, progress: Progress, expected: dict[str, float]) -> Built:
    name = resolved.name
    outcome = apptainer.build(resolved, library.rendered(resolved), place, log, progress, expected)
    manifest = Manifest(
        name=name,
        sif_id=store.whole_header(place.sif).sif_id,
        size=place.sif.stat().st_size,
        recipe_hash=wanted,
        built=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        seconds=outcome.seconds,
        frameworks=outcome.results.frameworks,
        mpi=tuple(outcome.results.mpi),
        builder=outcome.builder,
        checks=tuple(outcome.results.checks),
    )
    path = store.publish(place.sif, manifest, log.parent)
    log.replace(log.with_name(f"{name}.log"))
    return Built(path=str(path), manifest=manifest, kept=False, seconds=round(sum(outcome.seconds.values()), 1))


def _existing(directory: Path, name: str) -> tuple[Path, Manifest] | None:
    path = directory / f"{name}.sif"
    try:
        manifest = store.manifest_of(path, store.whole_header(path))
    except ImageMissingError:
        return None
    return (path, manifest) if manifest else None


def _hash(resolved: Resolved) -> str:
    """The recipe's hash, and for a base that lies on this machine also what that is now."""
    recipe_hash = library.recipe_hash(resolved)
    if not isinstance(resolved.base, LocalImage):
        return recipe_hash
    path = Path(resolved.base.path)
    try:
        state = path.stat()
    except OSError as error:
        raise ImageMissingError(f"the base of {resolved.name} cannot be read: {error.strerror}", place=str(path)) from None
    return hashlib.sha256(f"{recipe_hash} {state.st_ino} {state.st_size} {state.st_mtime_ns}".encode()).hexdigest()
