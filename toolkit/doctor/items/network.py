"""Items about the network between nodes: names, connections, ports, clocks and interfaces."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.checks import Result, check, failed, passed, unchecked, warned
from toolkit.doctor.case import DoctorCase, NodeReport

_NOTABLE, _WRONG = 1.0, 60.0  # seconds between clocks


@check("names", "every node resolves every other by its name", scope="nodes")
def check_names(case: DoctorCase) -> Result:
    """Check that nodes resolve each other and themselves, and that addresses lead back to names."""
    if reason := case.no_reports():
        return reason
    reports = case.reports
    wrong = [
        f"{report.host} cannot resolve {name}: {answer['error']}"
        for report in reports
        for name, answer in report.names.items()
        if "error" in answer
    ]
    if wrong:
        step = "/etc/hosts or the name service of that node; tell the operators"
        return failed("; ".join(wrong), step)
    loopback = [
        report.host
        for report in reports
        if len(reports) > 1 and str(report.names[report.host].get("address", "")).startswith("127.")
    ]
    itself = [f"{', '.join(loopback)} know themselves by a loopback address"] if loopback else []
    doubts = [*_ambiguous(reports), *_renamed(reports), *itself]
    if doubts:
        return warned(
            "; ".join(doubts),
            "if ranks do not meet: NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME",
        )
    return passed(f"{len(reports)} nodes find each other by name and by address")


def _ambiguous(reports: Sequence[NodeReport]) -> list[str]:
    """Return the names that nodes resolve to different addresses.

    A node may know itself by another address than the others do, such as Debian's 127.0.1.1.
    """
    addresses: dict[str, set[str]] = {}
    for report in reports:
        for name, answer in report.names.items():
            if name != report.host:
                addresses.setdefault(name, set()).add(str(answer["address"]))
    return [
        f"{name} is {' and '.join(sorted(known))}"
        for name, known in addresses.items()
        if len(known) > 1
    ]


def _renamed(reports: Sequence[NodeReport]) -> list[str]:
    """Return the addresses that lead back to another name."""
    return [
        f"{report.host} calls {answer['address']} {answer['back'] or 'nothing'}, not {name}"
        for report in reports
        for name, answer in report.names.items()
        if name != report.host and str(answer["back"]).split(".")[0] != name.split(".")[0]
    ]


@check("connections", "every node reaches any port of every other", scope="nodes")
def check_connections(case: DoctorCase) -> Result:
    """Check that nodes reach each other's ports, as ranks of NCCL, Gloo and MPI do."""
    if reason := case.no_reports(2):
        return reason
    wrong = [
        f"{report.host} -> {name}: {link['error']}"
        for report in case.reports
        for name, link in report.links.items()
        if "error" in link
    ]
    if wrong:
        return failed(
            f"no connection: {'; '.join(wrong)}",
            "a firewall between the nodes, or a wrong address (see `names`); tell the operators",
        )
    count = sum(len(report.links) for report in case.reports)
    return passed(f"{count} connections between {len(case.reports)} nodes")


@check("rendezvous", "every node reaches the port where ranks meet", scope="nodes")
def check_rendezvous(case: DoctorCase) -> Result:
    """Check that every node reaches the port of the first one at which ranks meet."""
    if reason := case.no_reports(2):
        return reason
    first, *others = case.reports
    port = (case.probe.files.get("presence-0.json") or {}).get("rendezvous")
    low, high = case.ports
    if not port:
        step = "find what listens there: ss -ltn"
        return failed(f"{first.host} has no free port from {low} to {high}", step)
    wrong = [
        f"{report.host}: {report.rendezvous['error']}"
        for report in others
        if "error" in report.rendezvous
    ]
    if wrong:
        return failed(
            f"{first.host}:{port} cannot be reached from {'; '.join(wrong)}",
            f"ports {low} to {high} must be open between nodes, or set the open ones: "
            "ports = [FIRST, LAST] in the site's file",
        )
    hosts = ", ".join(report.host for report in others)
    return passed(f"{first.host}:{port} is reached from {hosts}")


@check("clocks", "the nodes' clocks agree", scope="nodes")
def check_clocks(case: DoctorCase) -> Result:
    """Compare the nodes' clocks.

    If they differ, times in logs mislead, and Slurm's and Kerberos' tickets are refused.
    """
    if reason := case.no_reports(2):
        return reason
    apart = [
        (abs(float(link["clock"])), f"{name} is {link['clock']:+.3f} s from {report.host}")
        for report in case.reports
        for name, link in report.links.items()
        if "clock" in link
    ]
    if not apart:
        return failed("no clock could be compared: no node reaches another")
    most, text = max(apart)
    step = "the node's time service (chronyc tracking); tell the operators"
    if most > _WRONG:
        return failed(text, step)
    if most > _NOTABLE:
        return warned(text, step)
    return passed(f"within {most * 1000:.1f} ms of each other")


@check("interface", "the site's network interface carries traffic", scope="nodes")
def check_interface(case: DoctorCase) -> Result:
    """Check that the site's network interface is on every node and carries traffic.

    If the site names none, say which interfaces do.
    """
    if reason := case.no_reports():
        return reason
    name = case.site.interface if case.site else None
    if name is None:
        return _used_interfaces(case.reports)
    lacking = [
        f"{report.host} has {', '.join(report.addresses)}"
        for report in case.reports
        if name not in report.addresses
    ]
    if lacking:
        return failed(
            f"the site's interface {name} is not on every node: {'; '.join(lacking)}",
            "correct `interface` in the site's file",
        )
    if len(case.reports) < 2:
        return passed(f"{name} has an address; whether it carries anything takes 2 nodes")
    wrong = [
        f"{report.host} -> {other}: {answer['error']}"
        for report in case.reports
        for other, answer in report.throughput.items()
        if "error" in answer
    ]
    if wrong:
        step = "another `interface` in the site's file; tell the operators"
        return failed(f"{name} carries nothing: {'; '.join(wrong)}", step)
    speeds = [
        float(answer["speed"]) for each in case.reports for answer in each.throughput.values()
    ]
    text = f"{name} carries {min(speeds):.0f} to {max(speeds):.0f} MB/s between nodes"
    return passed(f"{text}, by one connection")


def _used_interfaces(reports: Sequence[NodeReport]) -> Result:
    used = {
        name
        for report in reports
        for link in report.links.values()
        for name, address in report.addresses.items()
        if address == link.get("from") and not address.startswith("127.")
    }
    if not used:
        return unchecked("the site names no interface, and no node reached another")
    return passed(f"the site names no interface; names lead to {', '.join(sorted(used))}")
