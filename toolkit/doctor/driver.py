"""All nodes have one NVIDIA driver, and one that is new enough for the image's CUDA."""

from __future__ import annotations

from toolkit.doctor.case import Answer, Case, failed, passed, unchecked, warned
from toolkit.images.verify import driver


def check(case: Case) -> Answer:
    if not case.gpus:
        return unchecked("no GPUs were asked for")
    if why := case.no_nodes():
        return why
    found = {one.host: one.driver for one in case.told if one.driver}
    if not found:
        return unchecked("no node has a driver of NVIDIA")
    versions = tuple(dict.fromkeys(found.values()))
    if case.verified is not None:
        judged = driver.judge(
            case.verified.looked.cuda,
            versions,
            driver.made_for(case.verified),
            compat=case.verified.looked.compat,
        )
        if judged.outcome == "failed":
            return failed(
                judged.detail, "an older image: toolkit image search; or ask for a newer driver"
            )
    if len(versions) > 1 or len(found) < len(case.told):
        each = ", ".join(f"{one.host} {one.driver or 'none'}" for one in case.told)
        return warned(
            f"drivers differ: {each}",
            "tell the operators; --constraint or --exclude keeps a job on equal nodes",
        )
    return passed(f"{versions[0]} on every node")
