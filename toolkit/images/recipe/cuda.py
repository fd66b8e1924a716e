"""What is known of an image's CUDA by its manifest alone. Pure but for reading the catalogue."""

from __future__ import annotations

import re

from toolkit.model.image import Manifest

_TORCH = re.compile(r"\+cu(?P<major>\d{2})(?P<minor>\d)")
_PACKAGE = re.compile(r"cuda-cudart-(?P<major>\d+)-(?P<minor>\d+)\Z")


def version(manifest: Manifest) -> str:
    """CUDA's version: of the NGC release that the image began as, of what torch was built for, or of CUDA's packages; empty: not known."""
    from toolkit.images.recipe import catalogue

    release = catalogue.find_by_name(manifest.base.reference) if manifest.base else None
    if release is not None and release.cuda:
        return release.cuda
    found = next(filter(None, map(_TORCH.search, manifest.frameworks.values())), None)
    found = found or next(filter(None, map(_PACKAGE.match, manifest.packages.apt)), None)
    return f"{found['major']}.{found['minor']}" if found else ""


def for_cpus(manifest: Manifest) -> bool:
    """Whether a framework in it says that it was built without CUDA, and none that it was built with it."""
    versions = manifest.frameworks.values()
    return (
        any(one.endswith("+cpu") for one in versions)
        and not any(_TORCH.search(one) for one in versions)
        and not version(manifest)
    )


def compat(manifest: Manifest) -> bool:
    """Whether it has the package with which newer CUDA runs on older drivers; NGC's images all have it."""
    return any(name.startswith("cuda-compat-") for name in manifest.packages.apt)


def oldest_driver(cuda: str) -> tuple[str, str] | None:
    """The oldest driver that runs this CUDA, and where that is written; None: not known."""
    from toolkit.images.recipe import catalogue

    return catalogue.oldest_driver(cuda)
