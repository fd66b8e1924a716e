"""The bill of materials of an image: the one that its build wrote, or a new one."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import msgspec

from toolkit import __version__
from toolkit.files import read_text, write_atomically
from toolkit.images.store import sbom
from toolkit.images.store.contents import read_contents
from toolkit.images.store.sif_files import partition_digest
from toolkit.images.store.store import StoredImage, whole_header
from toolkit.model.image import Manifest


def materials(image: StoredImage) -> str:
    """Return the bill of materials of an image, in JSON.

    Raises:
        BuildError: the image does not run, or does not list its contents.
        NeedsInstallError: Apptainer is not installed.
    """
    path = Path(image.path)
    beside = path.with_name(f"{path.name.removesuffix('.sif')}{sbom.ENDING}")
    document = _beside(beside)
    if image.manifest and sbom.belongs(document, image.manifest):
        return document
    contents = read_contents(image.path)
    manifest = image.manifest or _foreign(path, image.name)
    return sbom.cyclonedx(
        msgspec.structs.replace(manifest, horovod=contents.horovod), contents, __version__
    )


def complete(image: StoredImage) -> None:
    """Write the document beside an image that we built, if a build was stopped before it could."""
    path = Path(image.path)
    beside = path.with_name(f"{path.name.removesuffix('.sif')}{sbom.ENDING}")
    text = materials(image)
    if _beside(beside) != text:
        write_atomically(beside, text)


def _beside(path: Path) -> str:
    """Return the document beside an image; empty where none can be read."""
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError):
        return ""


def _foreign(path: Path, name: str) -> Manifest:
    """Return a manifest for an image that we did not build, with the facts of its file only."""
    when = datetime.fromtimestamp(int(path.stat().st_mtime), timezone.utc).isoformat()
    digest = partition_digest(path)
    head = whole_header(path)
    return Manifest(
        name=name,
        sif_id=head.sif_id,
        size=path.stat().st_size,
        recipe_hash=digest,
        built=when,
        partition=digest,
    )
