"""Rules about the nodes that a job names, and the features that it requires."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from toolkit.checks import Result, check, from_error
from toolkit.errors import ToolkitError, UsageError
from toolkit.model.case import Case
from toolkit.quoting import alternatives
from toolkit.slurm.hostlist import expand

_LIST = "sinfo --Node --format='%N %P %f' lists nodes, their partitions and their features"


@check("nodes", "nodes that the partition has", order=22)
def check_nodes(case: Case) -> list[Result]:
    """Check the names in ``--nodelist`` and ``--exclude``."""
    errors = [*_names(case, "--nodelist", case.job.nodelist)]
    errors += _names(case, "--exclude", case.job.exclude)
    return [from_error(error, "sinfo") for error in errors]


def _names(case: Case, place: str, hosts: str | None) -> Iterator[ToolkitError]:
    known, partition = case.facts.nodes, case.partition_name
    if not hosts or not known or "/" in hosts:  # sbatch reads a file of names if there is a slash
        return
    try:
        names = expand(hosts)
    except ValueError as error:
        yield UsageError(str(error), place=place, next_step=f"{place} {next(iter(known))}")
        return
    for name in dict.fromkeys(names):
        if name not in known:
            yield _unknown(f"the cluster has no node {name!r}", place, known, name)
        elif place == "--nodelist" and partition and partition not in known[name].partitions:
            others = known[name].partitions
            cause = f"node {name} is in partition {', '.join(others)}, not in {partition}"
            yield UsageError(cause, place=place, next_step=alternatives("--partition", others))


@check("features", "features that nodes of the partition have", order=24)
def check_features(case: Case) -> list[Result]:
    """Check the features in ``--constraint``, such as ``intel&[rack1*2|rack2*2]``."""
    text, nodes = case.job.constraint or "", case.facts.nodes
    words = [re.sub(r"\*\d+$", "", word) for word in re.split(r"[&|,\[\]()]", text)]
    wanted = [word.strip() for word in words if word.strip()]
    if not wanted or not nodes:
        return []
    known = {feature for node in nodes.values() for feature in node.features}
    errors = [
        _unknown(f"no node has the feature {name!r}", "--constraint", known, name)
        for name in dict.fromkeys(wanted)
        if name not in known
    ]
    if not errors and not re.search(r"[|\[(]", text):
        having = [node for node in nodes.values() if set(wanted) <= set(node.features)]
        places = sorted({name for node in having for name in node.partitions})
        if case.partition_name and case.partition_name not in places:
            cause = f"no node of partition {case.partition_name} has {text}"
            step = f"with it: {alternatives('--partition', places)}" if places else _LIST
            errors.append(UsageError(cause, place="--constraint", next_step=step))
    return [from_error(error, "sinfo") for error in errors]


def _unknown(cause: str, place: str, known: Collection[str], name: str) -> UsageError:
    return UsageError(cause, place=place, choices=known, value=name, next_step=_LIST)
