"""Ranks on all nodes sum by NCCL, and how fast."""

from __future__ import annotations

from toolkit.doctor.case import Answer, Case
from toolkit.doctor.together import summed
from toolkit.images.verify import nodes_nccl


def check(case: Case) -> Answer:
    return summed(case, nodes_nccl.verify, "nccl", least=1)
