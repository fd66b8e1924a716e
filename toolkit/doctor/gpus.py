"""Each node's container sees as many GPUs as were asked for."""

from __future__ import annotations

from collections import Counter

from toolkit.doctor.case import Answer, Case, failed, passed, unchecked


def check(case: Case) -> Answer:
    if not case.gpus:
        return unchecked("no GPUs were asked for", "toolkit doctor --gpus-per-node N")
    if why := case.no_nodes():
        return why
    if case.simulated and not any(one.gpus for one in case.told):
        given = [len([word for word in one.visible.split(",") if word]) for one in case.told]
        return unchecked(
            f"this cluster's GPUs are simulated; Slurm gave the nodes {', '.join(map(str, given))}"
        )
    few = [f"{one.host} sees {len(one.gpus)}" for one in case.told if len(one.gpus) < case.gpus]
    if few:
        return failed(
            f"{case.gpus} GPUs were asked for: {'; '.join(few)}",
            "on the node: nvidia-smi. In the image: --nv wants the host's driver and libnvidia-container",
        )
    kinds = Counter(name.split(":", 1)[-1].strip() for one in case.told for name in one.gpus)
    return passed("; ".join(f"{count} x {kind}" for kind, count in kinds.items()))
