"""Every node reaches any port of every other, as ranks of NCCL, Gloo and MPI do."""

from __future__ import annotations

from toolkit.doctor.case import Answer, Case, failed, passed


def check(case: Case) -> Answer:
    if why := case.no_nodes(2):
        return why
    wrong = [
        f"{one.host} -> {name}: {way['error']}"
        for one in case.told
        for name, way in one.ways.items()
        if "error" in way
    ]
    if wrong:
        return failed(
            f"no connection: {'; '.join(wrong)}",
            "a firewall between the nodes, or a wrong address (see `names`); tell the operators",
        )
    return passed(f"{sum(len(one.ways) for one in case.told)} ways between {len(case.told)} nodes")
