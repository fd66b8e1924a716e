"""A job of the asked shape is taken, starts, and ends well."""

from __future__ import annotations

from toolkit.doctor.case import Answer, Case, failed, passed, unchecked


def check(case: Case) -> Answer:
    ended = case.ended
    shape = f"{case.nodes} node{'s' if case.nodes != 1 else ''}" + (
        f" x {case.gpus} GPUs" if case.gpus else ""
    )
    if ended.outcome is None:
        return failed(
            f"{shape}: {ended.refusal}", "ask for less, or for another partition: toolkit cluster"
        )
    if ended.outcome.get("kind", "ok") == "ok":
        return passed(
            f"{shape}: {ended.outcome.get('nodes')}, the job took {float(ended.outcome.get('seconds') or 0):.0f} s"
        )
    if ended.outcome.get("kind") == "timeout":
        return failed(
            f"{shape}: {ended.complaint}",
            "a node hangs, or closes the ports that srun itself needs; look at the nodes, or a longer --time",
        )
    if case.told:
        return failed(f"{shape}: {ended.complaint}", ended.fix)
    unwell = "; ".join(
        f"{node}: {state}" for node, state in (ended.outcome.get("unwell") or {}).items()
    )
    if unwell:
        return failed(
            f"{shape}: {ended.complaint}; {unwell}", "exclude them, and tell the operators"
        )
    return unchecked(f"{shape} started and told nothing; see `image-on-nodes`")
