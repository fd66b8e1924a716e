"""What building images needs of this machine: user namespaces, subordinate ids, FUSE. Jobs need less of it."""

from __future__ import annotations

from toolkit.doctor.case import Answer, Case, passed, warned
from toolkit.hostsetup.look import look
from toolkit.hostsetup.model import Facts, Wishes


def check(case: Case) -> Answer:
    del case
    return judge(look(Wishes()))


def judge(facts: Facts) -> Answer:
    """What of it there is."""
    wrong = []
    if not facts.namespaces:
        wrong.append("users may not make user namespaces")
    if not facts.ids:
        wrong.append(f"{facts.user} has no subordinate ids (/etc/subuid, /etc/subgid): no fakeroot")
    if facts.fuse != "ready":
        wrong.append(f"/dev/fuse is {facts.fuse}: users cannot mount images")
    if facts.root_exec == "fails":
        wrong.append("root cannot start a container: it lacks capabilities")
    if wrong:
        return warned(
            "; ".join(wrong),
            "toolkit setup says what an administrator has to do; images can be built elsewhere and copied",
        )
    return passed("user namespaces, subordinate ids for fakeroot and FUSE are there")
