"""torchrun: Slurm starts one agent on each node, and the agents start the ranks.

The agents meet at the first node. Their arguments that depend on the job (addresses, port) are in
the template. With a range of nodes the run is elastic, which is a template of its own: it goes on
when nodes are lost, and takes new ones in. A rank's exit code is lost on the way: torchrun itself
always exits with 1 and reports the code in its summary, which ``failures`` reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from toolkit.errors import LauncherMismatchError, ToolkitError
from toolkit.launchers.shared.arguments import launcher, words
from toolkit.launchers.shared.base import Launcher, Recognition, sockets
from toolkit.launchers.shared.step_log import batch_lines, failures_of_step, rank_failure
from toolkit.launchers.shared.trainers import (
    TRAINERS,
    environment,
    lightning_findings,
    uses_torch_distributed,
)
from toolkit.model.case import Case
from toolkit.model.plan import Launch
from toolkit.model.run import Failure
from toolkit.model.source import Source

if TYPE_CHECKING:
    from toolkit.model.run import Report

_RESTARTS = 3  # default of an elastic run
_FIELD = re.compile(r"^\s*(time|host|rank|exitcode)\s+: (.*)$")
_NUMBER = re.compile(r"-?\d{1,9}")


class Torchrun(Launcher):
    """Agents of torchrun."""

    summary = "one torchrun agent per node starts the node's ranks; for torch.distributed"
    framework = "torch.distributed"
    is_elastic = True
    is_unequal = True
    is_per_node = True
    options = ("max_restarts",)
    rank_variables = ("RANK",)
    starters = ("torchrun",)

    def recognize(self, case: Case) -> Recognition | None:
        """Claim scripts of torch.distributed and of libraries above it.

        A script that no other launcher claims goes to torchrun as well.
        """
        if case.source.imports_any("torch.distributed"):
            return Recognition(50, "imports torch.distributed")
        if case.source.calls_any("DistributedDataParallel"):
            return Recognition(50, "uses DistributedDataParallel")
        library = next((name for name in TRAINERS if case.source.imports_any(name)), None)
        if library is not None:
            return Recognition(90, f"imports {library}")
        return Recognition(1000, "imports nothing that says otherwise")

    def is_used_by(self, source: Source) -> bool:
        """Return whether a script uses torch.distributed, by itself or through a trainer."""
        return uses_torch_distributed(source)

    def check(self, case: Case) -> Sequence[ToolkitError]:
        """Require torch, and in an environment of the host the program torchrun.

        That is not there before torch 1.10.
        """
        findings = [*self.require("torch", case), *lightning_findings(case)]
        if case.environment is not None and not case.environment.torchrun:
            findings.append(
                LauncherMismatchError(
                    f"there is no program torchrun in {case.environment.name}",
                    place="--launcher",
                    next_step="--launcher srun does without it",
                )
            )
        return findings

    def launch(self, case: Case) -> Launch:
        """Start one task on each node, with the CPUs of all its ranks."""
        least, most = case.job.node_range
        is_elastic, is_unequal = least != most, bool(case.job.gpus_by_node)
        default = _RESTARTS if is_elastic else 0
        given = case.job.max_restarts
        restarts = default if given is None else given
        decided = super().launch(case)
        return replace(
            decided,
            template="torchrun-elastic" if is_elastic else None,
            options=(
                f"--nnodes={least}:{most}" if is_elastic else f"--nnodes={most}",
                *(() if is_unequal else (f"--nproc-per-node={case.ranks_per_node}",)),
                *((f"--max-restarts={restarts}",) if restarts else ()),
                "--tee=3",
            ),
            exclude=f",{case.job.exclude}" if case.job.exclude else "",
            directives=(("no-kill", ""), ("requeue", "")) if is_elastic else (),
            cpus_per_task=None if is_unequal else decided.cpus_per_task,
            environment={
                **decided.environment,
                # An agent that ends after the first one finds its store closed and prints a stack
                # trace, in healthy runs.
                "TORCH_CPP_LOG_LEVEL": "ERROR",
                # Each line of a rank starts with its number, as srun --label does it: "3| epoch 1".
                "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${rank}| ",
                # Agents that start ranks again hang where these share the agents' own store.
                **({"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if restarts else {}),
                **environment(case),
                **sockets(case, "GLOO", "NCCL"),
            },
            program=(*_script(case), *words(case, launcher(case, "pytorch")), *case.job.arguments),
            task_is_rank=False,
            labels_lines=True,
        )

    def failures(self, logs: Iterable[tuple[str, Sequence[str]]]) -> list[Failure]:
        """Return the ranks in the agents' summaries by the time of their end.

        Ranks that their agent stopped (SIGTERM) come last. Without a summary, return the agents
        that srun reports.
        """
        by_host = list(logs)
        reported = summary_failures((host, lines) for host, lines in by_host if host)
        return reported or failures_of_step(batch_lines(by_host), task="agent")

    def of_last_start(
        self, reports: Sequence[Report], reported: Sequence[Failure]
    ) -> Sequence[Report]:
        """Return the reports of the agents, and those of ranks since their last restart."""
        del reported
        starts = [_start(report) for report in reports if _is_rank(report)]
        return [
            report for report in reports if not _is_rank(report) or _start(report) == starts[-1]
        ]


def _script(case: Case) -> tuple[str, ...]:
    if case.job.python_module:
        return ("-m", case.job.python_module)
    is_python = case.target.script.endswith(".py")
    return (case.target.script,) if is_python else ("--no-python", case.target.script)


def _is_rank(report: Report) -> bool:
    return "TORCHELASTIC_RUN_ID" in report.env


def _start(report: Report) -> tuple[str, str]:
    return report.env["TORCHELASTIC_RUN_ID"], report.env.get("TORCHELASTIC_RESTART_COUNT", "0")


def summary_failures(logs: Iterable[tuple[str, Sequence[str]]]) -> list[Failure]:
    """Return the ranks in torchrun's summaries ("Root Cause (first observed failure)").

    They are in the order of their end; those that their agent stopped (SIGTERM) come last.

    Args:
        logs: lines of each log, and its host; empty: the host that the summary names.
    """
    summaries = [pair for host, lines in logs for pair in _summaries(host, lines)]
    ordered = sorted(summaries, key=lambda pair: (pair[1].exit_code == 128 + 15, pair[0]))
    return [failure for _, failure in ordered]


def _summaries(host: str, lines: Sequence[str]) -> Iterator[tuple[str, Failure]]:
    """Yield the time and the failure of each entry of torchrun's summary.

    Each field has a line of its own, ``exitcode`` after ``time``, ``host`` and ``rank``.
    """
    fields: dict[str, str] = {}
    for line in lines:
        match = _FIELD.match(line)
        if not match:
            continue
        fields[match[1]] = match[2]
        if match[1] == "exitcode":
            code, rank = _NUMBER.search(fields["exitcode"]), _NUMBER.search(fields.get("rank", ""))
            number = int(code[0]) if code else 1
            exit_code = 128 - number if number < 0 else number
            place = host or fields.get("host")
            failure = rank_failure(exit_code, int(rank[0]) if rank else None, place)
            yield fields.get("time", ""), failure
            fields = {}


LAUNCHER = Torchrun()
