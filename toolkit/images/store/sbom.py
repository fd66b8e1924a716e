"""The contents of an image as a CycloneDX bill of materials, by the OWASP library for it.

CycloneDX and not SPDX, because its library starts in a seventh of a second and brings six small
packages, while that for SPDX brings a store for RDF. The library is imported when a document is
made, and not before. Pure: no clock, no files.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from toolkit.images.store.contents import Contents, DebianPackage, PythonPackage
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
    """Return whether a document belongs to this very build."""
    return (
        f'"value": "{manifest.built}"' in document
        and f'"value": "{manifest.recipe_hash}"' in document
    )


def cyclonedx(manifest: Manifest, contents: Contents, version: str) -> str:
    """Return the document, as JSON of CycloneDX 1.6; the same image gives the same bytes.

    Args:
        manifest: of the image.
        contents: of the image.
        version: of the tool.
    """
    from cyclonedx.output.json import JsonV1Dot6

    return JsonV1Dot6(_bom(manifest, contents, version)).output_as_string(indent=2) + "\n"


def _bom(manifest: Manifest, contents: Contents, version: str) -> Bom:
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType

    values = {
        _BUILT: manifest.built,
        _RECIPE: manifest.recipe_hash,
        "toolkit:partition": manifest.partition,
        "toolkit:lock": manifest.locked,
    }
    if manifest.base:
        values |= {
            "toolkit:base": manifest.base.reference,
            "toolkit:base-digest": manifest.base.digest,
        }
    values |= {f"toolkit:horovod:{name}": str(value) for name, value in manifest.horovod.items()}
    image = Component(
        name=manifest.name,
        type=ComponentType.CONTAINER,
        version=manifest.recipe_hash[:12],
        bom_ref=f"image:{manifest.name}",
        properties=[Property(name=name, value=value) for name, value in values.items() if value],
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
    yield from (_debian(package, distribution) for package in contents.debian)
    names: set[str] = set()
    for package in contents.pip:
        if package.name.lower() not in names:  # Python imports the first on its path
            names.add(package.name.lower())
            yield _python(package)


def _debian(package: DebianPackage, distribution: str) -> Component:
    from cyclonedx.model import Property
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    url = PackageURL(
        "deb", distribution, package.name, package.version, {"arch": package.architecture}
    )
    source = f"{package.source} {package.source_version}"
    return Component(
        name=package.name,
        version=package.version,
        type=ComponentType.LIBRARY,
        purl=url,
        bom_ref=str(url),
        properties=[Property(name="toolkit:source", value=source)],
    )


def _python(package: PythonPackage) -> Component:
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    url = PackageURL("pypi", None, package.name.lower().replace("_", "-"), package.version)
    licenses = [_license(package.license)] if package.license else []
    return Component(
        name=package.name,
        version=package.version,
        type=ComponentType.LIBRARY,
        purl=url,
        bom_ref=str(url),
        licenses=licenses,
    )


def _license(text: str) -> License:
    """Return SPDX's identifier or expression if the text is one, else the package's own text."""
    from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
    from cyclonedx.spdx import is_expression, is_supported_id

    if is_supported_id(text):
        return DisjunctiveLicense(id=text)
    return LicenseExpression(text) if is_expression(text) else DisjunctiveLicense(name=text)
