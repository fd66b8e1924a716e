"""Items about nodes: the probe's job, what each node reported, the network between them, sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise

from toolkit.checks import Check, Result, check, failed, passed, unchecked, warned
from toolkit.doctor.case import MEGABYTES, DoctorCase
from toolkit.images.verify.checks import BACKENDS, judge_driver, sum_on_nodes
from toolkit.units import counted

_SLOW = 10.0  # seconds: then every start of every rank is felt
_APART = 1.0  # seconds between clocks that are worth a warning
_SHARE = 0.7  # of the expected speed; less is worth a warning


@check("allocation", "a job of this shape is accepted, starts and succeeds", scope="nodes")
def _allocation(case: DoctorCase) -> Result:
    outcome = case.probe.outcome
    shape = counted(case.nodes, "node") + (f" x {case.gpus} GPUs" if case.gpus else "")
    if outcome is None:
        return failed(f"{shape}: {case.probe.refusal}", "toolkit cluster show")
    if outcome.kind == "ok":
        return passed(f"{shape}: {outcome.nodes}, the job took {outcome.seconds:.0f} s")
    if outcome.kind != "timeout" and not case.reports and not outcome.unhealthy:
        return unchecked(f"{shape} started and reported nothing; see `image-on-nodes`")
    states = "".join(f"; {node}: {state}" for node, state in outcome.unhealthy.items())
    return failed(
        f"{shape}: {case.probe.complaint}{states}",
        "examine the nodes, or --exclude them; or a longer --time",
    )


@check("image-on-nodes", "every node can read the image and starts it fast", scope="nodes")
def _image_on_nodes(case: DoctorCase) -> Result:
    if case.probe.outcome is None:
        return unchecked("the job never ran")
    if len(case.reports) < case.nodes:
        where = ", ".join(report.host for report in case.reports) or "no node"
        return failed(
            f"only {where} started a program in the image: {case.probe.complaint}",
            "put the image where all nodes see it: toolkit image copy",
        )
    text = ", ".join(f"{report.host} {report.started:.1f} s" for report in case.reports)
    if max(report.started for report in case.reports) > _SLOW:
        return warned(
            f"slow to start: {text}",
            "stripe the image over more servers, or copy it to the nodes' own disks",
        )
    return passed(f"starts everywhere: {text}")


def _reported(
    name: str, about: str, *, least: int = 1, gpus: bool = False
) -> Callable[[Callable[[DoctorCase], Result]], Check]:
    """Turn a function into an item about what nodes reported.

    Args:
        name: of the item.
        about: what must hold, in a few words.
        least: the number of nodes that it takes.
        gpus: it takes GPUs.
    """

    def make(judge: Callable[[DoctorCase], Result], case: DoctorCase) -> Result:
        if gpus and not case.gpus:
            return unchecked("no GPUs were asked for", "toolkit doctor --gpus-per-node N")
        return case.no_reports(least) or judge(case)

    return lambda judge: Check(name, about, partial(make, judge), scope="nodes")


def _broken(
    case: DoctorCase, kind: str, failure: str = "", step: str = "", *, verb: str = "->"
) -> Result | None:
    """Return what nodes could not do with others: ``n1 -> n2: timed out``; None if they could."""
    wrong = [
        f"{report.host} {verb} {other}: {answer['error']}"
        for report in case.reports
        for other, answer in getattr(report, kind).items()
        if "error" in answer
    ]
    return failed(f"{failure}: {'; '.join(wrong)}", step) if wrong else None


@_reported("gpus", "the container on each node sees the requested GPUs", gpus=True)
def _gpus(case: DoctorCase) -> Result:
    if case.has_simulated_gpus and not any(report.gpus for report in case.reports):
        return unchecked("this cluster's GPUs are simulated")
    few = [
        f"{report.host} sees {len(report.gpus)}"
        for report in case.reports
        if len(report.gpus) < case.gpus
    ]
    if few:
        return failed(
            f"{case.gpus} GPUs were asked for: {'; '.join(few)}",
            "on the node: nvidia-smi",
        )
    kinds = Counter(gpu for report in case.reports for gpu in report.gpus)
    return passed("; ".join(f"{count} x {kind}" for kind, count in kinds.items()))


@_reported("driver", "all nodes have one driver that runs the image's CUDA", gpus=True)
def _driver(case: DoctorCase) -> Result:
    drivers = {report.host: report.driver for report in case.reports}
    if not any(drivers.values()):
        return unchecked("no node has a GPU of NVIDIA")
    if case.image_case is not None:
        judged = judge_driver(case.image_case, tuple(filter(None, drivers.values())))
        if judged.outcome == "failed":
            return judged._replace(fix="an older image: toolkit image search")
    text = ", ".join(f"{host} {driver or 'none'}" for host, driver in drivers.items())
    if len({*drivers.values()}) > 1:
        return warned(text, "--constraint or --exclude keeps a job on equal nodes")
    return passed(text)


@_reported("names", "every node resolves every other by its name")
def _names(case: DoctorCase) -> Result:
    if broken := _broken(
        case,
        "names",
        "not every name resolves",
        "/etc/hosts or the name service of that node; tell the operators",
        verb="cannot resolve",
    ):
        return broken
    rows = [
        (report.host, name, str(answer["address"]), answer["back"])
        for report in case.reports
        for name, answer in report.names.items()
    ]
    others = [row for row in rows if row[0] != row[1]]
    pairs = pairwise(sorted({(name, address) for _, name, address, _ in others}))
    doubts = [
        f"{name} is {left} and {right}" for (name, left), (same, right) in pairs if name == same
    ]
    doubts += [
        f"{host} calls {address} {back}, not {name}"
        for host, name, address, back in others
        if back.split(".")[0] != name.split(".")[0]
    ]
    doubts += [
        f"{host} knows itself by the loopback address {address}"  # at which Gloo then listens
        for host, name, address, _ in rows
        if host == name and address.startswith("127.") and others
    ]
    if doubts:
        return warned(
            "; ".join(doubts), "if ranks do not meet: NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME"
        )
    return passed(f"{len(case.reports)} nodes find each other by name and by address")


@_reported("connections", "every node reaches any port of every other", least=2)
def _connections(case: DoctorCase) -> Result:
    count = sum(len(report.links) for report in case.reports)
    return _broken(
        case,
        "links",
        "no connection",
        "a firewall between the nodes, or a wrong address (see `names`); tell the operators",
    ) or passed(f"{count} connections between {len(case.reports)} nodes")


@_reported("rendezvous", "every node reaches the port where ranks meet", least=2)
def _rendezvous(case: DoctorCase) -> Result:
    port = f"port of {case.reports[0].host} from {case.ports[0]} to {case.ports[1]} is reached"
    return _broken(
        case,
        "rendezvous",
        f"no free {port} from all others",
        "these ports must be open between nodes; others: ports = [FIRST, LAST] in the site's file",
    ) or passed(f"a {port} from all others")


@_reported("clocks", "the nodes' clocks agree", least=2)
def _clocks(case: DoctorCase) -> Result:
    # If they differ, times in logs mislead, and Slurm's and Kerberos' tickets are refused.
    apart = [
        (abs(float(link["clock"])), f"{name} is {link['clock']:+.3f} s from {report.host}")
        for report in case.reports
        for name, link in report.links.items()
        if "clock" in link
    ]
    if not apart:
        return unchecked("no node reaches another; see `connections`")
    most, text = max(apart)
    if most > _APART:
        return warned(text, "the node's time service (chronyc tracking); tell the operators")
    return passed(f"within {most * 1000:.1f} ms of each other")


@_reported("interface", "the site's network interface carries traffic", least=2)
def _interface(case: DoctorCase) -> Result:
    name = case.site.interface if case.site else None
    if name is None:
        return unchecked("the site names no interface")
    if lacking := [report.host for report in case.reports if not report.address]:
        return failed(
            f"{name} has no address on {', '.join(lacking)}",
            "correct `interface` in the site's file",
        )
    step = "another `interface` in the site's file; tell the operators"
    broken = _broken(case, "over_interface", f"{name} carries nothing", step)
    return broken or passed(f"{name} connects {len(case.reports)} nodes")


def check_sum(backend: str, case: DoctorCase) -> Result:
    """Have ranks on all nodes sum by a backend, and compare their speed with what is expected.

    Ranks that are known not to reach each other would wait for minutes; they are not started.
    """
    if case.image_case is None:
        return unchecked(case.no_image)
    if reason := case.no_reports(1 if BACKENDS[backend].takes_gpus else 2):
        return reason
    if _broken(case, "links") or _broken(case, "rendezvous"):
        return unchecked("the nodes do not reach each other; see `connections` and `rendezvous`")
    summed = sum_on_nodes(backend, case.image_case)
    if summed.outcome != "passed":
        return summed._replace(fix="see `connections` and `interface`")
    speed = float(case.image_case.runs[backend].results.get("gigabytes_per_second") or 0.0)
    expected = case.site.allreduce.get(backend) if case.site else None
    text = f"{summed.message}; {speed:.2f} GB/s per rank for {MEGABYTES} MB"
    if expected is None:
        return passed(text)
    if speed < _SHARE * expected:
        return warned(
            f"{text}, {expected:g} are expected",
            "which network is used: --env NCCL_DEBUG=INFO, and look for NET/IB or NET/Socket",
        )
    return passed(f"{text}, {expected:g} are expected")


ITEMS = (
    _allocation,
    _image_on_nodes,
    _gpus,
    _driver,
    _names,
    _connections,
    _rendezvous,
    _clocks,
    _interface,
    *(
        Check(
            f"allreduce-{name}",
            f"ranks on all nodes sum by {backend.title}",
            partial(check_sum, name),
            scope="nodes",
        )
        for name, backend in sorted(BACKENDS.items())
    ),
)
