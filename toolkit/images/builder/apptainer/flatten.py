"""Pack an image in layers again as one.

The result lacks the files that later steps deleted or replaced, which a layered image still holds.
"""

from __future__ import annotations

import time
import uuid
from contextlib import closing
from pathlib import Path

import msgspec

from toolkit.errors import ImageMissingError
from toolkit.images.builder.apptainer import compose
from toolkit.images.builder.apptainer.programs import (
    COMPRESSION,
    run_image_checks,
    run_sandbox,
)
from toolkit.images.builder.apptainer.protocol import Lower, SandboxTasks
from toolkit.images.builder.follow import Follower
from toolkit.images.host.mutex import hold_image
from toolkit.images.host.privilege import build_command
from toolkit.images.host.workspace import workspace
from toolkit.images.sif import header as sif
from toolkit.images.store import store
from toolkit.images.store.sif_files import read_text_object
from toolkit.model.base import Model
from toolkit.shell import Progress


class Flattened(Model, frozen=True, kw_only=True):
    """The image's path, and its sizes in bytes before and after."""

    path: str
    before: int
    after: int


def flatten(image: str, progress: Progress) -> Flattened:
    """Pack an image of the store again, check it, and then replace the one in layers.

    Raises:
        UnknownImageError, ImageMissingError: There is no such image, or it was not built here.
        BuildError, NoSpaceError, ForbiddenError, NeedsInstallError: It cannot be packed, or fails
            its checks.
    """
    path, directory = Path(store.find(image).path), store.images_directory()
    if path.parent != directory:
        raise _not_built_here(path)
    with hold_image(path, "packed", wait=progress), workspace(directory) as place:
        source = store.find(str(path))  # as it is now
        if source.manifest is None:
            raise _not_built_here(path)
        name = source.name
        log = directory / f"{name}.failed.log"
        details = {"pack": "without hidden files", "checks": "run the image's checks"}
        follower = Follower(name, details, log, progress)
        packed = place.output / "flat.sqfs"
        offset, _ = compose.open_squashfs(source.path)
        scratch = place.scratch / "flat"
        scratch.mkdir()
        follower.begin("pack")
        tasks = SandboxTasks(
            directory=str(scratch),
            lowers=(Lower(path=source.path, offset=offset),),
            repack=str(packed),
            pack=("mksquashfs",),
            packing=("-noappend", "-no-progress", "-quiet", *COMPRESSION),
        )
        if (code := run_sandbox(tasks, place, follower)) != 0:
            raise follower.error(code)
        texts = [read_text_object(path, which) for which in (sif.DEFINITION, sif.LABELS)]
        sif_id, size = uuid.uuid4().bytes, packed.stat().st_size
        with closing(compose.Copier(place.sif)) as copier:
            copier.append(str(packed), 0, size)
            copier.finish()
            copier.complete(size, texts, sif_id, int(time.time()))
        follower.begin("checks")
        if (code := run_image_checks(build_command().program, place, follower)) != 0:
            raise follower.error(code)
        follower.end()
        manifest = msgspec.structs.replace(
            source.manifest, sif_id=sif_id.hex(), size=place.sif.stat().st_size
        )
        before = path.stat().st_size
        published = store.publish(place.sif, manifest, directory)
        log.unlink(missing_ok=True)
    return Flattened(path=str(published), before=before, after=manifest.size)


def _not_built_here(path: Path) -> ImageMissingError:
    return ImageMissingError(
        f"{path.name} was not built here", place=str(path), next_step="toolkit image list"
    )
