"""Ranks on all nodes sum by Gloo, and how fast."""

from __future__ import annotations

from toolkit.doctor.case import Answer, Case
from toolkit.doctor.together import summed
from toolkit.images.verify import nodes_gloo


def check(case: Case) -> Answer:
    return summed(case, nodes_gloo.verify, "gloo")
