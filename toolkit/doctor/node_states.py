"""Which nodes take no jobs, and why; whether as many are left as were asked for."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.doctor.case import Answer, Case, failed, passed, unchecked, warned

_USABLE = ("idle", "alloc", "mix", "comp", "plan", "reserved", "unk", "pow")


def check(case: Case) -> Answer:
    if case.client is None:
        return unchecked(f"no cluster: {case.no_site}")
    partitions = case.client.partitions()
    name = case.partition or next((one.name for one in partitions if one.default), None)
    return judge(case.client.node_states(name), case.nodes, name or "the cluster")


def judge(states: Mapping[str, tuple[str, str]], wanted: int, partition: str) -> Answer:
    """How nodes are.

    Args:
        states: of each node its state, and the reason that somebody gave.
        wanted: so many are asked for.
        partition: that they are of.
    """
    away = {node: state for node, state in states.items() if not usable(state[0])}
    by_reason: dict[str, list[str]] = {}
    for node, (state, reason) in away.items():
        by_reason.setdefault(
            f"{state}{f': {reason}' if reason not in ('', 'none') else ''}", []
        ).append(node)
    named = "; ".join(f"{', '.join(nodes)} {state}" for state, nodes in by_reason.items())
    left = len(states) - len(away)
    if left < max(wanted, 1):
        return failed(
            f"{left} of {len(states)} nodes of {partition} take jobs, {max(wanted, 1)} are needed: {named}",
            "sinfo -R; ask the operators",
        )
    if away:
        return warned(
            f"{left} of {len(states)} nodes of {partition} take jobs; {named}",
            "sinfo -R tells who took them out, and when",
        )
    return passed(f"{left} nodes of {partition} take jobs")


def usable(state: str) -> bool:
    """Whether jobs may start on a node in such a state, now or later; ``*`` is one that does not answer."""
    return state.startswith(_USABLE) and "*" not in state and "drain" not in state
