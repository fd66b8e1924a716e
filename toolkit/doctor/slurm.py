"""Slurm's commands are there, and its controller answers."""

from __future__ import annotations

import time

from toolkit import shell
from toolkit.doctor.case import Answer, Case, failed, passed, warned
from toolkit.slurm import tested

_UNTESTED = "try it with short jobs: toolkit doctor --nodes 2 --image pytorch_cpu"
COMMANDS = ("sbatch", "srun", "squeue", "sinfo", "scancel", "scontrol")


def check(case: Case) -> Answer:
    if case.client is None or case.site is None:
        return failed(case.no_site, "log in to a login node of a cluster, or: toolkit cluster up")
    missing = [command for command in COMMANDS if shell.which(command) is None]
    if missing:
        return failed(
            f"{', '.join(missing)} cannot be found",
            "load the module that brings Slurm, or: toolkit setup",
        )
    began = time.monotonic()
    partitions = case.client.partitions()
    seconds = time.monotonic() - began
    names = ", ".join(partition.name for partition in partitions) or "none"
    version = case.client.version()
    detail = (
        f"Slurm {version} ({tested.describe(version)}), the controller answers in {seconds:.2f} s; "
        f"partitions: {names}; site {case.site.name}"
    )
    return passed(detail) if tested.is_tested(version) else warned(detail, _UNTESTED)
