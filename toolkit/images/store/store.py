"""The images of this user, on disk.

A directory has ``<name>.sif``, its manifest ``<name>.json`` and the log of its build
``<name>.log``.

An image is whole if its file is as long as its header requires and a manifest names this file. A
build is made visible by renaming the SIF; the manifest is put beside it under a name that holds the
SIF's id *before* that, so that there is no moment, not even for kill -9 or a power cut, at which a
reader gets anything but the old image or the new one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from glob import escape
from pathlib import Path

from toolkit.errors import (
    BuildError,
    ConfigError,
    ForbiddenError,
    ImageMissingError,
    MalformedInputError,
    UnknownImageError,
)
from toolkit.files import open_regular, read_json, sync, write_atomically
from toolkit.images.recipe.names import list_recipes as list_recipes
from toolkit.images.recipe.names import require_image_name
from toolkit.images.sif import header as sif
from toolkit.images.store.sif_files import not_a_sif, sif_errors
from toolkit.model.base import Model, to_json
from toolkit.model.image import Manifest
from toolkit.shell import Progress
from toolkit.units import human_size


class StoredImage(Model, frozen=True, kw_only=True):
    """An image that can be run.

    Attributes:
        name: of the recipe, or the file's name without ``.sif``.
        path: of the SIF, absolute.
        manifest: the facts of its build; None for an image that we did not build.
    """

    name: str
    path: str
    manifest: Manifest | None = None


def images_directory() -> Path:
    """Return the directory of this user's images; it may not exist yet.

    It is ``$TOOLKIT_IMAGES``, else ``~/.local/share/toolkit/images``.
    """
    chosen = os.environ.get("TOOLKIT_IMAGES")
    return (
        Path(chosen).expanduser().absolute()
        if chosen
        else Path.home() / ".local/share/toolkit/images"
    )


def image_names(directory: Path) -> tuple[str, ...]:
    """Return the names of the SIF files of a directory, sorted; none if it does not exist."""
    return (
        tuple(sorted(path.name[: -len(".sif")] for path in directory.glob("*.sif")))
        if directory.is_dir()
        else ()
    )


def shared_directories() -> tuple[Path, ...]:
    """Return the directories of images that others built and that the settings name."""
    from toolkit.sites import image_directories

    return image_directories(Path.cwd())


def find(image: str, directories: Sequence[Path] = ()) -> StoredImage:
    """Find the image that the user names.

    Args:
        image: a recipe's name, an image's name, or a path to a SIF file (its name may have colons).
        directories: further directories with images, such as the site's. The user's own comes
            first, those that the settings name come last.

    Raises:
        UnknownImageError: nothing has this name; the message names the nearest recipe or image.
        ImageMissingError: the recipe is not built, or the file is not a whole SIF.
    """
    places = (images_directory(), *directories, *shared_directories())
    if "/" not in image:
        for directory in places:
            for name in dict.fromkeys((image, image.removesuffix(".sif"))):
                if _exists(directory / f"{name}.sif"):
                    return _open(directory / f"{name}.sif")
    path = _expanded(image)
    if _exists(path):
        return _open(path)
    if image in list_recipes():
        raise ImageMissingError(
            f"the image {image} is not built yet", next_step=f"toolkit image build {image}"
        )
    known = {name for directory in places for name in image_names(directory)}
    registry = f"; docker://{image} is fetched from a registry" if _is_reference(image) else ""
    raise UnknownImageError(
        f"no recipe, image or file is called {image}",
        choices={*known, *list_recipes()},
        value=image,
        next_step=f"toolkit image list{registry}",
    )


def _is_reference(image: str) -> bool:
    """Return whether a word may be an image of a registry, without its scheme: ``python:3.11``."""
    return ":" in image and " " not in image and "://" not in image


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # "~" before a name that is not a user's
        return Path(path)


def _exists(path: Path) -> bool:
    """Return whether a file has this name; False for a name that no file can have."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _open(path: Path) -> StoredImage:
    name = path.name.removesuffix(".sif")
    header = whole_header(path)
    manifest = manifest_of(path, header)
    while manifest is None and (now := whole_header(path)).sif_id != header.sif_id:
        header, manifest = now, manifest_of(path, now)  # another was published meanwhile
    if (
        manifest is None
        and path.absolute().parent == images_directory()
        and (path.with_name(f"{name}.json").exists() or name in list_recipes())
    ):
        raise ImageMissingError(
            f"the image {name} is not whole: its manifest does not belong to its file",
            place=str(path),
            next_step=f"toolkit image build {name}",
        )
    return StoredImage(name=name, path=str(path.absolute()), manifest=manifest)


def whole_header(path: Path) -> sif.Header:
    """Read the header of a SIF that is not cut off.

    Raises:
        ImageMissingError: the file is not a SIF, cannot be read, or is cut off.
        MalformedInputError: its header is invalid.
    """
    try:
        with open_regular(path) as stream, sif_errors(str(path)):
            header = sif.parse_header(stream.read(sif.HEADER_SIZE))
            size = os.fstat(stream.fileno()).st_size
    except OSError as error:
        reason = f"the image cannot be read: {error.strerror}"
        raise ImageMissingError(reason, place=str(path)) from None
    if header is None:
        raise not_a_sif(path)
    if size < header.end:
        raise ImageMissingError(
            f"the image is cut off: {human_size(size)} of {human_size(header.end)} are there",
            place=str(path),
        )
    return header


def manifest_of(path: Path, header: sif.Header) -> Manifest | None:
    """Return the manifest of this very file, if it has one.

    It is the one beside it, or that of a build that was stopped while putting it there.
    """
    own = _manifest_path(path)  # which can get its name between the first look and the second
    for candidate in (own, _announced_path(path, header.sif_id), own):
        try:
            manifest = read_json(candidate, Manifest)
        except ConfigError:
            continue
        if manifest.sif_id == header.sif_id and manifest.size == path.stat().st_size:
            return manifest
    return None


def _manifest_path(path: Path) -> Path:
    return path.with_name(f"{path.name.removesuffix('.sif')}.json")


def _announced_path(path: Path, sif_id: str) -> Path:
    return path.with_name(f".{path.name.removesuffix('.sif')}.{sif_id}.json")


def publish(
    built: Path, manifest: Manifest, directory: Path, *, name: str | None = None, mode: int = 0o644
) -> Path:
    """Publish a built SIF as the image ``name`` (else the recipe's), and return its path.

    The SIF must be on the file system of ``directory``, and the caller must hold the image's lock.
    ``mode`` are the permissions of the manifest.
    """
    target = directory / f"{require_image_name(name or manifest.name, str(built))}.sif"
    sync(built)
    announced = _announced_path(target, manifest.sif_id)
    write_atomically(announced, to_json(manifest), mode=mode)
    before = os.open(target, os.O_RDONLY) if target.is_file() else None
    built.replace(target)
    announced.replace(_manifest_path(target))
    sync(directory)
    if before is not None:
        # This handle is the last that holds the previous image: to free gigabytes takes the disk
        # a while.
        import threading

        threading.Thread(target=os.close, args=(before,)).start()
    for stale in _announced(target):
        stale.unlink(missing_ok=True)
    return target


def replace_image(
    made: Path, target: Path, manifest: Manifest | None, bill: str, *, mode: int = 0o644
) -> None:
    """Give a copied image its name, with its manifest and its bill of materials if it has them.

    As ``publish``: the caller must hold the image's lock.
    """
    if manifest:
        publish(made, manifest, target.parent, name=target.name.removesuffix(".sif"), mode=mode)
    else:
        sync(made)
        made.replace(target)
    beside = target.with_name(f"{target.name.removesuffix('.sif')}.cdx.json")
    if bill:
        write_atomically(beside, bill, mode=mode)
    else:
        beside.unlink(missing_ok=True)


def settle(path: Path) -> None:
    """Put the files of an image in order after processes that were killed.

    A manifest that was announced gets its final name, and half-written files are removed; if there
    is no image, so are the files about it. The caller must hold the image's lock.
    """
    with suppress(ImageMissingError, MalformedInputError, FileNotFoundError):
        _announced_path(path, whole_header(path).sif_id).replace(_manifest_path(path))
    name = escape(path.name.removesuffix(".sif"))
    half_written = (f".{name}.json", f".{name}.cdx.json", f"..{name}.{'?' * 32}.json")
    halves = (half for each in half_written for half in path.parent.glob(f"{each}.????????"))
    gone = () if os.path.lexists(path) else files_of(path)
    for stale in (*_announced(path), *halves, *gone):
        stale.unlink(missing_ok=True)


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the existing files of an image: itself, its manifest, bill of materials, and log."""
    name = path.name.removesuffix(".sif")
    beside = (path.with_name(f"{name}{ending}") for ending in (".json", ".cdx.json", ".log"))
    return tuple(each for each in (path, *beside) if os.path.lexists(each))


def rewrite_manifest(path: Path, manifest: Manifest) -> None:
    """Replace the manifest of an image by one with newer facts of the same file."""
    write_atomically(_manifest_path(path), to_json(manifest))


def update_manifest(
    image: StoredImage, change: Callable[[Manifest], Manifest], progress: Progress
) -> None:
    """Change the manifest of an image that was examined, under its lock.

    Nothing is changed if another file has taken its place meanwhile, or this user may not.

    Args:
        image: The image that was examined.
        change: Returns the new manifest from the current one.
        progress: Announces a wait for the lock.
    """
    path = Path(image.path)
    if image.manifest is None or not os.access(path.parent, os.W_OK):
        return
    from toolkit.images.host.mutex import hold_image

    with suppress(BuildError, ForbiddenError), hold_image(path, "verified", wait=progress):
        now = manifest_of(path, whole_header(path)) if path.exists() else None
        if now and now.sif_id == image.manifest.sif_id:
            rewrite_manifest(path, change(now))


def _announced(target: Path) -> tuple[Path, ...]:
    name = escape(target.name.removesuffix(".sif"))
    return tuple(target.parent.glob(f".{name}.{'?' * 32}.json"))
