"""What the checks of several ranks share: reading what rank 0 tells, and starting two ranks on this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit import shell
from toolkit.images.verify.case import Answer, Case, at, failed, passed
from toolkit.units import counted

_RANK = re.compile(
    r"^(?:\[\d+(?:,\d+)?\]<std(?:out|err)>: ?|\d+\| )"
)  # what horovodrun and srun put before the lines of their ranks
# What two ranks need as root on a machine with less than two free cores.
_VARIABLES = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
# By env: Apptainer starts a program by its path, and an mpirun that is started so puts its own
# directory before all others.
MPIRUN = (
    "env",
    "mpirun",
    "-n",
    "2",
    "--oversubscribe",
    "--bind-to",
    "none",
    "--mca",
    "btl",
    "self,vader",
    "--mca",
    "plm",
    "isolated",
)
HOROVODRUN = ("horovodrun", "--disable-cache", "--gloo", "--network-interfaces", "lo", "-np", "2")


def two_ranks(
    case: Case, command: Sequence[str], arguments: Sequence[str], controller: str
) -> Answer:
    """Start two ranks here by ``command``, and say how their sum came out."""
    variables = {**_VARIABLES, **({"GLOO_SOCKET_IFNAME": "lo"} if controller == "gloo" else {})}
    result = case.inside.run([*command, "python3", at("ranks.py"), *arguments], variables=variables)
    return judge(told(result.stdout.splitlines()), 2, controller, _complaint(result))


def told(lines: Sequence[str]) -> Mapping[str, Any] | None:
    """The object in which rank 0 tells who was there; None where no line is one."""
    for line in reversed(lines):
        text = _RANK.sub("", line.strip())
        if text.startswith("{") and '"ranks"' in text:
            try:
                found: Mapping[str, Any] = json.loads(text)
            except ValueError:
                continue
            return found
    return None


def judge(
    found: Mapping[str, Any] | None, ranks: int, controller: str, complaint: str, nodes: int = 1
) -> Answer:
    """How a sum over ranks came out.

    Args:
        found: what rank 0 told.
        ranks: how many there should have been.
        controller: what should have carried it.
        complaint: what was said where nobody told anything.
        nodes: how many hosts there should have been.
    """
    if found is None:
        return failed(complaint)
    hosts = sorted(set(found["hosts"]))
    if found["ranks"] != ranks:
        return failed(f"{counted(found['ranks'], 'rank')} found each other, not {ranks}")
    if len(hosts) != nodes:
        return failed(
            f"the ranks were on {', '.join(hosts)}: {counted(len(hosts), 'node')}, not {nodes}"
        )
    if found["controller"] != controller:
        return failed(f"it went by {found['controller']}, not by {controller}")
    if not found["right"]:
        return failed("the sum over all ranks is wrong")
    where = f" on {', '.join(hosts)}" if nodes > 1 else ""
    return passed(
        f"{counted(ranks, 'rank')} by {controller}{where}: the sum of their vectors is right"
    )


def _complaint(result: shell.Result) -> str:
    """The last thing said that tells something."""
    lines = [
        _RANK.sub("", line).strip()
        for line in (*result.stdout.splitlines(), *result.stderr.splitlines())
    ]
    errors = [
        line for line in lines if re.match(r"(?:\w+\.)*\w*(?:Error|Exception|Exit)\b|FATAL", line)
    ]
    said = [line for line in lines if line and not set(line) <= set("-=*# ")]
    return (errors or said or [f"the ranks ended with {result.returncode}"])[-1]
