"""Record the origin of each value of a plan, for `toolkit run --explain`. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from toolkit.model.plan import Plan
from toolkit.model.site import Partition
from toolkit.planning.inputs import Inputs


def with_origins(draft: Plan, inputs: Inputs, partition: Partition | None) -> Plan:
    """Return a plan with the origin of each of its values."""
    origins = {key: value for key, value in inputs.origins.items() if key != "summary"}
    job = inputs.job
    if "gpus" in origins:
        origins["gpus_per_node"] = origins.pop("gpus")
    if job.ntasks_per_node is None:
        origins["ntasks_per_node"] = (
            "one per GPU" if job.most_gpus and draft.ranks_per_node == job.most_gpus else "default"
        )
    if job.cpus_per_task is None:
        origins["cpus_per_task"] = (
            "the GPUs' share of the node's CPUs"
            if job.most_gpus and partition and partition.gpus
            else "site"
        )
    if job.partition is None:
        origins["partition"] = (
            f"Slurm's default ({partition.name})" if partition else "Slurm's default"
        )
    if job.time is None:
        origins["time"] = "Slurm's default of the partition"
    if job.job_name is None:
        origins["job_name"] = "the script's name"
    if job.nodes is None:
        by_node = f"one for each of {job.gpu_option}"
        origins["nodes"] = by_node if job.gpus_by_node else "default"
    origins |= {
        f"env {name}": _origin_of_variable(name, draft, inputs)
        for name in (*draft.environment, *draft.secrets)
    }
    own = len(draft.container.binds) - len(job.bind)
    named = inputs.origins.get("bind", "job")
    reasons = {directory.path: directory.reason for directory in inputs.shown}
    for index, bind in enumerate(draft.container.binds):
        reason = reasons.get(bind.target, "the run needs it")
        origins[f"bind {bind.target}"] = named if index >= own else reason
    origins = {key: value for key, value in origins.items() if key not in ("env", "bind")}
    return replace(draft, origins=dict(sorted(origins.items())))


def _origin_of_variable(name: str, draft: Plan, inputs: Inputs) -> str:
    if name in inputs.job.pass_env:
        return "this shell"
    if name in inputs.job.env:
        return inputs.origins.get("env", "job")
    if name in inputs.site.environment:
        return f"site {inputs.site.name}"
    return f"launcher {draft.launch.launcher}" if name in draft.launch.environment else "default"
