"""Two ranks on this machine sum by Gloo: Horovod's where that is built with it, else torch's."""

from __future__ import annotations

from toolkit.images.verify.case import Answer, Case, unchecked
from toolkit.images.verify.together import HOROVODRUN, two_ranks


def verify(case: Case) -> Answer:
    if case.no_python:
        return unchecked(case.no_python)
    if (
        case.has("horovod")
        and "horovodrun" in case.looked.programs
        and "gloo" in (case.controllers or ("gloo",))
    ):
        return two_ranks(case, HOROVODRUN, ("horovod", "gloo"), "gloo")
    if case.has("torch"):
        return two_ranks(case, (), ("torch", "gloo", "2"), "gloo")
    return unchecked("neither a Horovod with Gloo nor torch is in it")
