"""The bill of materials of an image: its contents in CycloneDX 1.6."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from toolkit import __version__
from toolkit.errors import ImageMissingError
from toolkit.images.sif import header as sif
from toolkit.images.store.contents import Contents
from toolkit.images.store.sif_files import read_object
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
    values = {
        "toolkit:built": manifest.built,
        "toolkit:recipe-hash": manifest.recipe_hash,
        "toolkit:partition": manifest.partition,
        "toolkit:lock": manifest.locked,
        "toolkit:base": manifest.base.reference if manifest.base else "",
        "toolkit:base-digest": manifest.base.digest if manifest.base else "",
        **{f"toolkit:horovod:{name}": str(value) for name, value in manifest.horovod.items()},
    }
    image = {
        "type": "container",
        "bom-ref": f"image:{manifest.name}",
        "name": manifest.name,
        "version": manifest.recipe_hash[:12],
        "properties": [{"name": name, "value": value} for name, value in values.items() if value],
    }
    tool = {"type": "application", "name": "toolkit", "version": __version__}
    components = _components(contents)
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


def _components(contents: Contents) -> list[_Json]:
    components: list[_Json] = []
    distribution = "debian"
    if contents.system:
        system = {"type": "operating-system", "bom-ref": "system", "name": contents.system}
        components.append(system)
        distribution = quote(contents.system.split()[0].lower())
    for each in contents.debian:
        url = f"pkg:deb/{distribution}/{quote(each.name)}@{quote(each.version, safe=':')}"
        component = _library(each.name, each.version, f"{url}?arch={each.architecture}")
        source = {"name": "toolkit:source", "value": f"{each.source} {each.source_version}"}
        components.append({**component, "properties": [source]})
    # Of two with one name, Python imports the first on its path.
    first = {package.name.lower(): package for package in reversed(contents.pip)}
    for name, package in sorted(first.items()):
        url = f"pkg:pypi/{quote(name.replace('_', '-'))}@{quote(package.version, safe=':')}"
        component = _library(package.name, package.version, url)
        if package.license:
            component["licenses"] = [{"license": {"name": package.license}}]
        components.append(component)
    return components


def _library(name: str, version: str, url: str) -> _Json:
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}


def materials(image: StoredImage) -> str:
    """Return the bill of materials in an image, in JSON.

    Raises:
        ImageMissingError: the image has none.
    """
    document = read_object(Path(image.path), sif.BILL, BILL)
    if not document:
        reason = "no bill of materials is in the image: another tool built it"
        raise ImageMissingError(reason, place=image.path)
    return document.decode(errors="replace")
