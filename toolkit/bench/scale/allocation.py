"""Write runs that take turns in one allocation, and the job that starts them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from toolkit import scripts
from toolkit.api.run import Adapt, repeatable, write
from toolkit.errors import UsageError
from toolkit.model.case import Case
from toolkit.model.plan import Launch, Part, Plan
from toolkit.runs import store
from toolkit.runs.store import Paths

_OWN = frozenset(("job-name", "nodes", "ntasks-per-node", "cpus-per-task"))


class Allocation(NamedTuple):
    """An allocation whose runs are written, and that can be submitted."""

    paths: Paths
    plan: Plan
    parts: tuple[Paths, ...]


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


def write_allocation(given: Sequence[tuple[Case, Adapt]]) -> Allocation:
    """Write the directories of runs, which take turns in this order, and of their allocation.

    Args:
        given: of each run the case, and what changes them for its directory.

    Raises:
        UsageError: the runs request different nodes.
        PlanError: one could not run.
    """
    first, _ = given[0]
    holder = _create(Path(first.run).parent, f"{first.job.job_name or 'runs'}-allocation")
    written = [holder]
    try:
        plans = []
        for case, adapt in given:
            paths, plan = write(case._replace(is_part=True), adapt)
            written.append(paths.directory)
            paths.submission.symlink_to(Path("..", holder.name, "run.json"))
            plans.append(plan)
        require_alike(plans)
        whole = allocation_plan(plans, str(holder))
        job = replace(repeatable(first, plans[0]), arguments=(), env={})
        paths = store.write(holder, whole, job, scripts.script(whole))
    except BaseException:
        for directory in written:
            shutil.rmtree(directory)
        raise
    return Allocation(paths, whole, tuple(Paths(directory) for directory in written[1:]))


def _create(runs: Path, name: str) -> Path:
    while not store.create(directory := store.next_directory(runs, name)):
        pass
    return directory
