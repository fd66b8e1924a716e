"""The nodes' NVIDIA driver runs the image's CUDA (else its programs end with CUDA errors 803 and 804)."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.images.recipe import catalogue
from toolkit.images.verify.case import Answer, Case, failed, passed, unchecked
from toolkit.versions import compare


def verify(case: Case) -> Answer:
    return judge(case.looked.cuda, case.drivers, made_for(case), compat=case.looked.compat)


def made_for(case: Case) -> str | None:
    """The driver that the image's NGC release is made for, where it is one of the catalogue."""
    release = catalogue.named(case.base)
    return release.driver if release else None


def judge(cuda: str, drivers: Sequence[str], made_for: str | None, *, compat: bool) -> Answer:
    """How an image's CUDA and nodes' drivers go together.

    Args:
        cuda: version; empty: there is none in the image.
        drivers: of the nodes that were asked.
        made_for: the oldest driver that everything works with, where it is known.
        compat: the image has CUDA's compat package.
    """
    if not cuda:
        return passed("no CUDA is in it: it needs no driver")
    found = catalogue.oldest_driver(cuda)
    needed = found[0] if found else made_for
    if needed is None:
        return unchecked(f"what driver CUDA {cuda} needs is not in the catalogue")
    wants = f"CUDA {cuda} needs driver {needed} or newer{f', {made_for} for all of it' if made_for and made_for != needed else ''}"
    if not drivers:
        return unchecked(f"{wants}; no node with a GPU was asked: --nodes 1 --gpus 1")
    oldest = min(drivers, key=lambda one: [int(part) for part in one.split(".")])
    if compare(oldest, needed) < 0:
        if compat:
            return unchecked(
                f"{wants}, {oldest} is there: only data-centre GPUs run it, by the compat package in the image"
            )
        return failed(f"{wants}, {oldest} is there")
    if made_for and compare(oldest, made_for) < 0:
        return passed(
            f"{wants}, {oldest} is there: it runs by CUDA's minor version compatibility, without what is newer than the driver"
        )
    return passed(f"{wants}, {oldest} is there")
