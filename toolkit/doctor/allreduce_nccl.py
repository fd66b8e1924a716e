"""Ranks on all nodes sum by NCCL, and how fast."""

from __future__ import annotations

from toolkit.doctor.case import Answer, Case, unchecked
from toolkit.doctor.together import judged
from toolkit.images.verify import nodes_nccl


def check(case: Case) -> Answer:
    if why := case.no_nodes():
        return why
    return judged(case, nodes_nccl.verify(case.verified), "nccl") if case.verified else unchecked(case.no_image)
