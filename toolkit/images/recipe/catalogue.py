"""NGC releases, as facts that each know their source, and the CUDA of images.

Pure, but for reading ``catalogue.toml``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from toolkit.config import package_directory
from toolkit.errors import UnknownImageError
from toolkit.files import read_toml
from toolkit.model.base import Model
from toolkit.units import numbers

if TYPE_CHECKING:
    from toolkit.model.image import Manifest

_TORCH = re.compile(r"\+cu(?P<major>\d{2})(?P<minor>\d)")
_PACKAGE = re.compile(r"cuda-cudart-(?P<major>\d{1,3})-(?P<minor>\d{1,3})\Z")
_WHEEL = re.compile(r"(?P<major>\d{1,3})\.(?P<minor>\d{1,3})(\.|\Z)")
_RUNTIME = re.compile(r"nvidia-cuda-runtime(-cu\d+)?\Z")
_CODE = re.compile(r"(?P<kind>sm|compute)_(?P<major>\d{1,3})(?P<minor>\d)(?P<only>[af]?)\Z")
NONE = "none"  # the value of a fact if the release is known not to have the component


class Fact(Model, frozen=True, kw_only=True):
    """One property of a release.

    Attributes:
        value: as its source writes it; ``none``: the release is known not to have it.
        source: title or address of the document that states it; in the file, the key of that.
        note: a remark for readers; in the file, the key of that.
    """

    value: str
    source: str = ""
    note: str = ""


class Release(Model, frozen=True, kw_only=True):
    """A release of an NGC image.

    A fact that is missing from ``facts`` is unknown.

    Attributes:
        framework: ``pytorch`` or ``tensorflow``.
        release: year and month: ``22.03``.
        facts: by name; the names are those of ``FACTS``.
    """

    framework: str
    release: str
    facts: dict[str, Fact]

    @property
    def name(self) -> str:
        """Return the name in the catalogue: ``pytorch:22.03``."""
        return f"{self.framework}:{self.release}"

    @property
    def reference(self) -> str:
        """Return the image reference: ``nvcr.io/nvidia/pytorch:22.03-py3``."""
        return self.facts["reference"].value

    def value(self, fact: str) -> str | None:
        """Return the value of a fact; None if it is unknown or ``none``."""
        known = self.facts.get(fact)
        return None if known is None or known.value == NONE else known.value


# The names of all facts, in the order in which they are printed.
FACTS = (
    *("reference", "version", "python", "ubuntu", "cuda", "nccl"),
    *("openmpi", "hpcx", "driver", "horovod", "constraints"),
)


class CatalogueFile(Model, frozen=True, kw_only=True):
    """The contents of ``catalogue.toml``.

    The facts of a release come from its ``source``, or the sheet, unless they name another one.
    """

    sources: dict[str, str]
    notes: dict[str, str]
    references: dict[str, str]
    drivers: dict[str, str]
    gpus: dict[str, str]
    releases: tuple[dict[str, str | Fact], ...]


@lru_cache(maxsize=1)
def _read_catalogue() -> CatalogueFile:
    return read_toml(package_directory("images/recipe") / "catalogue.toml", CatalogueFile)


@lru_cache(maxsize=1)
def list_releases() -> tuple[Release, ...]:
    """Return every release in the catalogue by framework, the newest first."""
    written = _read_catalogue()
    return tuple(
        sorted(
            (_release(entry, written) for entry in written.releases),
            key=lambda release: (release.framework, *(-part for part in numbers(release.release))),
        )
    )


def _release(entry: Mapping[str, str | Fact], written: CatalogueFile) -> Release:
    framework, release = str(entry["framework"]), str(entry["release"])
    reference = written.references[framework].format(release=release)
    facts = {"reference": Fact(value=reference, source=written.sources["registry"])}
    for name in FACTS:
        if name not in entry:
            continue
        stated = entry[name]
        fact = stated if isinstance(stated, Fact) else Fact(value=stated)
        facts[name] = Fact(
            value=fact.value,
            source=written.sources[fact.source or str(entry.get("source", "sheet"))],
            note=written.notes[fact.note] if fact.note else "",
        )
    return Release(framework=framework, release=release, facts=facts)


def find(framework: str, release: str) -> Release:
    """Return a release by its framework (``pytorch``) and month (``22.03``).

    Raises:
        UnknownImageError: It is not in the catalogue; names the nearest that is.
    """
    name, known = f"{framework}:{release}", {each.name: each for each in list_releases()}
    if name not in known:
        raise UnknownImageError(
            f"the catalogue has no release {name}",
            choices=known,
            value=name,
            next_step="toolkit image search",
        )
    return known[name]


def find_by_name(text: str) -> Release | None:
    """Return the release that a name means, or None.

    A name is ``pytorch:22.03``, ``pytorch:22.03-py3`` or ``nvcr.io/nvidia/pytorch:22.03-py3``.
    An image of another registry, such as a mirror, may be another image.
    """
    name = text.removeprefix("docker://")
    return next(
        (
            release
            for release in list_releases()
            if name == release.reference
            or text in (release.name, release.reference.rsplit("/", 1)[-1])
        ),
        None,
    )


def find_oldest_driver(cuda: str) -> tuple[str, str] | None:
    """Return the oldest driver that runs programs of a CUDA version, and the source of that fact.

    None if the catalogue has no such fact. From CUDA 11 on there is one driver for each major
    version: NVIDIA's "minor version compatibility".
    """
    written = _read_catalogue()
    parts = numbers(cuda)
    keys = (".".join(map(str, parts[:2])), str(parts[0]) if parts else "")
    driver = next((written.drivers[key] for key in keys if key in written.drivers), None)
    return (driver, written.sources["cuda-guide"]) if driver else None


def find_cuda(manifest: Manifest) -> str:
    """Return CUDA's version, or an empty text if it is not known.

    It is that of the NGC release that the image is based on, that which torch was built for, or
    that of CUDA's packages.
    """
    release = find_by_name(manifest.base.reference) if manifest.base else None
    if release is not None and (version := release.value("cuda")):
        return version
    match = next(filter(None, map(_TORCH.search, manifest.frameworks.values())), None)
    match = match or next(filter(None, map(_PACKAGE.match, manifest.packages.apt)), None)
    wheels = (text for name, text in manifest.packages.pip.items() if _RUNTIME.match(name))
    match = match or next(filter(None, map(_WHEEL.match, wheels)), None)
    return f"{match['major']}.{match['minor']}" if match else ""


def find_capability(gpu: str) -> tuple[str, str] | None:
    """Return the compute capability of a GPU, such as ``V100 NVLink``, and the fact's source.

    None if the catalogue does not have the GPU.
    """
    written = _read_catalogue()
    words = re.split(r"[^a-z0-9]", gpu.lower())
    capability = next((written.gpus[word] for word in words if word in written.gpus), None)
    return (capability, written.sources["cuda-gpus"]) if capability else None


def runs_on(codes: Iterable[str], capability: str) -> bool:
    """Return whether a GPU runs machine code (``sm_80``) or intermediate code (``compute_80``).

    Machine code runs on GPUs of the same major version and at least its minor version,
    intermediate code on all that are not older; ``sm_90a`` on that GPU only.
    """
    major, minor = numbers(capability)
    for code in filter(None, map(_CODE.match, codes)):
        version = (int(code["major"]), int(code["minor"]))
        if version > (major, minor) or (code["only"] == "a" and version != (major, minor)):
            continue
        if version[0] == major or (code["kind"] == "compute" and not code["only"]):
            return True
    return False


def is_for_cpus(manifest: Manifest) -> bool:
    """Return whether the frameworks in the image are built for CPUs only.

    At least one has a version for CPUs, and none has one for CUDA.
    """
    versions = manifest.frameworks.values()
    return (
        any(framework_version.endswith("+cpu") for framework_version in versions)
        and not any(_TORCH.search(framework_version) for framework_version in versions)
        and not find_cuda(manifest)
    )


def has_compat(manifest: Manifest) -> bool:
    """Return whether the image has the package with which newer CUDA runs on older drivers.

    NGC's images all have it.
    """
    return any(name.startswith("cuda-compat-") for name in manifest.packages.apt)
