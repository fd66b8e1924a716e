"""Start ranks that sum their vectors, here and on nodes, and judge what rank 0 reports."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit import shell
from toolkit.checks import Result, failed, passed, unchecked
from toolkit.images.verify.case import ImageCase, RankSum, ScriptRun, at
from toolkit.units import counted

# What horovodrun and srun put before the lines of their ranks.
_RANK = re.compile(r"^(?:\[\d+(?:,\d+)?\]<std(?:out|err)>: ?|\d+\| )")
# What two ranks need as root on a machine with fewer than two free cores.
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


def sum_here(
    case: ImageCase, command: Sequence[str], arguments: Sequence[str], backend: str
) -> Result:
    """Start two ranks on this machine by ``command``, and judge their sum."""
    variables = {**_VARIABLES, **({"GLOO_SOCKET_IFNAME": "lo"} if backend == "gloo" else {})}
    argv = [*command, "python3", at("ranks.py"), *arguments]
    result = case.runner.run(argv, variables=variables)
    return judge(report_in(result.stdout.splitlines()), 2, backend, _complaint(result))


def sum_on_nodes(case: ImageCase, launcher: str, arguments: Sequence[str], backend: str) -> Result:
    """Have ranks on the site's nodes sum, once for each backend, and judge their sum."""
    if case.run_ranks is None:
        return unchecked("no nodes were asked for: --nodes N")
    if backend not in case.sums:
        run = case.run_ranks(launcher, arguments)
        nodes = case.options.nodes
        case.sums[backend] = rank_sum(run, nodes * (case.options.gpus or 1), nodes, backend)
    made = case.sums[backend]
    return Result(made.outcome, made.detail)


def rank_sum(run: ScriptRun, ranks: int, nodes: int, backend: str) -> RankSum:
    """Return what came of a job on nodes.

    A job that was refused before it queued, or that Slurm did not answer for, says nothing of the
    image.
    """
    if run.outcome is None:
        return RankSum(outcome="unchecked", detail=run.refusal)
    report = run.results
    judged = judge(report or None, ranks, backend, run.complaint, nodes)
    return RankSum(
        outcome="passed" if judged.outcome == "passed" else "failed",
        detail=judged.message,
        drivers=tuple(report.get("drivers", ())),
        speed=float(report.get("gigabytes_per_second") or 0.0),
    )


def report_in(lines: Sequence[str]) -> Mapping[str, Any] | None:
    """Return the object in which rank 0 reports the sum; None if no line is one."""
    for line in reversed(lines):
        text = _RANK.sub("", line.strip())
        if text.startswith("{") and '"ranks"' in text:
            try:
                report: Mapping[str, Any] = json.loads(text)
            except ValueError:
                continue
            return report
    return None


def judge(
    report: Mapping[str, Any] | None, ranks: int, backend: str, complaint: str, nodes: int = 1
) -> Result:
    """Judge a sum over ranks.

    Args:
        report: of rank 0.
        ranks: how many there should have been.
        backend: what should have carried the messages.
        complaint: what was printed instead of a report.
        nodes: how many hosts there should have been.
    """
    if report is None:
        return failed(complaint)
    hosts = sorted(set(report["hosts"]))
    if report["ranks"] != ranks:
        return failed(f"{counted(report['ranks'], 'rank')} found each other, not {ranks}")
    if len(hosts) != nodes:
        names = ", ".join(hosts)
        return failed(f"the ranks were on {names}: {counted(len(hosts), 'node')}, not {nodes}")
    if report["controller"] != backend:
        return failed(f"it went by {report['controller']}, not by {backend}")
    if not report["right"]:
        return failed("the sum over all ranks is wrong")
    where = f" on {', '.join(hosts)}" if nodes > 1 else ""
    return passed(
        f"{counted(ranks, 'rank')} by {backend}{where}: the sum of their vectors is right"
    )


def _complaint(result: shell.Result) -> str:
    """Return the last line that looks like an error, or else the last one with text."""
    lines = [
        _RANK.sub("", line).strip()
        for line in (*result.stdout.splitlines(), *result.stderr.splitlines())
    ]
    errors = [
        line for line in lines if re.match(r"(?:\w+\.)*\w*(?:Error|Exception|Exit)\b|FATAL", line)
    ]
    texts = [line for line in lines if line and not set(line) <= set("-=*# ")]
    return (errors or texts or [f"the ranks ended with {result.returncode}"])[-1]
