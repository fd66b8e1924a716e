"""As many nodes, and CPUs and memory on each, as the partition has. What Slurm itself says goes before what is written."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.errors import ShapeError
from toolkit.preflight.model import Case, Finding
from toolkit.slurm import hostlist
from toolkit.units import counted


def look(case: Case) -> list[Finding]:
    job, name = case.job, case.partition_name
    least, _ = job.node_range
    cpus = (job.cpus_per_task or 1) * (job.ntasks_per_node or job.most_gpus or 1)
    asked = {"--nodes": least, "--cpus-per-task": cpus, "--mem": case.memory or 0}
    found = []
    for place, what, has, source in _limits(case):
        if has is not None and asked[place] > has:
            number = asked[place]
            verb = "were" if number != 1 else "was"
            cause = f"partition {name} has {_counted(has, what)}, {number} {verb} asked for"
            found.append(
                Finding(ShapeError(cause, place=place, next_step=_fit(place, has)), source)
            )
    return found


def _counted(number: int, what: str) -> str:
    """Return ``11 nodes up`` for ``node up``."""
    noun, _, rest = what.partition(" ")
    return f"{f'{number} MB' if noun == 'MB' else counted(number, noun)} {rest}".rstrip()


def _limits(case: Case) -> Iterator[tuple[str, str, int | None, str]]:
    live, written = case.partition, case.written
    if live is not None:
        yield "--nodes", "node up", live.nodes, "sinfo"
        yield "--nodes", "node at most for one job", live.max_nodes, "sinfo"
        yield "--cpus-per-task", "CPU per node", live.cpus, "sinfo"
        yield "--mem", "MB of memory per node", live.memory or None, "sinfo"
    elif written is not None:
        yield "--nodes", "node", count(written.nodes), case.source
        yield "--cpus-per-task", "CPU per node", written.cpus, case.source
        yield "--mem", "MB of memory per node", written.memory, case.source


def count(nodes: str | int | None) -> int | None:
    """How many nodes a site's file names; None: it does not say."""
    return len(hostlist.expand(nodes)) if isinstance(nodes, str) else nodes


def _fit(place: str, limit: int) -> str:
    if place == "--cpus-per-task":
        return f"at most {limit} for all ranks of a node together"
    if place == "--mem":
        return f"--mem {limit}M, or less"
    return f"{place} {limit}" if limit else "toolkit cluster show"
