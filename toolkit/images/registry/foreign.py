"""Images that a job names by their registry reference: fetched once, then stored with a manifest.

``docker://python:3.11`` is stored as ``python_3.11.sif``. The tag may move on; the stored image
does not change until the user fetches it again, so that a repeated run runs the same image.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from toolkit import __version__
from toolkit.errors import ToolkitError, UsageError
from toolkit.images.recipe.digests import hash_texts
from toolkit.images.recipe.names import LONGEST, require_image_name
from toolkit.images.registry.references import DEFAULT_REGISTRY, Reference, parse
from toolkit.images.store import store
from toolkit.images.store.store import StoredImage
from toolkit.model.image import BaseImage, Manifest
from toolkit.quoting import shell_words

SCHEMES = ("docker", "oras")
# Distributions that are shown as frameworks; some are imported by another name.
_FRAMEWORKS = ("torch", "tensorflow", "tensorflow-cpu", "horovod", "ray", "mpi4py")
_MPIRUN = "if command -v mpirun >/dev/null 2>&1; then mpirun --version 2>&1 | head -n 3; fi; true"


def is_reference(image: str) -> bool:
    """Return whether an image is named by a registry reference."""
    return image.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def parse_image(image: str, place: str = "--image") -> Reference:
    """Parse a reference with its scheme: ``docker://python:3.11``.

    Args:
        image: the reference.
        place: where the user wrote it, for the message.

    Raises:
        UsageError: it is not a reference.
    """
    scheme, _, rest = image.partition("://")
    try:
        return parse(rest)
    except ValueError as error:
        step = f"{scheme}://REGISTRY/NAME:TAG"
        raise UsageError(str(error), place=place, next_step=step) from None


def complete_reference(image: str) -> str:
    """Return a complete reference, ``docker://docker.io/library/python:3.11``; else UsageError."""
    return f"{image.partition('://')[0]}://{parse_image(image)}"


def locate(image: str) -> Path:
    """Return the path at which the image of a reference is stored, or will be.

    Its name there is like ``ghcr.io_team_torch_2.7``.

    Raises:
        UsageError: it is not a reference.
    """
    place = parse_image(image)
    path = place.repository
    if place.registry == DEFAULT_REGISTRY:
        path = place.path.removeprefix("library/")
    name = f"{path}_{place.tag or place.digest}".replace("/", "_").replace(":", "_")
    if len(name) > LONGEST:
        name = f"{name[: LONGEST - 17]}-{hash_texts(name)[:16]}"
    require_image_name(name, "--image", error=UsageError)
    return store.images_directory() / f"{name}.sif"


def find_stored(image: str) -> StoredImage | None:
    """Return the image of a reference if it was fetched before.

    Raises:
        UsageError: it is not a reference, or its name in the store is that of another image.
    """
    path = locate(image)
    if not path.exists():
        return None
    stored = store.find(str(path))
    if stored.manifest is None or stored.manifest.origin != complete_reference(image):
        raise UsageError(
            f"{image} would be stored as {stored.name}, and another image has that name",
            place="--image",
            next_step=f"toolkit image pull {image} --name NAME, then --image NAME",
        )
    return stored


def describe(sif: Path, name: str, origin: str, digest: str) -> Manifest:
    """Return the manifest of an image that others built, from its contents.

    An image without a shell cannot be examined; it is described by its origin alone.

    Args:
        sif: the image.
        name: of the image here.
        origin: as ``complete_reference``.
        digest: of the image in its registry; empty: not known.
    """
    from toolkit.images.store.contents import Contents, read_contents
    from toolkit.images.store.settings import run_in_image
    from toolkit.runtimes.base import pmi_types

    contents, mpirun = Contents(), ""
    with suppress(ToolkitError):  # it has no shell, or a program in it does not end
        contents = read_contents(str(sif))
        mpirun = run_in_image(sif, ["/bin/sh", "-c", _MPIRUN], timeout=120).stdout
    versions = {package.name.lower(): package.version for package in contents.pip}
    exact = origin if "@" in origin or not digest else f"{origin}@{digest}"
    return Manifest(
        name=name,
        sif_id=store.whole_header(sif).sif_id,
        size=sif.stat().st_size,
        recipe_hash="",
        built=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        frameworks={
            known.removesuffix("-cpu"): versions[known]
            for known in _FRAMEWORKS
            if known in versions
        },
        mpi=pmi_types(mpirun),
        runscript=False,  # the runscript of a foreign image is unknown
        base=BaseImage(reference=origin.partition("://")[2], digest=digest),
        packages=contents.packages,
        pythons=contents.pythons,
        programs=contents.programs,
        system=contents.system,
        horovod=contents.horovod,
        tools={"toolkit": __version__},
        command=shell_words(["toolkit", "image", "pull", exact]),
        origin=origin,
    )
