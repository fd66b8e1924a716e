"""Every node reaches the port of the first one at which ranks meet."""

from __future__ import annotations

from toolkit.doctor.case import Answer, Case, failed, passed


def check(case: Case) -> Answer:
    if why := case.no_nodes(2):
        return why
    first, *others = case.told
    wrong = [f"{one.host}: {one.meeting['error']}" for one in others if "error" in one.meeting]
    port = (case.ended.files.get("here-0.json") or {}).get("meeting")
    low, high = case.ports
    if not port:
        return failed(
            f"{first.host} has no free port from {low} to {high}",
            "look what listens there: ss -ltn",
        )
    if wrong:
        step = f"ports {low} to {high} must be open between nodes, or say which are: ports = [FIRST, LAST] in the site's file"
        return failed(f"{first.host}:{port} cannot be reached from {'; '.join(wrong)}", step)
    return passed(f"{first.host}:{port} is reached from {', '.join(one.host for one in others)}")
