"""Items about the cluster: Slurm's commands and its controller, and the states of nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping

from toolkit import shell
from toolkit.checks import Result, check, failed, passed, unchecked, warned
from toolkit.doctor.case import DoctorCase
from toolkit.slurm import TESTED

_UNTESTED = "try it with short jobs: toolkit doctor --nodes 2 --image pytorch_cpu"
_COMMANDS = ("sbatch", "srun", "squeue", "sinfo", "scancel", "scontrol")
_USABLE = ("idle", "alloc", "mix", "comp", "plan", "reserved", "unk", "pow")


@check("slurm", "Slurm's commands are installed, and its controller answers")
def check_slurm(case: DoctorCase) -> Result:
    """Check Slurm's commands and ask its controller for the partitions."""
    if case.client is None or case.site is None:
        return failed(case.no_site, "log in to a login node of a cluster, or: toolkit cluster up")
    missing = [command for command in _COMMANDS if shell.which(command) is None]
    if missing:
        step = "load the module that brings Slurm, or: toolkit setup"
        return failed(f"{', '.join(missing)} cannot be found", step)
    began = time.monotonic()
    partitions = case.client.partitions()
    seconds = time.monotonic() - began
    names = ", ".join(partition.name for partition in partitions) or "none"
    version = case.client.version()
    how = TESTED.get(".".join(version.split(".")[:2]))
    untested = f"not tested; tested are {', '.join(sorted(TESTED))}"
    detail = (
        f"Slurm {version} ({how or untested}), the controller answers in {seconds:.2f} s; "
        f"partitions: {names}; site {case.site.name}"
    )
    return passed(detail) if how else warned(detail, _UNTESTED)


@check("node-states", "enough nodes take jobs")
def check_node_states(case: DoctorCase) -> Result:
    """Check how many nodes of the partition take jobs, and why the others do not."""
    if case.client is None:
        return unchecked(f"no cluster: {case.no_site}")
    partitions = case.client.partitions()
    default = (partition.name for partition in partitions if partition.default)
    name = case.partition or next(default, None)
    return judge_states(case.client.node_states(name), case.nodes, name or "the cluster")


def judge_states(states: Mapping[str, tuple[str, str]], wanted: int, partition: str) -> Result:
    """Judge the states of nodes.

    Args:
        states: of each node its state, and the reason that was given for it.
        wanted: the number of nodes that is needed.
        partition: of the nodes.
    """
    away = {node: state for node, state in states.items() if not is_usable(state[0])}
    by_reason: dict[str, list[str]] = {}
    for node, (state, reason) in away.items():
        why = f": {reason}" if reason not in ("", "none") else ""
        by_reason.setdefault(f"{state}{why}", []).append(node)
    named = "; ".join(f"{', '.join(nodes)} {state}" for state, nodes in by_reason.items())
    left = len(states) - len(away)
    detail = f"{left} of {len(states)} nodes of {partition} take jobs"
    if left < max(wanted, 1):
        verb = "are" if wanted > 1 else "is"
        needed = f"{detail}, {max(wanted, 1)} {verb} needed{f': {named}' if named else ''}"
        fewer = f"--nodes {left}" if left and not away else ""
        return failed(needed, fewer or "sinfo -R; ask the operators")
    if away:
        return warned(f"{detail}; {named}", "sinfo -R tells who took them out, and when")
    return passed(f"{left} nodes of {partition} take jobs")


def is_usable(state: str) -> bool:
    """Return whether jobs may start on a node in this state, now or later.

    A state with ``*`` is that of a node which does not answer.
    """
    return state.startswith(_USABLE) and "*" not in state and "drain" not in state
