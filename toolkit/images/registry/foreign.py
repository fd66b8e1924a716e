"""Images that a job names by their registry reference: fetched once, then stored with a manifest.

``docker://python:3.11`` is stored as ``python_3.11.sif``. The tag may move on; the stored image
does not change until the user fetches it again, so that a repeated run runs the same image.
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from toolkit.errors import BuildError, ToolkitError, UsageError
from toolkit.images.recipe.digests import hash_texts
from toolkit.images.recipe.names import LONGEST, require_image_name
from toolkit.images.registry.references import DEFAULT_REGISTRY, Reference, parse
from toolkit.images.store import store
from toolkit.images.store.settings import run_in_image
from toolkit.images.store.store import StoredImage
from toolkit.model.image import BaseImage, Manifest
from toolkit.quoting import shell_words

SCHEMES = ("docker", "oras")
# Distribution -> what scripts import, where the names differ.
_FRAMEWORKS = {
    "torch": "torch",
    "tensorflow": "tensorflow",
    "tensorflow-cpu": "tensorflow",
    "horovod": "horovod",
    "ray": "ray",
    "mpi4py": "mpi4py",
}
_MPIRUN = "if command -v mpirun >/dev/null 2>&1; then mpirun --version 2>&1 | head -n 3; fi; true"


def is_reference(image: str) -> bool:
    """Return whether an image is named by a registry reference."""
    return image.partition("://")[0] in SCHEMES and "://" in image


def derive_name(image: str) -> str:
    """Return the name that the image of a reference has in the store: ``ghcr.io_team_torch_2.7``.

    Raises:
        UsageError: it is not a reference.
    """
    place = parse_image(image)
    path = (
        place.path.removeprefix("library/")
        if place.registry == DEFAULT_REGISTRY
        else place.repository
    )
    name = f"{path}_{place.tag or place.digest}".replace("/", "_").replace(":", "_")
    if len(name) > LONGEST:
        name = f"{name[: LONGEST - 17]}-{hash_texts(name)[:16]}"
    return require_image_name(name, "--image", error=UsageError)


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
        raise UsageError(
            str(error), place=place, next_step=f"{scheme}://REGISTRY/NAME:TAG"
        ) from None


def complete_reference(image: str) -> str:
    """Return a complete reference: ``docker://docker.io/library/python:3.11``.

    Raises:
        UsageError: it is not a reference.
    """
    return f"{image.partition('://')[0]}://{parse_image(image)}"


def locate(image: str) -> Path:
    """Return the path at which the image of a reference is stored, or will be.

    Raises:
        UsageError: it is not a reference.
    """
    return store.images_directory() / f"{derive_name(image)}.sif"


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
        name = path.name.removesuffix(".sif")
        raise UsageError(
            f"{image} would be stored as {name}, and another image has that name",
            place="--image",
            next_step=f"toolkit image pull {image} --name NAME, then --image NAME",
        )
    return stored


def describe(sif: Path, origin: str, digest: str) -> Manifest:
    """Return the manifest of an image that others built, from its contents.

    Args:
        sif: the image.
        origin: as ``complete_reference``.
        digest: of the image in its registry; empty: not known.

    An image without a shell cannot be examined; it is described by its origin alone.
    """
    from toolkit import __version__
    from toolkit.images.store.contents import Contents, read_contents

    try:
        image_contents = read_contents(str(sif))
    except BuildError:
        image_contents = Contents()
    names = {
        _FRAMEWORKS[package.name.lower()]: package.version
        for package in image_contents.pip
        if package.name.lower() in _FRAMEWORKS
    }
    exact = origin if "@" in origin or not digest else f"{origin}@{digest}"
    return Manifest(
        name=sif.stem,
        sif_id=store.whole_header(sif).sif_id,
        size=sif.stat().st_size,
        recipe_hash="",
        built=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        frameworks=names,
        mpi=_mpi(sif) if image_contents != Contents() else (),
        runscript=False,  # the runscript of a foreign image is unknown
        base=BaseImage(reference=origin.partition("://")[2], digest=digest),
        packages=image_contents.packages,
        system=image_contents.system,
        horovod=image_contents.horovod,
        tools={"toolkit": __version__},
        command=shell_words(["toolkit", "image", "pull", exact]),
        origin=origin,
    )


def _mpi(sif: Path) -> tuple[str, ...]:
    """Return the PMI types of the image's MPI, by the version text of its mpirun."""
    from toolkit.runtimes.base import pmi_types

    try:
        version = run_in_image(sif, ["/bin/sh", "-c", _MPIRUN], timeout=120)
    except ToolkitError:
        return ()
    return pmi_types(version.stdout)
