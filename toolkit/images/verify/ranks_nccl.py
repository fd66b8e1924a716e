"""Two ranks on two GPUs of this machine sum by NCCL."""

from __future__ import annotations

from toolkit.images.verify.case import Answer, Case, unchecked
from toolkit.images.verify.together import two_ranks


def verify(case: Case) -> Answer:
    if why := cannot(case):
        return unchecked(why)
    if case.gpus < 2:
        return unchecked(
            "no GPU is here"
            if not case.gpus
            else "one GPU is here; two ranks of NCCL need one each"
        )
    return two_ranks(case, (), ("torch", "nccl", "2"), "nccl")


def cannot(case: Case) -> str | None:
    """Why ranks of this image cannot sum by NCCL; None: they can."""
    if case.no_python:
        return case.no_python
    if not case.looked.cuda:
        return "no CUDA is in it"
    return None if case.has("torch") else "no torch is in it, by which ranks would sum over NCCL"
