"""What a manifest says of where an image comes from, found out from the finished image and from the machine that built it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from toolkit import __version__, shell
from toolkit.errors import CommandFailedError, NeedsInstallError
from toolkit.images.build.contents import Contents
from toolkit.images.recipe.bases import Base, Debootstrap, LocalImage
from toolkit.images.store.sif_files import partition_digest
from toolkit.model.image import BaseImage, Manifest
from toolkit.quoting import shell_words

_VERSION = re.compile(r"(?<![\d.])\d{1,9}(?:\.\d{1,9})+\S*")


def describe_base(base: Base, *, digest: bool = False) -> BaseImage:
    """What a recipe begins with.

    Args:
        digest: hash a base that lies on this machine, which takes a second for each 1.5 GB.
    """
    if isinstance(base, Debootstrap):
        return BaseImage(reference=base.detail())
    if isinstance(base, LocalImage):
        path = Path(base.path)
        return BaseImage(
            reference=base.path,
            digest=f"sha256:{partition_digest(path)}" if digest and path.is_file() else "",
        )
    return BaseImage(
        reference=str(getattr(base, "reference", base.detail())),
        digest=str(getattr(base, "digest", None) or ""),
    )


def tool_versions(builder: str) -> dict[str, str]:
    """What an image was built with.

    Args:
        builder: the programs that built it: ``docker 20.10.24, apptainer 1.4.5``.
    """
    found = {"toolkit": __version__}
    for one in builder.split(", "):
        name, _, version = one.strip().rpartition(" ")
        if name and version:
            found[name] = version
    for name, program, option in (
        ("squashfs-tools", "mksquashfs", "-version"),
        ("debootstrap", "debootstrap", "--version"),
    ):
        with suppress(
            NeedsInstallError, CommandFailedError
        ):  # nothing to fail a finished build for
            said = _VERSION.search(shell.run([program, option], check=False, timeout=30).stdout)
            found |= {name: said[0]} if said else {}
    return found


def add_provenance(
    manifest: Manifest, contents: Contents, definition: str, base: BaseImage, command: Sequence[str]
) -> Manifest:
    """A manifest with where the image comes from.

    Args:
        contents: what the finished image says is in it.
        definition: that was built.
        command: that builds it again.
    """
    return msgspec.structs.replace(
        manifest,
        base=base,
        packages=contents.packages,
        pythons=contents.pythons,
        system=contents.system,
        horovod=contents.horovod,
        definition_hash=hashlib.sha256(definition.encode()).hexdigest(),
        tools=tool_versions(manifest.builder),
        command=shell_words(command),
    )
