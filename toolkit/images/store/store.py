"""The images of this user, on disk: ``<name>.sif``, its manifest ``<name>.json`` and the log of its build ``<name>.log`` in one directory.

An image is whole when its file is as long as its head says and a manifest names that very file. A
build is made visible by renaming the SIF; the manifest is put beside it under a name that holds the
SIF's id *before* that, so that there is no moment, not even for kill -9 or a power cut, at which a
reader finds anything but the old image or the new one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from toolkit.errors import ConfigError, ImageMissingError, UnknownImageError
from toolkit.files import open_regular, read_json, sync, write_atomically
from toolkit.images.recipe.names import image_name
from toolkit.images.recipe.names import recipe_names as recipe_names
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
        manifest: what is known of it; None for an image that we did not build.
    """

    name: str
    path: str
    manifest: Manifest | None = None


def images_directory() -> Path:
    """Where this user's images are: ``$TOOLKIT_IMAGES``, else ``~/.local/share/toolkit/images``; it may not be there yet."""
    chosen = os.environ.get("TOOLKIT_IMAGES")
    return (
        Path(chosen).expanduser().absolute()
        if chosen
        else Path.home() / ".local/share/toolkit/images"
    )


def image_names(directory: Path) -> tuple[str, ...]:
    """The SIF files of a directory without their endings, sorted; none where it cannot be read."""
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
    """The image that a user means.

    Args:
        image: a recipe's name, an image's name, or a path to a SIF file (whose name may hold colons).
        directories: further directories with images, such as the site's. The user's own comes
            first, those that the settings name come last.

    Raises:
        UnknownImageError: nothing is called so; names the nearest recipe or image.
        ImageMissingError: the recipe is not built, or the file is no whole SIF.
    """
    places = (images_directory(), *directories, *shared_directories())
    if "/" not in image:
        for directory in places:
            for name in dict.fromkeys((image, image.removesuffix(".sif"))):
                if _there(directory / f"{name}.sif"):
                    return _open(directory / f"{name}.sif")
    path = _expanded(image)
    if _there(path):
        return _open(path)
    if image in recipe_names():
        raise ImageMissingError(
            f"the image {image} is not built yet", next_step=f"toolkit image build {image}"
        )
    known = {name for directory in places for name in image_names(directory)}
    registry = f"; docker://{image} is fetched from a registry" if _is_reference(image) else ""
    raise UnknownImageError(
        f"no recipe, image or file is called {image}",
        choices={*known, *recipe_names()},
        value=image,
        next_step=f"toolkit image list{registry}",
    )


def _is_reference(image: str) -> bool:
    """Return whether a word may be an image of a registry, without its scheme: ``python:3.11``."""
    return ":" in image and " " not in image and "://" not in image


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # "~" before a name that is no user's
        return Path(path)


def _there(path: Path) -> bool:
    """Whether something has this name; a name that no file can have is none of ours."""
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
        and (path.with_name(f"{name}.json").exists() or name in recipe_names())
    ):
        raise ImageMissingError(
            f"the image {name} is not whole: its manifest does not belong to its file",
            place=str(path),
            next_step=f"toolkit image build {name}",
        )
    return StoredImage(name=name, path=str(path.absolute()), manifest=manifest)


def whole_header(path: Path) -> sif.Header:
    """The head of a SIF whose end is there as well.

    Raises:
        ImageMissingError: it is something else, cannot be read, or is cut off.
        MalformedInputError: its head says what cannot be.
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
    """The manifest that belongs to this very file: the one beside it, or of a build that was stopped while putting it there."""
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
    """Make a built SIF, which lies on the file system of ``directory``, the image ``name`` (else the recipe's); returns its path."""
    target = directory / f"{image_name(name or manifest.name, str(built))}.sif"
    sync(built)
    announced = _announced_path(target, manifest.sif_id)
    write_atomically(announced, to_json(manifest))
    before = os.open(target, os.O_RDONLY) if target.is_file() else None
    built.replace(target)
    announced.replace(_manifest_path(target))
    sync(directory)
    if (
        before is not None
    ):  # the last that holds the image from before: to free gigabytes takes the disk a while
        import threading

        threading.Thread(target=os.close, args=(before,)).start()
    for stale in _announced(target):
        stale.unlink(missing_ok=True)
    return target


def settle(path: Path, manifest: Manifest) -> None:
    """Tidy up after a build that was stopped just when it had published: the manifest gets its own name, half-written files go.

    Only for who holds the image's lock.
    """
    announced, name = _announced_path(path, manifest.sif_id), path.name.removesuffix(".sif")
    if announced.exists():
        announced.replace(_manifest_path(path))
    half_written = (f".{name}.json", f".{name}.cdx.json", f"..{name}.{'?' * 32}.json")
    halves = (half for pattern in half_written for half in path.parent.glob(f"{pattern}.????????"))
    for stale in (*_announced(path), *halves):
        stale.unlink(missing_ok=True)


def rewrite_manifest(path: Path, manifest: Manifest) -> None:
    """Put newer facts of the same file beside it."""
    write_atomically(_manifest_path(path), to_json(manifest))


def _announced(target: Path) -> Iterator[Path]:
    name = target.name.removesuffix(".sif")
    return (
        path
        for path in target.parent.glob(f".{name}.*.json")
        if len(path.name) == len(f".{name}.") + 32 + len(".json")
    )
