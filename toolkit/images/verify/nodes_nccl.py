"""Ranks on the GPUs of several nodes sum by NCCL."""

from __future__ import annotations

from toolkit.images.verify.case import Answer, Case, unchecked
from toolkit.images.verify.ranks_nccl import cannot


def verify(case: Case) -> Answer:
    if why := cannot(case):
        return unchecked(why)
    if case.asked.nodes and not case.asked.gpus:
        return unchecked("no GPUs were asked for: --gpus N")
    return case.meet("torchrun", ("torch", "nccl"), "nccl")
