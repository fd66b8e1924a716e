"""Transfer images to and from a registry (``oras://``), and fetch foreign ones (``docker://``).

The manifest and the bill of materials are in the SIF, so that they go along. No file gets the name
of an image before it is complete.
"""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from toolkit import shell
from toolkit.errors import NoSpaceError, UsageError
from toolkit.images.host.mutex import hold_image
from toolkit.images.host.workspace import Workspace, workspace
from toolkit.images.recipe.names import require_image_name
from toolkit.images.registry import foreign
from toolkit.images.registry.references import Reference, is_loopback
from toolkit.images.registry.registry import (
    apptainer_login,
    explain_failure,
    proxy_variables,
    resolve_source,
)
from toolkit.images.store import store
from toolkit.images.store.store import StoredImage
from toolkit.shell import Progress
from toolkit.units import human_size

_PATIENCE = 6 * 3600.0  # seconds


def fetch(image: str, progress: Progress) -> None:
    """Fetch the image of a reference into the store, unless it is there.

    Raises:
        ToolkitError: as ``pull``.
    """
    if foreign.find_stored(image):
        return
    try:
        pull(image, foreign.locate(image).name.removesuffix(".sif"), progress)
    except UsageError:
        if foreign.find_stored(image) is None:  # else another command has fetched it meanwhile
            raise


def push(image: StoredImage, target: str, progress: Progress) -> Reference:
    """Push an image, its manifest and its bill of materials to a registry.

    Raises:
        UsageError: the target is not of the form ``oras://registry/path:tag``.
        ForbiddenError, CommandFailedError: the registry refused it.
    """
    if not target.startswith("oras://"):
        raise UsageError(
            f"{target!r} cannot be pushed to", place="TO", next_step="oras://registry/path:tag"
        )
    place = foreign.parse_image(target, "TO")
    path = Path(image.path)
    with workspace(store.images_directory()) as space:
        progress.begin("push", f"{image.name}, {human_size(path.stat().st_size)}")
        _apptainer("push", place, [image.path, f"oras://{place.pinned}"], space)
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
        ForbiddenError, CommandFailedError: the registry does not give it.
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
    is_converted = scheme == "docker"
    # A tag may move on, so that a foreign image is fetched by the digest that its tag has now.
    place = resolve_source(str(wanted), written="FROM").place if is_converted else wanted
    directory = store.images_directory()
    with workspace(directory) as space:
        progress.begin("pull", str(wanted))
        _apptainer("pull", place, [str(space.sif), f"{scheme}://{place.pinned}"], space)
        progress.end()
        # What Apptainer converted here has no manifest, and one can be put into it.
        manifest = None if is_converted else store.manifest_of(space.sif)
        chosen = name or (manifest.name if manifest else wanted.path.rsplit("/", 1)[-1])
        require_image_name(chosen, str(place))
        if manifest is None:
            progress.begin("inspect", "contents of the image")
            manifest = foreign.describe(space.sif, chosen, f"{scheme}://{wanted}", place.digest)
            progress.end()
        manifest = replace(manifest, origin=f"{scheme}://{wanted}")
        if is_converted:
            store.seal(space.sif, manifest, "")
        target = directory / f"{chosen}.sif"
        with hold_image(target, "pulled", wait=progress):
            if target.exists() and not force:
                raise UsageError(
                    f"an image {chosen} exists already",
                    place="--name",
                    next_step="--force replaces it; --name gives the new one another name",
                )
            space.sif.chmod(0o755)
            return store.publish(space.sif, directory, chosen, None if is_converted else manifest)


def _apptainer(action: str, place: Reference, words: list[str], space: Workspace) -> None:
    """Run Apptainer with caches in a temporary directory, and with the user's login."""
    known = ("PATH", "HOME", "SSL_CERT_FILE")
    environment = {name: os.environ[name] for name in known if name in os.environ}
    environment |= {**proxy_variables(), "LC_ALL": "C.UTF-8"}
    for kind in ("CACHEDIR", "TMPDIR"):
        directory = space.scratch / kind.lower()
        directory.mkdir()
        for tool in ("APPTAINER", "SINGULARITY"):
            environment[f"{tool}_{kind}"] = str(directory)
    environment |= apptainer_login(place.registry, space.scratch)
    plain = ["--no-https"] if is_loopback(place.registry) else []
    done = shell.run(
        [shell.require_apptainer(), action, *plain, *words],
        env=environment,
        check=False,
        timeout=_PATIENCE,
    )
    if "no space left" in "\n".join(done.tail()).lower() and not done.ok:
        raise NoSpaceError(
            f"a disk was full while apptainer {action} worked",
            place=str(space.output.parent),
            details=done.tail(),
        )
    if not done.ok:
        raise explain_failure(place, done)
