"""Ranks on several nodes sum by Gloo: torch's under torchrun, else Horovod's."""

from __future__ import annotations

from toolkit.images.verify.case import Answer, Case, unchecked


def verify(case: Case) -> Answer:
    if case.no_python:
        return unchecked(case.no_python)
    if case.has("torch"):
        return case.meet("torchrun", ("torch", "gloo"), "gloo")
    if case.has("horovod") and "gloo" in (case.controllers or ("gloo",)):
        return case.meet("horovod-gloo", ("horovod", "gloo"), "gloo")
    return unchecked("neither torch nor a Horovod with Gloo is in it")
