"""Go through the doctor's list."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.checks import Format, Registry, Result, unchecked
from toolkit.doctor.case import DoctorCase

REGISTRY: Registry[DoctorCase] = Registry("toolkit.doctor.items")
FORMAT = Format(
    words={"passed": "PASS", "warning": "WARN", "failed": "FAIL", "unchecked": "not checked"},
    keys={"name": "name", "outcome": "outcome", "detail": "message", "next_step": "fix"},
)


def diagnose(case: DoctorCase) -> Iterator[Result]:
    """Yield the result of every item, in the order of the list."""
    for item in REGISTRY.checks.values():
        reason = _reason_to_skip(case) if item.traits.scope == "nodes" else None
        yield reason._replace(name=item.name) if reason else item.only(case)


def _reason_to_skip(case: DoctorCase) -> Result | None:
    """Return why items that take nodes cannot be checked; None if they can."""
    if not case.nodes:
        image = case.image.name if case.image else "pytorch_cpu"
        return unchecked("no nodes were asked for", f"toolkit doctor --nodes 2 --image {image}")
    if case.client is None:
        return unchecked(f"no cluster: {case.no_site}")
    return unchecked(case.no_image) if case.image is None else None
