"""The end of a build: what the image has proven itself goes down as verified, and the rest is looked at from outside."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from toolkit.errors import ToolkitError
from toolkit.images.build.collect import read_contents
from toolkit.images.store import store
from toolkit.images.store.store import FoundImage
from toolkit.images.verify import CHECKS, merged, verdicts
from toolkit.images.verify.case import Case, Inside, Met
from toolkit.images.verify.nodes import local_drivers, site_or_reason
from toolkit.model.image import Python, Verdict


def finish(image: FoundImage) -> tuple[Verdict, ...]:
    """Every verdict of an image that was just built; they are in its manifest then.

    What takes longer, and what takes jobs on nodes, is left to `toolkit image verify`.
    """
    manifest = image.manifest
    assert manifest
    own = tuple(
        Verdict(
            name=one.name,
            outcome="passed" if one.passed else "failed",
            detail=one.detail,
            when=manifest.built,
        )
        for one in manifest.checks
    )
    gpus, drivers = local_drivers()
    site, reason = site_or_reason("auto", wanted=False)
    case = Case(
        image=image,
        inside=Inside(image.path, gpus=gpus > 0),
        gpus=gpus,
        site=site,
        no_site=reason,
        met={"here": Met(outcome="unchecked", detail="", drivers=drivers)} if drivers else {},
        mpi=manifest.mpi,
    )
    with ThreadPoolExecutor() as ahead:  # each starts the image, while another check does
        ahead.submit(lambda: case.looked)
        found = (
            *own,
            *verdicts(case, only=[name for name, entry in CHECKS.items() if entry.at_end]),
        )
    record(image, found)
    return found


def record(image: FoundImage, told: tuple[Verdict, ...]) -> None:
    """Into the manifest of an image of one's own; of another's nothing is written."""
    path, manifest = Path(image.path), image.manifest
    if manifest is not None and os.access(path.parent, os.W_OK):
        pythons = manifest.pythons or _pythons(image.path)
        verified = merged(manifest.verified, told)
        store.rewrite_manifest(path, replace(manifest, verified=verified, pythons=pythons))


def _pythons(image: str) -> tuple[Python, ...]:
    """Return the Pythons of an image that was built before manifests recorded them; none where it does not tell."""
    with suppress(ToolkitError):
        return read_contents(image).pythons
    return ()
