"""Transfer images to and from a registry (``oras://``), and fetch foreign ones (``docker://``).

A SIF does not travel alone. Its manifest and its bill of materials go along as a small SIF under
the tag with the suffix ``-toolkit``, which has nothing but that text. No file gets the name of an
image before it is complete and equal to what was sent.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec

from toolkit import shell
from toolkit.errors import (
    BuildError,
    CommandFailedError,
    MalformedInputError,
    NoSpaceError,
    UsageError,
)
from toolkit.images.host.mutex import hold_for_reading, hold_image
from toolkit.images.host.workspace import workspace
from toolkit.images.recipe.names import require_image_name
from toolkit.images.registry import foreign
from toolkit.images.registry.references import Reference, is_loopback
from toolkit.images.registry.registry import apptainer_login, proxy_variables, resolve_source
from toolkit.images.sif import header as sif
from toolkit.images.store import sbom, store
from toolkit.images.store.sbom import ENDING
from toolkit.images.store.sif_files import read_text_object
from toolkit.images.store.store import StoredImage
from toolkit.model.base import from_json, to_json
from toolkit.model.image import Manifest
from toolkit.shell import Progress
from toolkit.units import human_size

_BESIDE = "-toolkit"  # suffix of the tag for the text about an image
_GENERIC = "6"  # the type of a SIF's data object that is no type of Apptainer's own
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
        image, directory = store.find(image.path), space.scratch
        environment = _environment(place, directory)
        progress.begin("push", f"{image.name}, {human_size(Path(image.path).stat().st_size)}")
        words = ["push", *_plain(place), image.path, f"oras://{place.pinned}"]
        _apptainer(words, environment, place)
        progress.end()
        bundle = _bundle(image)
        if bundle:
            progress.begin("push", "manifest and bill of materials")
            small, text = str(directory / "about.sif"), directory / "about.json"
            text.write_text(json.dumps(bundle), encoding="utf-8")
            for words in (
                ["sif", "new", small],
                ["sif", "add", "--datatype", _GENERIC, "--groupid", "1", small, str(text)],
                ["push", "-U", *_plain(place), small, f"oras://{place.pinned}{_BESIDE}"],
            ):
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
        manifest, beside = (None, {}) if scheme == "docker" else _about(place, scratch, environment)
        origin = f"{scheme}://{wanted}"
        header = store.whole_header(sif)
        if manifest and (manifest.sif_id, manifest.size) != (header.sif_id, sif.stat().st_size):
            raise BuildError(
                f"{place} is not what its manifest describes: "
                "another image was pushed under this tag",
                place=str(place),
                next_step="push it again from where it was built, "
                "or pull it by docker:// as a foreign image",
            )
        chosen = name or (manifest.name if manifest else wanted.path.rsplit("/", 1)[-1])
        require_image_name(chosen, str(place))
        if manifest is None:
            progress.begin("inspect", "contents of the image")
            manifest = foreign.describe(sif, origin, place.digest)
            progress.end()
        manifest = msgspec.structs.replace(manifest, name=chosen, origin=origin)
        target = directory / f"{chosen}.sif"
        with hold_image(target, "pulled", wait=progress):
            return _appear(sif, target, manifest, beside.get(ENDING, ""), force=force)


def _appear(sif: Path, target: Path, manifest: Manifest, bill: str, *, force: bool) -> Path:
    if target.exists() and not force:
        raise UsageError(
            f"an image {manifest.name} exists already",
            place="--name",
            next_step="--force replaces it; --name gives the new one another name",
        )
    sif.chmod(0o755)
    store.replace_image(sif, target, manifest, bill)
    return target


def _plain(place: Reference) -> list[str]:
    return ["--no-https"] if is_loopback(place.registry) else []


def _bundle(image: StoredImage) -> dict[str, str]:
    """Return the texts that go along, by the endings of their files."""
    if image.manifest is None:
        return {}
    bill = sbom.beside(image)
    return {".json": to_json(image.manifest), **({ENDING: bill} if bill else {})}


def _about(
    place: Reference, scratch: Path, environment: dict[str, str]
) -> tuple[Manifest | None, dict[str, str]]:
    """Return the manifest and files that were pushed beside an image; none by other programs."""
    small = scratch / "about.sif"
    words = ["pull", *_plain(place), str(small), f"oras://{place.pinned}{_BESIDE}"]
    try:
        _apptainer(words, environment, place, directory=scratch)
    except CommandFailedError:
        return None, {}
    try:
        # The data object that ``push`` adds is of the kind that SIFs have for their labels.
        bundle = msgspec.json.decode(read_text_object(small, sif.LABELS), type=dict[str, str])
        return from_json(bundle.pop(".json", ""), Manifest), bundle
    except (ValueError, RecursionError) as error:
        reason = f"the manifest beside {place} cannot be read: {error}"
        raise MalformedInputError(reason, place=f"{place}{_BESIDE}") from None


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
