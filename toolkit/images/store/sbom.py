"""The bill of materials of an image: its contents in CycloneDX 1.6."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from toolkit import __version__
from toolkit.images.sif import header as sif
from toolkit.images.store.contents import Contents, DebianPackage, PythonPackage, read_contents
from toolkit.images.store.sif_files import partition_digest, read_object
from toolkit.images.store.store import BILL, StoredImage
from toolkit.model.image import Manifest

_NAMESPACE = uuid.UUID("5b9f2c0e-5a4e-4d1b-9d5c-3c1e0c6f7a11")
_Json = dict[str, Any]


def cyclonedx(manifest: Manifest, contents: Contents) -> str:
    """Return the document, as JSON; the same image gives the same bytes.

    Args:
        manifest: of the image.
        contents: of the image.
    """
    image = {
        "type": "container",
        "bom-ref": f"image:{manifest.name}",
        "name": manifest.name,
        "version": manifest.recipe_hash[:12],
        "properties": _properties(manifest),
    }
    tool = {"type": "application", "name": "toolkit", "version": __version__}
    components = list(_components(contents))
    contained = [component["bom-ref"] for component in components]
    serial = uuid.uuid5(_NAMESPACE, f"{manifest.recipe_hash} {manifest.built}")
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "serialNumber": f"urn:uuid:{serial}",
        "metadata": {
            "timestamp": manifest.built,
            "tools": {"components": [tool]},
            "component": image,
        },
        "components": components,
        "dependencies": [{"ref": image["bom-ref"], "dependsOn": contained}],
    }
    return msgspec.json.format(msgspec.json.encode(document)).decode() + "\n"


def _properties(manifest: Manifest) -> list[dict[str, str]]:
    values = {
        "toolkit:built": manifest.built,
        "toolkit:recipe-hash": manifest.recipe_hash,
        "toolkit:partition": manifest.partition,
        "toolkit:lock": manifest.locked,
        "toolkit:base": manifest.base.reference if manifest.base else "",
        "toolkit:base-digest": manifest.base.digest if manifest.base else "",
        **{f"toolkit:horovod:{name}": str(value) for name, value in manifest.horovod.items()},
    }
    return [{"name": name, "value": value} for name, value in values.items() if value]


def _components(contents: Contents) -> Iterator[_Json]:
    if contents.system:
        yield {"type": "operating-system", "bom-ref": "system", "name": contents.system}
    distribution = contents.system.split()[0].lower() if contents.system else "debian"
    yield from (_debian(package, distribution) for package in contents.debian)
    # Of two with one name, Python imports the first on its path.
    first = {package.name.lower(): package for package in reversed(contents.pip)}
    yield from (_python(first[name]) for name in sorted(first))


def _debian(package: DebianPackage, distribution: str) -> _Json:
    url = f"pkg:deb/{quote(distribution)}/{quote(package.name)}@{quote(package.version, safe=':')}"
    source = f"{package.source} {package.source_version}"
    return {
        **_library(package.name, package.version, f"{url}?arch={package.architecture}"),
        "properties": [{"name": "toolkit:source", "value": source}],
    }


def _python(package: PythonPackage) -> _Json:
    name = package.name.lower().replace("_", "-")
    url = f"pkg:pypi/{quote(name)}@{quote(package.version, safe=':')}"
    licenses = {"licenses": [_license(package.license)]} if package.license else {}
    return {**_library(package.name, package.version, url), **licenses}


def _library(name: str, version: str, url: str) -> _Json:
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}


def _license(text: str) -> _Json:
    """Return SPDX's expression if the text is one, else the package's own text."""
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    try:
        return {"expression": canonicalize_license_expression(text)}
    except InvalidLicenseExpression:
        return {"license": {"name": text}}


def materials(image: StoredImage) -> str:
    """Return the bill of materials of an image, in JSON: the one in it, else made now.

    Raises:
        BuildError: the image does not run, or does not list its contents.
        NeedsInstallError: Apptainer is not installed.
    """
    if document := read_object(Path(image.path), sif.BILL, BILL):
        return document.decode(errors="replace")
    contents = read_contents(image.path)
    manifest = image.manifest or _foreign(Path(image.path), image.name)
    return cyclonedx(msgspec.structs.replace(manifest, horovod=contents.horovod), contents)


def _foreign(path: Path, name: str) -> Manifest:
    """Return a manifest for an image that we did not build, with the facts of its file only."""
    when = datetime.fromtimestamp(int(path.stat().st_mtime), timezone.utc).isoformat()
    digest = partition_digest(path)
    return Manifest(
        name=name,
        sif_id="",
        size=path.stat().st_size,
        recipe_hash=digest,
        built=when,
        partition=digest,
    )
