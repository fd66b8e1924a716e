"""Transfer images to and from a registry (``oras://``), and fetch foreign ones (``docker://``).

The manifest and the bill of materials are in the SIF, so that they go along. No file gets the name
of an image before it is complete.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from toolkit import shell
from toolkit.errors import (
    CommandFailedError,
    NoSpaceError,
    UsageError,
)
from toolkit.images.host.mutex import hold_for_reading, hold_image
from toolkit.images.host.workspace import workspace
from toolkit.images.recipe.names import require_image_name
from toolkit.images.registry import foreign
from toolkit.images.registry.references import Reference, is_loopback
from toolkit.images.registry.registry import apptainer_login, proxy_variables, resolve_source
from toolkit.images.store import store
from toolkit.images.store.store import StoredImage
from toolkit.model.image import Manifest
from toolkit.shell import Progress
from toolkit.units import human_size

_PATIENCE = 6 * 3600.0  # seconds


def fetch(image: str, progress: Progress) -> StoredImage:
    """Fetch the image of a reference into the store, unless it is there.

    Raises:
        ToolkitError: as ``pull``.
    """
    stored = foreign.find_stored(image)
    if stored is None:
        try:
            stored = store.find(str(pull(image, foreign.derive_name(image), progress)))
        except UsageError:
            stored = foreign.find_stored(image)  # another command has fetched it meanwhile
            if stored is None:
                raise
    return stored


def push(image: StoredImage, target: str, progress: Progress) -> Reference:
    """Push an image, its manifest and its bill of materials to a registry.

    Raises:
        UsageError: the target is not of the form ``oras://registry/path:tag``.
        CommandFailedError: the registry refused it.
    """
    if not target.startswith("oras://"):
        raise UsageError(
            f"{target!r} cannot be pushed to", place="TO", next_step="oras://registry/path:tag"
        )
    place = foreign.parse_image(target, "TO")
    path = Path(image.path)
    with (
        workspace(store.images_directory()) as space,
        hold_for_reading(path, "pushed", progress),
    ):
        environment = _environment(place, space.scratch)
        progress.begin("push", f"{image.name}, {human_size(Path(image.path).stat().st_size)}")
        words = ["push", *_plain(place), image.path, f"oras://{place.pinned}"]
        _apptainer(words, environment, place)
        progress.end()
    return place


def pull(origin: str, name: str | None, progress: Progress, *, force: bool = False) -> Path:
    """Pull an image from a registry into the user's own directory. Return the path of the SIF.

    Args:
        origin: ``oras://...``, as ``push`` wrote it, or ``docker://...``: a foreign image,
            converted once, before any job runs it.
        progress: shows the steps.
        name: of the image here; None: that of its manifest, else of the repository.
        force: replace an image of that name.

    Raises:
        UsageError: the origin is none of these, or the name is taken or cannot be one.
        CommandFailedError: the registry does not give it.
        BuildError: what came is not what its manifest describes.
        MalformedInputError: what came is broken, or wants a name that is a path.
    """
    if name is not None:
        require_image_name(name, "--name", error=UsageError)
    if not foreign.is_reference(origin):
        raise UsageError(
            f"{origin!r} is not the address of an image in a registry",
            place="FROM",
            next_step="oras://registry/path:tag, or docker://registry/path:tag",
        )
    scheme, wanted = origin.partition("://")[0], foreign.parse_image(origin, "FROM")
    # A tag may move on, so that a foreign image is fetched by the digest that its tag has now.
    place = resolve_source(str(wanted), written="FROM").place if scheme == "docker" else wanted
    directory = store.images_directory()
    with workspace(directory) as space:
        scratch, sif = space.scratch, space.sif
        environment = _environment(place, scratch)
        progress.begin("pull", str(wanted))
        words = ["pull", *_plain(place), str(sif), f"{scheme}://{place.pinned}"]
        _apptainer(words, environment, place, directory=directory)
        progress.end()
        # A foreign image is converted here, so that its manifest can be put into it.
        manifest = None if scheme == "docker" else store.manifest_of(sif)
        chosen = name or (manifest.name if manifest else wanted.path.rsplit("/", 1)[-1])
        require_image_name(chosen, str(place))
        origin = f"{scheme}://{wanted}"
        if manifest is None:
            progress.begin("inspect", "contents of the image")
            manifest = foreign.describe(sif, origin, place.digest)
            progress.end()
            manifest = msgspec.structs.replace(manifest, name=chosen)
        manifest = msgspec.structs.replace(manifest, origin=origin)
        if scheme == "docker":
            store.seal(sif, manifest, "")
        target = directory / f"{chosen}.sif"
        with hold_image(target, "pulled", wait=progress):
            return _appear(sif, target, None if scheme == "docker" else manifest, force=force)


def _appear(sif: Path, target: Path, manifest: Manifest | None, *, force: bool) -> Path:
    if target.exists() and not force:
        raise UsageError(
            f"an image {target.name.removesuffix('.sif')} exists already",
            place="--name",
            next_step="--force replaces it; --name gives the new one another name",
        )
    sif.chmod(0o755)
    return store.publish(sif, target.parent, target.name.removesuffix(".sif"), manifest)


def _plain(place: Reference) -> list[str]:
    return ["--no-https"] if is_loopback(place.registry) else []


def _apptainer(
    words: list[str],
    environment: dict[str, str],
    place: Reference,
    *,
    directory: Path | None = None,
) -> None:
    done = shell.run(
        [shell.require_apptainer(), *words], env=environment, check=False, timeout=_PATIENCE
    )
    if done.ok:
        return
    output = "\n".join(done.tail())
    if "no space left" in output.lower():
        raise NoSpaceError(
            f"a disk was full while {words[0]} worked",
            place=str(directory or place),
            details=done.tail(),
        )
    if "unauthorized" in output.lower() or "denied" in output.lower() or "401" in output:
        step = (
            f"apptainer registry login --username NAME oras://{place.registry}, "
            f"or docker login {place.registry}"
        )
        raise CommandFailedError(
            f"the registry {place.registry} requires a login",
            place=str(place),
            details=done.tail(),
            next_step=step,
        )
    raise CommandFailedError(
        f"apptainer {words[0]} failed for {place}",
        place=str(place),
        details=done.tail(),
        next_step="check the address, and that this machine reaches the registry; then try again",
    )


def _environment(place: Reference, directory: Path) -> dict[str, str]:
    """Return Apptainer's environment: caches in a temporary directory, and the user's login."""
    known = {
        name: os.environ[name] for name in ("PATH", "HOME", "SSL_CERT_FILE") if name in os.environ
    }
    places = {
        f"{tool}_{what}": str(directory / what.lower())
        for tool in ("APPTAINER", "SINGULARITY")
        for what in ("CACHEDIR", "TMPDIR")
    }
    for path in set(places.values()):
        Path(path).mkdir(exist_ok=True)
    return {
        **known,
        **proxy_variables(),
        "LC_ALL": "C.UTF-8",
        **places,
        **apptainer_login(place.registry, directory),
    }
