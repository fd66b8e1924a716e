"""Every node finds every other by its name, and itself; and addresses lead back to names."""

from __future__ import annotations

from toolkit.doctor.case import Answer, Case, failed, passed, warned


def check(case: Case) -> Answer:
    if why := case.no_nodes():
        return why
    wrong = [
        f"{one.host} cannot resolve {name}: {what['error']}"
        for one in case.told
        for name, what in one.names.items()
        if "error" in what
    ]
    if wrong:
        return failed(
            "; ".join(wrong), "/etc/hosts or the name service of that node; tell the operators"
        )
    addresses: dict[str, set[str]] = {}
    for one in case.told:
        for name, what in one.names.items():
            # A node may know itself by another address than others know it by, such as 127.0.1.1 of
            # Debian.
            if name != one.host:
                addresses.setdefault(name, set()).add(str(what["address"]))
    unlike = [
        f"{name} is {' and '.join(sorted(found))}"
        for name, found in addresses.items()
        if len(found) > 1
    ]
    back = [
        f"{one.host} calls {what['address']} {what['back'] or 'nothing'}, not {name}"
        for one in case.told
        for name, what in one.names.items()
        if name != one.host and str(what["back"]).split(".")[0] != name.split(".")[0]
    ]
    loop = [
        one.host
        for one in case.told
        if len(case.told) > 1 and str(one.names[one.host].get("address", "")).startswith("127.")
    ]
    if unlike or back or loop:
        itself = [f"{', '.join(loop)} know themselves by a loopback address"] if loop else []
        return warned(
            "; ".join((*unlike, *back, *itself)),
            "where ranks do not meet: NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME",
        )
    return passed(f"{len(case.told)} nodes find each other by name and by address")
