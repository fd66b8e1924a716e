"""Every node reaches the port of the first one at which ranks meet."""

from __future__ import annotations

from toolkit.doctor.case import Answer, Case, failed, passed


def check(case: Case) -> Answer:
    if why := case.no_nodes(2):
        return why
    first, *others = case.told
    wrong = [f"{one.host}: {one.meeting['error']}" for one in others if "error" in one.meeting]
    port = (case.ended.files.get("here-0.json") or {}).get("meeting")
    if not port:
        return failed(f"{first.host} has no free port from 61000 to 65535", "look what listens there: ss -ltn")
    if wrong:
        return failed(f"{first.host}:{port} cannot be reached from {'; '.join(wrong)}", "ports 61000 to 65535 must be open between nodes")
    return passed(f"{first.host}:{port} is reached from {', '.join(one.host for one in others)}")
