"""The network interface that the site names is on every node and carries traffic; without one, which interface does."""

from __future__ import annotations

from toolkit.doctor.case import Answer, Case, Told, failed, passed, unchecked


def check(case: Case) -> Answer:
    if why := case.no_nodes():
        return why
    name = case.site.interface if case.site else None
    if name is None:
        return _used(case.told)
    lacking = [
        f"{one.host} has {', '.join(one.addresses)}"
        for one in case.told
        if name not in one.addresses
    ]
    if lacking:
        return failed(
            f"the site's interface {name} is not on every node: {'; '.join(lacking)}",
            "correct `interface` in the site's file",
        )
    if len(case.told) < 2:
        return passed(f"{name} has an address; whether it carries anything takes 2 nodes")
    wrong = [
        f"{one.host} -> {other}: {way['error']}"
        for one in case.told
        for other, way in one.carries.items()
        if "error" in way
    ]
    if wrong:
        return failed(
            f"{name} carries nothing: {'; '.join(wrong)}",
            "another `interface` in the site's file; tell the operators",
        )
    speeds = [float(way["speed"]) for one in case.told for way in one.carries.values()]
    return passed(
        f"{name} carries {min(speeds):.0f} to {max(speeds):.0f} MB/s between nodes, by one connection"
    )


def _used(told: tuple[Told, ...]) -> Answer:
    used = sorted(
        {
            name
            for one in told
            for way in one.ways.values()
            for name, address in one.addresses.items()
            if address == way.get("from") and not address.startswith("127.")
        }
    )
    if not used:
        return unchecked("the site names no interface, and no node reached another")
    return passed(f"the site names no interface; names lead to {', '.join(used)}")
