"""The site has a command that starts containers."""

from __future__ import annotations

from toolkit.images.verify.case import Answer, Case, failed, passed, unchecked


def verify(case: Case) -> Answer:
    if case.site is None:
        return unchecked(case.no_site)
    if case.site.container is None:
        return failed(
            f"neither {' nor '.join(case.site.containers)} is on PATH at {case.site.name}"
        )
    return passed(f"{case.site.container} at {case.site.name}")
