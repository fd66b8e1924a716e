"""An image in layers, packed again as one: without what later steps deleted or replaced, which lies in its file unseen."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

import msgspec

from toolkit.errors import ImageMissingError
from toolkit.images.build.apptainer import compose
from toolkit.images.build.apptainer.apptainer import COMPRESSION
from toolkit.images.build.apptainer.namespaces import (
    LayersUnavailableError,
    run_image_checks,
    run_sandbox,
)
from toolkit.images.build.apptainer.work import Lower, Work
from toolkit.images.build.follow import Follower
from toolkit.images.build.mutex import hold_image
from toolkit.images.build.privilege import build_command
from toolkit.images.build.workspace import workspace
from toolkit.images.sif import header as sif
from toolkit.images.store import store
from toolkit.images.store.sif_files import read_text_object
from toolkit.model.base import Model
from toolkit.progress import Progress


class Flattened(Model, frozen=True, kw_only=True):
    """What came of it: the image's path, and its sizes in bytes before and after."""

    path: str
    before: int
    after: int


def flatten(image: str, progress: Progress) -> Flattened:
    """Pack an image of the store again. It proves itself as after a build, and replaces the one in layers only then.

    Raises:
        UnknownImageError, ImageMissingError: there is no such image, or we did not build it.
        BuildError, NoSpaceError, ForbiddenError, NeedsInstallError: of the packing, and of the image's checks.
    """
    found = store.find(image)
    path, directory = Path(found.path), store.images_directory()
    if found.manifest is None or path.parent != directory:
        raise ImageMissingError(
            f"{image} is no image that was built here",
            place=found.path,
            next_step="toolkit image list",
        )
    log = directory / f"{found.name}.failed.log"
    with (
        hold_image(directory, found.name, wait=True, progress=progress),
        workspace(directory) as place,
    ):
        follower = Follower(
            found.name,
            {"pack": "without what nobody sees", "checks": "run the image's checks"},
            log,
            progress,
        )
        packed = place.output / "flat.sqfs"
        offset, _ = compose.open_squashfs(found.path)
        scratch = place.scratch / "flat"
        scratch.mkdir()
        follower.begin("pack")
        work = Work(
            directory=str(scratch),
            lowers=(Lower(path=found.path, offset=offset),),
            repack=str(packed),
            pack=("mksquashfs",),
            packing=("-noappend", "-no-progress", "-quiet", *COMPRESSION),
        )
        try:
            code = run_sandbox(work, place, follower)
        except LayersUnavailableError as error:
            raise ImageMissingError(
                f"it cannot be unpacked here: {error}",
                next_step=f"toolkit image build --flat --force {image}",
            ) from None
        if code != 0:
            raise follower.error(code)
        sif_id = _written(path, packed, place.sif)
        follower.begin("checks")
        if (code := run_image_checks(build_command().program, place, follower)) != 0:
            raise follower.error(code)
        follower.end()
        manifest = msgspec.structs.replace(
            found.manifest, sif_id=sif_id, size=place.sif.stat().st_size
        )
        before = path.stat().st_size
        published = store.publish(place.sif, manifest, directory)
        log.unlink(missing_ok=True)
    return Flattened(path=str(published), before=before, after=manifest.size)


def _written(old: Path, packed: Path, target: Path) -> str:
    """A SIF of a packed file system, with what the old one keeps beside its own; its id."""
    texts = [read_text_object(old, which) for which in (sif.find_definition, sif.find_labels)]
    copier = compose.Copier(target)
    size = packed.stat().st_size
    copier.append(str(packed), 0, size)
    copier.finish()
    sizes = (size, len(texts[0]), len(texts[1]))
    sif_id = os.urandom(16)
    os.pwrite(copier.handle, b"".join(texts), sif.DATA_START + size)
    os.pwrite(
        copier.handle, sif.build_header(sizes, sif_id, int(time.time()), platform.machine()), 0
    )
    os.close(copier.handle)
    return sif_id.hex()
