"""The images of this user, on disk.

An image is one file, ``<name>.sif``: its manifest and its bill of materials are objects in it, and
a signature is of them, too. So whatever copies the file takes all along, and a build is made
visible by one rename. The log of its build is ``<name>.log``.

What becomes known later, such as a check that was made again, is noted in ``.<name>.note.json``
beside it, if the image is this user's. A note is of one file only, by the id in its header and its
size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from toolkit.errors import (
    BuildError,
    ForbiddenError,
    ImageMissingError,
    UnknownImageError,
)
from toolkit.files import open_regular, sync, write_atomically
from toolkit.images.recipe.names import list_recipes as list_recipes
from toolkit.images.recipe.names import require_image_name
from toolkit.model.base import BadDataError, Model, from_json, to_json
from toolkit.model.image import Manifest
from toolkit.shell import Progress

if TYPE_CHECKING:
    from toolkit.images.sif.header import Header

MANIFEST, BILL = "toolkit-manifest.json", "toolkit.cdx.json"  # names of objects in a SIF
_MOST_NOTE = 16 << 20  # bytes
# What a note says of an image that has a manifest: what only this machine knows.
_NOTED = (
    *("recipe_hash", "built", "seconds", "verified", "command"),
    *("origin", "signatures"),
)
_RECORDED = ("pythons", "programs")  # noted of images whose manifests do not have them


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
    chosen = os.environ.get("TOOLKIT_IMAGES") or "~/.local/share/toolkit/images"
    return Path(chosen).expanduser().absolute()


def image_names(directory: Path) -> tuple[str, ...]:
    """Return the names of the SIF files of a directory, sorted; none if it does not exist."""
    return tuple(sorted(path.name.removesuffix(".sif") for path in directory.glob("*.sif")))


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
    path = Path(image)
    with suppress(RuntimeError):  # "~" before a name that is not a user's
        path = path.expanduser()
    if _exists(path):
        return _open(path)
    if image in list_recipes():
        raise ImageMissingError(
            f"the image {image} is not built yet", next_step=f"toolkit image build {image}"
        )
    known = {name for directory in places for name in image_names(directory)}
    is_reference = ":" in image and " " not in image and "://" not in image
    registry = f"; docker://{image} is fetched from a registry" if is_reference else ""
    raise UnknownImageError(
        f"no recipe, image or file is called {image}",
        choices={*known, *list_recipes()},
        value=image,
        next_step=f"toolkit image list{registry}",
    )


def _exists(path: Path) -> bool:
    """Return whether a file has this name; False for a name that no file can have."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _open(path: Path) -> StoredImage:
    name = path.name.removesuffix(".sif")
    manifest = manifest_of(path)
    is_own = path.absolute().parent == images_directory()
    if manifest is None and is_own and name in list_recipes():
        raise ImageMissingError(
            f"the image {name} is not whole: it has no manifest",
            place=str(path),
            next_step=f"toolkit image build {name}",
        )
    return StoredImage(name=name, path=str(path.absolute()), manifest=manifest)


def whole_header(path: Path) -> Header:
    """Read the header of a SIF that is not cut off; errors as of ``open_sif``."""
    from toolkit.images.store.sif_files import open_sif

    with open_sif(path) as image:
        return image.header


def manifest_of(path: Path) -> Manifest | None:
    """Return the manifest in an image, with what was noted of this very file; None: it has none.

    What the image itself says of its contents stands against a note, since it may be signed.

    Raises:
        ImageMissingError, MalformedInputError: as of ``open_sif``.
    """
    from toolkit.images.sif.header import JSON
    from toolkit.images.store.sif_files import open_sif

    with open_sif(path) as image:
        header, status, text = image.header, image.status, image.read(JSON, MANIFEST)
    manifest = None
    with suppress(BadDataError):  # of another version of the toolkit
        manifest = from_json(text, Manifest) if text else None
    note = _read_note(_note_path(path), status.st_uid)
    if note and (note.sif_id, note.size) == (header.sif_id, status.st_size):
        manifest = manifest or note
        facts = {name: getattr(note, name) for name in _NOTED}
        facts |= {name: getattr(manifest, name) or getattr(note, name) for name in _RECORDED}
        manifest = replace(manifest, **facts)
    facts = {"sif_id": header.sif_id, "size": status.st_size}
    return replace(manifest, **facts) if manifest else None


def _note_path(path: Path) -> Path:
    return path.with_name(f".{path.name.removesuffix('.sif')}.note.json")


def _read_note(path: Path, owner: int) -> Manifest | None:
    """Return a note that the owner of the image, this user or root wrote; others are not heard."""
    try:
        with open_regular(path, below=path.parent) as stream:
            if os.fstat(stream.fileno()).st_uid not in (owner, os.geteuid(), 0):
                return None
            return from_json(stream.read(_MOST_NOTE), Manifest)
    except (OSError, ValueError):
        return None


def seal(path: Path, manifest: Manifest, bill: str, epoch: int | None = None) -> Manifest:
    """Put the manifest and the bill of materials into an unsigned SIF.

    Args:
        path: the SIF.
        manifest: the facts of the image.
        bill: its bill of materials; empty if there is none.
        epoch: the only time in its header, so that equal contents are equal files; None: any.

    Returns:
        The manifest as readers of the file get it.
    """
    from toolkit.images.store.settings import add_object
    from toolkit.images.store.sif_files import normalize

    text = to_json(replace(manifest, sif_id="", size=0))
    add_object(path, text, MANIFEST, "--datatype", "6")
    if bill:
        add_object(path, bill, BILL, "--datatype", "9", "--sbomformat", "cyclonedx-json")
    sif_id = whole_header(path).sif_id if epoch is None else normalize(path, epoch)
    return replace(manifest, sif_id=sif_id, size=path.stat().st_size)


def publish(made: Path, directory: Path, name: str, note: Manifest | None = None) -> Path:
    """Publish a finished SIF as the image ``name`` of a directory, and return its path.

    The SIF must be on the file system of the directory, and the caller must hold the image's lock.
    ``note`` has the facts of the file that are not in it.
    """
    target = directory / f"{require_image_name(name, str(made))}.sif"
    sync(made)
    beside = _note_path(target)
    if note:
        write_atomically(beside, to_json(note))
    made.replace(target)
    if note is None:
        beside.unlink(missing_ok=True)
    sync(target.parent)
    return target


def settle(path: Path) -> None:
    """Remove what killed processes left of an image: half-written notes; without it, all files.

    The caller must hold the image's lock.
    """
    name = escape(path.name.removesuffix(".sif"))
    halves = path.parent.glob(f"..{name}.note.json.????????")
    gone = () if os.path.lexists(path) else paths_of(path)
    for stale in (*halves, *gone):
        stale.unlink(missing_ok=True)


def paths_of(path: Path) -> tuple[Path, Path, Path]:
    """Return where the files of an image are if it has them: itself, its note and its log."""
    name = path.name.removesuffix(".sif")
    return (path, _note_path(path), path.with_name(f"{name}.log"))


def update_manifest(
    image: StoredImage, change: Callable[[Manifest], Manifest], progress: Progress
) -> None:
    """Note what an examination of an image found, under its lock.

    Nothing is noted if another file has taken its place meanwhile, or it is another user's.

    Args:
        image: The image that was examined.
        change: Returns the new manifest from the current one.
        progress: Announces a wait for the lock.
    """
    path = Path(image.path)
    if image.manifest is None:
        return
    from toolkit.images.host.mutex import hold_image

    with suppress(BuildError, ForbiddenError, OSError), hold_image(path, "verified", wait=progress):
        now = manifest_of(path) if path.stat().st_uid == os.geteuid() else None
        if now and now.sif_id == image.manifest.sif_id:
            write_atomically(_note_path(path), to_json(change(now)))
