"""Ranks on all nodes sum by Gloo, and how fast."""

from __future__ import annotations

from toolkit.doctor.case import Answer, Case, unchecked
from toolkit.doctor.together import judged
from toolkit.images.verify import nodes_gloo


def check(case: Case) -> Answer:
    if why := case.no_nodes(2):
        return why
    return judged(case, nodes_gloo.verify(case.verified), "gloo") if case.verified else unchecked(case.no_image)
