"""GPUs that are hidden from their peers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.lint.calls import calls, slurm_options
from toolkit.lint.model import Context, Finding, Rule
from toolkit.lint.script import Script

RULE = Rule(
    "gpu-binding",
    "warning",
    "each rank sees one GPU only, so NCCL cannot reach its peers directly, and a rank that picks by its local rank finds no such device",
    "torchx; a guide on Slurm and PyTorch: unhandled system error",
    "--gres=gpu:N or --gpus-per-node=N; let the rank choose by LOCAL_RANK",
)
_BY_RANK = re.compile(
    r"\bCUDA_VISIBLE_DEVICES=[\"']?\$\{?(LOCAL_RANK|SLURM_LOCALID|RANK|SLURM_PROCID)\b"
)


def check(script: Script, context: Context) -> Iterator[Finding]:
    """``--gpus-per-task`` with more than one task, and ``CUDA_VISIBLE_DEVICES`` set from a rank."""
    del context
    single = script.value("ntasks") == "1" or (script.value("ntasks-per-node") == "1")
    for directive, option in script.options("gpus-per-task"):
        if not single:
            yield RULE.at(directive.line, f"{option.written} gives every task GPUs of its own")
    for call in calls(script, "srun"):
        options = {name: value for name, _, value in slurm_options(call)[0]}
        if "gpus-per-task" in options and options.get("ntasks") != "1" and not single:
            yield RULE.at(call.line, "--gpus-per-task gives every task GPUs of its own")
    for command in script.commands:
        found = _BY_RANK.search(command.text)
        if found:
            yield RULE.at(
                command.line_of(found.start()), f"CUDA_VISIBLE_DEVICES is set from ${found[1]}"
            )
