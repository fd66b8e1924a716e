"""What is in an image, as a CycloneDX bill of materials, by the OWASP library for it.

CycloneDX and not SPDX, because its library starts in a seventh of a second and brings six small
packages, while that for SPDX brings a store for RDF. The library is imported when a document is
made, and not before. Pure: no clock, no files.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from toolkit.images.build.contents import Contents, DebianPackage, PythonPackage
from toolkit.model.image import Manifest

if TYPE_CHECKING:
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component
    from cyclonedx.model.license import License

ENDING = ".cdx.json"
_BUILT = "toolkit:built"  # properties by which a document is known to be of an image
_RECIPE = "toolkit:recipe-hash"
_NAMESPACE = uuid.UUID("5b9f2c0e-5a4e-4d1b-9d5c-3c1e0c6f7a11")


def belongs(document: str, manifest: Manifest) -> bool:
    """Whether a document is of this very build."""
    return (
        f'"value": "{manifest.built}"' in document
        and f'"value": "{manifest.recipe_hash}"' in document
    )


def cyclonedx(manifest: Manifest, contents: Contents, version: str) -> str:
    """The document, as JSON of CycloneDX 1.6; the same image gives the same bytes.

    Args:
        version: of the tool.
    """
    from cyclonedx.output.json import JsonV1Dot6

    return JsonV1Dot6(_bom(manifest, contents, version)).output_as_string(indent=2) + "\n"


def _bom(manifest: Manifest, contents: Contents, version: str) -> Bom:
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType

    said = {
        _BUILT: manifest.built,
        _RECIPE: manifest.recipe_hash,
        "toolkit:partition": manifest.partition,
        "toolkit:lock": manifest.locked,
    }
    if manifest.base:
        said |= {
            "toolkit:base": manifest.base.reference,
            "toolkit:base-digest": manifest.base.digest,
        }
    said |= {f"toolkit:horovod:{name}": str(value) for name, value in manifest.horovod.items()}
    image = Component(
        name=manifest.name,
        type=ComponentType.CONTAINER,
        version=manifest.recipe_hash[:12],
        bom_ref=f"image:{manifest.name}",
        properties=[Property(name=name, value=value) for name, value in said.items() if value],
    )
    tool = Component(
        name="toolkit", type=ComponentType.APPLICATION, version=version, bom_ref="tool:toolkit"
    )
    metadata = BomMetaData(component=image, timestamp=datetime.fromisoformat(manifest.built))
    metadata.tools.components.add(tool)
    bom = Bom(
        metadata=metadata,
        components=list(_components(contents)),
        serial_number=uuid.uuid5(_NAMESPACE, f"{manifest.recipe_hash} {manifest.built}"),
    )
    bom.register_dependency(image, bom.components)
    return bom


def _components(contents: Contents) -> Iterable[Component]:
    from cyclonedx.model.component import Component, ComponentType

    distribution = contents.system.split()[0].lower() if contents.system else "debian"
    if contents.system:
        yield Component(name=contents.system, type=ComponentType.OPERATING_SYSTEM, bom_ref="system")
    yield from (_debian(one, distribution) for one in contents.debian)
    seen: set[str] = set()
    for one in contents.pip:
        if one.name.lower() not in seen:  # the first on Python's path is the one that it imports
            seen.add(one.name.lower())
            yield _python(one)


def _debian(one: DebianPackage, distribution: str) -> Component:
    from cyclonedx.model import Property
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    url = PackageURL("deb", distribution, one.name, one.version, {"arch": one.architecture})
    source = f"{one.source} {one.source_version}"
    return Component(
        name=one.name,
        version=one.version,
        type=ComponentType.LIBRARY,
        purl=url,
        bom_ref=str(url),
        properties=[Property(name="toolkit:source", value=source)],
    )


def _python(one: PythonPackage) -> Component:
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    url = PackageURL("pypi", None, one.name.lower().replace("_", "-"), one.version)
    licenses = [_license(one.license)] if one.license else []
    return Component(
        name=one.name,
        version=one.version,
        type=ComponentType.LIBRARY,
        purl=url,
        bom_ref=str(url),
        licenses=licenses,
    )


def _license(text: str) -> License:
    """SPDX's identifier or expression where it is one, else what the package says, as it says it."""
    from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
    from cyclonedx.spdx import is_expression, is_supported_id

    if is_supported_id(text):
        return DisjunctiveLicense(id=text)
    return LicenseExpression(text) if is_expression(text) else DisjunctiveLicense(name=text)
