"""horovod-elastic: Horovod's elastic driver, and an agent on each node that Slurm starts, not ssh.

A rank that dies, or a node that is lost, costs its node's ranks; training goes on with the others
from the last commit of the script's state. The node is tried again after a while
(``HOROVOD_ELASTIC_COOLDOWN=10,120``: seconds at first, doubled each time, and at most). Slurm takes
a node that is down out of the job for good, and gives a job no new ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from toolkit.errors import LauncherMismatchError, ToolkitError
from toolkit.launchers.shared import horovod_build
from toolkit.launchers.shared.base import Launcher, Recognition
from toolkit.launchers.shared.step_log import batch_lines, rank_failure
from toolkit.model.case import Case
from toolkit.model.plan import Launch
from toolkit.model.run import Failure

if TYPE_CHECKING:
    from toolkit.model.run import Report

# What the driver prints when it has put the ranks together, and when a rank has failed; at its end
# it repeats the first failure since it last put them together.
_STARTED = re.compile(r"elastic: \d{1,9} ranks on ")
_FAILED = re.compile(
    r"elastic: (?P<is_last>failed: )?rank (?P<rank>\d{1,9}) on (?P<host>\S+): "
    r"(?:exit code (?P<code>\d{1,9})|killed by signal (?P<signal>\d{1,9}))"
)


class HorovodElastic(Launcher):
    """Agents of Horovod's elastic driver."""

    summary = "Horovod's elastic driver, and an agent on each node; for hvd.elastic.run"
    needs = frozenset(("command", "nodes"))
    framework = "horovod"
    is_elastic = True
    is_per_node = True
    has_pty = False
    options = ("max_restarts",)
    rank_variables = ("HOROVOD_RANK",)
    starters = ("horovod_elastic.py",)

    def recognize(self, case: Case) -> Recognition | None:
        """Claim scripts that can go on after a change of ranks."""
        if case.source.calls_any("elastic.run"):
            return Recognition(10, "runs horovod's elastic.run")
        return None

    def check(self, case: Case) -> Sequence[ToolkitError]:
        """Require Horovod with Gloo in the image, and a script that calls ``hvd.elastic.run``."""
        findings = horovod_build.check(self, case, "gloo")
        if case.source.imports_any("horovod") and not case.source.calls_any("elastic.run"):
            findings.append(
                LauncherMismatchError(
                    "the script uses Horovod and never its elastic.run: "
                    "it could not go on after a change",
                    place="--launcher",
                    next_step="--launcher horovod-gloo, "
                    "or see jobs/digits-horovod-elastic/train.py",
                )
            )
        return findings

    def launch(self, case: Case) -> Launch:
        """Start one agent on each node, with the CPUs of all its ranks.

        The job goes on without a node that fails.
        """
        resets = case.job.max_restarts
        ranks = (str(nodes * case.ranks_per_node) for nodes in case.job.node_range)
        decided = super().launch(case)
        return replace(
            decided,
            environment={
                **decided.environment,
                **horovod_build.gloo(case),
                "HOROVOD_ELASTIC": "1",
                "HOROVOD_ELASTIC_COOLDOWN": "10,120",
            },
            task_is_rank=False,
            labels_lines=True,
            options=(*ranks, "" if resets is None else str(resets)),
            directives=(("no-kill", ""),),
        )

    def failures(self, logs: Iterable[tuple[str, Sequence[str]]]) -> list[Failure]:
        """Return the failures that ended the run; those that the driver survived do not count."""
        failures: list[Failure] = []
        for line in batch_lines(logs):
            if _STARTED.search(line):
                failures.clear()
            elif match := _FAILED.search(line):
                failure = _failure(match)
                if match["is_last"]:
                    return [failure, *(other for other in failures if other != failure)]
                failures.append(failure)
        return []

    def of_last_start(
        self, reports: Sequence[Report], reported: Sequence[Failure]
    ) -> Sequence[Report]:
        """Return the reports of the last processes of the ranks that the driver reports.

        It reports them in the order in which their processes ended. A rank that failed first can
        take longer to end than another one.
        """
        if not reported:
            return reports
        failed = {(str(failure.rank), failure.host) for failure in reported}
        ranks = [(report.env.get("HOROVOD_RANK"), report.host) for report in reports]
        last = {rank: report.pid for rank, report in zip(ranks, reports, strict=True)}
        return [
            report
            for rank, report in zip(ranks, reports, strict=True)
            if rank in failed and report.pid == last[rank]
        ]


def _failure(match: re.Match[str]) -> Failure:
    code = int(match["code"]) if match["code"] else 128 + int(match["signal"])
    return rank_failure(code, int(match["rank"]), match["host"])


LAUNCHER = HorovodElastic()
