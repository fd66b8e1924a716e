"""Write runs that take turns in one allocation, and the job that starts them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from msgspec.structs import replace

from toolkit.api.run import Adapt, write
from toolkit.errors import UsageError
from toolkit.files import write_atomically
from toolkit.localcluster.access import local_name
from toolkit.model.base import to_json
from toolkit.model.case import Case
from toolkit.model.plan import Launch, Part, Plan
from toolkit.model.run import Submission
from toolkit.runs.directories import next_directory
from toolkit.runs.run import Run
from toolkit.runs.submit import repeatable, reserve
from toolkit.runs.submit import write as write_files

_OWN = frozenset(("job-name", "nodes", "ntasks-per-node", "cpus-per-task"))


def require_alike(plans: Sequence[Plan]) -> None:
    """Refuse runs that cannot take turns in one allocation.

    Raises:
        UsageError: they are elastic, or request different nodes.
    """
    expected = _of_nodes(plans[0])
    for plan in plans:
        if plan.least_nodes is not None or plan.gpus_by_node:
            kind = "an elastic run" if plan.least_nodes is not None else "nodes with unequal GPUs"
            raise _refused(f"{kind} cannot be a part of an allocation")
        own = _of_nodes(plan)
        differing = sorted(key for key in {*expected, *own} if expected.get(key) != own.get(key))
        if differing:
            named = ", ".join(f"--{name}" for name in differing)
            raise _refused(f"the runs differ in {named}, which one allocation has once")


def _refused(cause: str) -> UsageError:
    step = "leave it out: each run is a job of its own then"
    return UsageError(cause, place="--one-allocation", next_step=step)


def _of_nodes(plan: Plan) -> dict[str, str | None]:
    return {name: value for name, value in plan.sbatch_options if name not in _OWN}


def allocation_plan(plans: Sequence[Plan], run_directory: str) -> Plan:
    """Return the plan of the job in which runs take turns: of the most nodes that one has. Pure."""
    parts = tuple(
        Part(
            run_directory=plan.run_directory,
            nodes=plan.nodes,
            ntasks_per_node=plan.launch.ntasks_per_node,
            cpus_per_task=plan.launch.cpus_per_task or 1,
        )
        for plan in plans
    )
    nodes = max(part.nodes for part in parts)
    cpus = max(part.ntasks_per_node * part.cpus_per_task for part in parts)
    own = {"nodes": nodes, "ntasks-per-node": 1, "cpus-per-task": cpus}
    return replace(
        plans[0],
        run_directory=run_directory,
        nodes=nodes,
        ranks_per_node=1,
        cpus_per_rank=cpus,
        directives=tuple((key, str(own.get(key, value))) for key, value in plans[0].directives),
        launch=Launch(
            launcher="none",
            reason="the runs take turns",
            ntasks_per_node=1,
            cpus_per_task=cpus,
            template="parts",
        ),
        environment={},
        secrets=(),
        parts=parts,
        is_part=False,
        reports=False,
        script_file=None,
    )


def write_allocation(given: Sequence[tuple[Case, Adapt]]) -> tuple[Run, list[Run]]:
    """Write the directories of runs, which take turns in this order, and of their allocation.

    Args:
        given: of each run the case, and what changes them for its directory.

    Returns:
        the run of the allocation, which can be submitted, and its parts.

    Raises:
        UsageError: the runs request different nodes.
        PlanError: one could not run.
    """
    first, _ = given[0]
    holder = _create(Path(first.run).parent, f"{first.job.job_name or 'runs'}-allocation")
    parts: list[Run] = []
    try:
        for case, adapt in given:
            parts.append(write(case._replace(is_part=True), adapt))
            now = datetime.now(timezone.utc).isoformat(timespec="seconds")
            cluster = local_name(case.site)
            job = Submission(
                site=case.site.name, submitted=now, cluster=cluster, script=str(holder.script)
            )
            write_atomically(parts[-1].directory / "attempt.json", to_json(job), mode=0o600)
        plans = [part.plan for part in parts]
        require_alike(plans)
        whole = allocation_plan(plans, str(holder.directory))
        settings = replace(repeatable(first, plans[0]), arguments=(), env={})
        write_files(holder, whole, settings)
    except BaseException:
        for run in (holder, *parts):
            shutil.rmtree(run.directory)
        raise
    return holder, parts


def _create(runs: Path, name: str) -> Run:
    while not reserve(directory := next_directory(runs, name)):
        pass
    return Run(directory)
