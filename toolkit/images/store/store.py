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
from collections.abc import Iterator, Sequence
from pathlib import Path

from toolkit.errors import ConfigError, ImageMissingError, UnknownImageError
from toolkit.files import open_regular, read_json, sync, write_atomically
from toolkit.images.recipe.names import list_recipes as list_recipes
from toolkit.images.recipe.names import require_image_name
from toolkit.images.sif import header as sif
from toolkit.images.store.sif_files import not_a_sif, sif_errors
from toolkit.model.base import Model, to_json
from toolkit.model.image import Manifest
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
    for candidate in (_manifest_path(path), _announced_path(path, header.sif_id)):
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


def publish(built: Path, manifest: Manifest, directory: Path, *, name: str | None = None) -> Path:
    """Publish a built SIF as the image ``name`` (else the recipe's), and return its path.

    The SIF must be on the file system of ``directory``.
    """
    target = directory / f"{require_image_name(name or manifest.name, str(built))}.sif"
    sync(built)
    announced = _announced_path(target, manifest.sif_id)
    write_atomically(announced, to_json(manifest))
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


def settle(path: Path, manifest: Manifest) -> None:
    """Clean up after a build that was stopped just after it had published.

    The manifest gets its final name, and half-written files are removed. The caller must hold the
    image's lock.
    """
    announced, name = _announced_path(path, manifest.sif_id), path.name.removesuffix(".sif")
    if announced.exists():
        announced.replace(_manifest_path(path))
    half_written = (f".{name}.json", f".{name}.cdx.json", f"..{name}.{'?' * 32}.json")
    halves = (half for pattern in half_written for half in path.parent.glob(f"{pattern}.????????"))
    for stale in (*_announced(path), *halves):
        stale.unlink(missing_ok=True)


def rewrite_manifest(path: Path, manifest: Manifest) -> None:
    """Replace the manifest of an image by one with newer facts of the same file."""
    write_atomically(_manifest_path(path), to_json(manifest))


def _announced(target: Path) -> Iterator[Path]:
    name = target.name.removesuffix(".sif")
    return (
        path
        for path in target.parent.glob(f".{name}.*.json")
        if len(path.name) == len(f".{name}.") + 32 + len(".json")
    )
