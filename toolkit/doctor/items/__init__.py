"""The doctor's list: the items in the order in which they are made and shown."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.checks import Result, unchecked
from toolkit.doctor.case import DoctorCase
from toolkit.doctor.items import machine, nodes

ITEMS = (*machine.ITEMS, *nodes.ITEMS)


def diagnose(case: DoctorCase) -> Iterator[Result]:
    """Yield the result of every item, in the order of the list."""
    skipped = None
    if not case.nodes:
        skipped = unchecked("no nodes were asked for: --nodes 2 --image NAME")
    elif case.client is None:
        skipped = unchecked(f"no cluster: {case.no_site}")
    elif case.image is None:
        skipped = unchecked(case.no_image)
    for item in ITEMS:
        skip = skipped if item.scope == "nodes" else None
        yield skip._replace(name=item.name) if skip else item.only(case)
