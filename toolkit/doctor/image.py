"""The image is there, can be read, and a program starts in it here."""

from __future__ import annotations

import time

from toolkit.doctor.case import Answer, Case, failed, passed, unchecked, warned
from toolkit.units import human_size


def check(case: Case) -> Answer:
    if case.image is None or case.verified is None:
        return (
            unchecked(case.no_image)
            if not case.nodes
            else failed(case.no_image, "toolkit image list")
        )
    began = time.monotonic()
    ran = case.verified.inside.run(["true"], timeout=60)
    seconds = time.monotonic() - began
    what = f"{case.image.path} ({human_size(case.verified.path.stat().st_size)})"
    if not ran.ok:
        return failed(
            f"nothing starts in {what}: {' '.join(ran.tail(1))}",
            f"toolkit image check {case.image.name}",
        )
    if case.image.manifest is None:
        return warned(
            f"{what} starts in {seconds:.1f} s; it has no manifest: nobody knows what is in it",
            f"toolkit image verify {case.image.path}",
        )
    return passed(f"{what} starts in {seconds:.1f} s")
