"""The bill of materials of an image: its contents in CycloneDX, by the OWASP library for it.

CycloneDX and not SPDX, because its library starts in a seventh of a second and brings six small
packages, while that for SPDX brings a store for RDF. The library is imported when a document is
made, and not before.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from toolkit import __version__
from toolkit.files import read_text, write_atomically
from toolkit.images.store.contents import Contents, DebianPackage, PythonPackage, read_contents
from toolkit.images.store.sif_files import partition_digest
from toolkit.images.store.store import StoredImage, whole_header
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


def cyclonedx(manifest: Manifest, contents: Contents) -> str:
    """Return the document, as JSON of CycloneDX 1.6; the same image gives the same bytes.

    Args:
        manifest: of the image.
        contents: of the image.
    """
    from cyclonedx.output.json import JsonV1Dot6

    return JsonV1Dot6(_bom(manifest, contents)).output_as_string(indent=2) + "\n"


def _bom(manifest: Manifest, contents: Contents) -> Bom:
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
        name="toolkit", type=ComponentType.APPLICATION, version=__version__, bom_ref="tool:toolkit"
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


def materials(image: StoredImage) -> str:
    """Return the bill of materials of an image, in JSON.

    Raises:
        BuildError: the image does not run, or does not list its contents.
        NeedsInstallError: Apptainer is not installed.
    """
    if document := beside(image):
        return document
    contents = read_contents(image.path)
    manifest = image.manifest or _foreign(Path(image.path), image.name)
    return cyclonedx(msgspec.structs.replace(manifest, horovod=contents.horovod), contents)


def beside(image: StoredImage) -> str:
    """Return the bill of materials beside an image; empty if there is none of this very build."""
    document = _read(image)
    return document if image.manifest and belongs(document, image.manifest) else ""


def complete(image: StoredImage) -> None:
    """Write the document beside an image that we built, if a build was stopped before it could."""
    text = materials(image)
    if _read(image) != text:
        write_atomically(_place(image), text)


def _place(image: StoredImage) -> Path:
    return Path(f"{image.path.removesuffix('.sif')}{ENDING}")


def _read(image: StoredImage) -> str:
    """Return the document beside an image; empty where none can be read."""
    try:
        return read_text(_place(image))
    except (OSError, UnicodeDecodeError):
        return ""


def _foreign(path: Path, name: str) -> Manifest:
    """Return a manifest for an image that we did not build, with the facts of its file only."""
    when = datetime.fromtimestamp(int(path.stat().st_mtime), timezone.utc).isoformat()
    digest = partition_digest(path)
    return Manifest(
        name=name,
        sif_id=whole_header(path).sif_id,
        size=path.stat().st_size,
        recipe_hash=digest,
        built=when,
        partition=digest,
    )
