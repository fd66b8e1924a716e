"""Facts on an image's CUDA from its manifest alone. Pure but for reading the catalogue."""

from __future__ import annotations

import re

from toolkit.model.image import Manifest

_TORCH = re.compile(r"\+cu(?P<major>\d{2})(?P<minor>\d)")
_PACKAGE = re.compile(r"cuda-cudart-(?P<major>\d+)-(?P<minor>\d+)\Z")


def find_version(manifest: Manifest) -> str:
    """Return CUDA's version, or an empty text if it is not known.

    It is that of the NGC release that the image is based on, that which torch was built for, or
    that of CUDA's packages.
    """
    from toolkit.images.recipe import catalogue

    release = catalogue.find_by_name(manifest.base.reference) if manifest.base else None
    if release is not None and (version := release.value("cuda")):
        return version
    match = next(filter(None, map(_TORCH.search, manifest.frameworks.values())), None)
    match = match or next(filter(None, map(_PACKAGE.match, manifest.packages.apt)), None)
    return f"{match['major']}.{match['minor']}" if match else ""


def is_for_cpus(manifest: Manifest) -> bool:
    """Return whether the frameworks in the image are built for CPUs only.

    At least one has a version for CPUs, and none has one for CUDA.
    """
    versions = manifest.frameworks.values()
    return (
        any(framework_version.endswith("+cpu") for framework_version in versions)
        and not any(_TORCH.search(framework_version) for framework_version in versions)
        and not find_version(manifest)
    )


def has_compat(manifest: Manifest) -> bool:
    """Return whether the image has the package with which newer CUDA runs on older drivers.

    NGC's images all have it.
    """
    return any(name.startswith("cuda-compat-") for name in manifest.packages.apt)


def find_oldest_driver(cuda: str) -> tuple[str, str] | None:
    """Return the oldest driver that runs this CUDA and the source of that fact, or None."""
    from toolkit.images.recipe import catalogue

    return catalogue.find_oldest_driver(cuda)
