"""The nodes' clocks agree: else times in logs mislead, and Slurm's and Kerberos' tickets are refused."""

from __future__ import annotations

from toolkit.doctor.case import Answer, Case, failed, passed, warned

_NOTABLE, _WRONG = 1.0, 60.0  # seconds


def check(case: Case) -> Answer:
    if why := case.no_nodes(2):
        return why
    apart = [
        (abs(float(way["clock"])), f"{name} is {way['clock']:+.3f} s from {one.host}")
        for one in case.told
        for name, way in one.ways.items()
        if "clock" in way
    ]
    if not apart:
        return failed("no clock could be compared: no node reaches another")
    most, text = max(apart)
    if most > _WRONG:
        return failed(text, "the node's time service (chronyc tracking); tell the operators")
    if most > _NOTABLE:
        return warned(text, "the node's time service (chronyc tracking); tell the operators")
    return passed(f"within {most * 1000:.1f} ms of each other")
