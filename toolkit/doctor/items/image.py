"""Items about the image: on this machine, in a job, and on every node."""

from __future__ import annotations

import time

from toolkit.checks import Result, check, failed, passed, unchecked, warned
from toolkit.doctor.case import DoctorCase
from toolkit.units import counted, human_size

_SLOW = 10.0  # seconds: then every start of every rank is felt


@check("image", "the image can be read, and a program starts in it")
def check_image(case: DoctorCase) -> Result:
    """Start a program in the image on this machine."""
    if case.image is None or case.image_case is None:
        if not case.nodes:
            return unchecked(case.no_image)
        return failed(case.no_image, "toolkit image list")
    began = time.monotonic()
    result = case.image_case.runner.run(["true"], timeout=60)
    seconds = time.monotonic() - began
    what = f"{case.image.path} ({human_size(case.image_case.path.stat().st_size)})"
    if not result.ok:
        step = f"toolkit image check {case.image.name}"
        return failed(f"nothing starts in {what}: {' '.join(result.tail(1))}", step)
    if case.image.manifest is None:
        return warned(
            f"{what} starts in {seconds:.1f} s; it has no manifest: its contents are not recorded",
            f"toolkit image verify {case.image.path}",
        )
    return passed(f"{what} starts in {seconds:.1f} s")


@check("allocation", "a job of this shape is accepted, starts and succeeds", scope="nodes")
def check_allocation(case: DoctorCase) -> Result:
    """Check what came of the probe's job."""
    outcome = case.probe.outcome
    shape = counted(case.nodes, "node") + (f" x {case.gpus} GPUs" if case.gpus else "")
    if outcome is None:
        step = case.probe.fix or "ask for less, or for another partition: toolkit cluster show"
        return failed(f"{shape}: {case.probe.refusal}", step)
    if outcome.kind == "ok":
        return passed(f"{shape}: {outcome.nodes}, the job took {outcome.seconds:.0f} s")
    complaint = f"{shape}: {case.probe.complaint}"
    if outcome.kind == "timeout":
        return failed(
            complaint,
            "a node hangs, or closes the ports that srun itself needs; examine the nodes, or a "
            "longer --time",
        )
    if case.reports:
        return failed(complaint, case.probe.fix)
    states = "; ".join(f"{node}: {state}" for node, state in outcome.unhealthy.items())
    if states:
        return failed(f"{complaint}; {states}", "exclude them, and tell the operators")
    return unchecked(f"{shape} started and reported nothing; see `image-on-nodes`")


@check("image-on-nodes", "every node can read the image and starts it fast", scope="nodes")
def check_image_on_nodes(case: DoctorCase) -> Result:
    """Check that a program started in the image on every node, and how fast."""
    outcome = case.probe.outcome
    if outcome is None:
        return unchecked("the job never ran")
    if len(case.reports) < case.nodes:
        where = ", ".join(report.host for report in case.reports) or "no node"
        text = (outcome.failure.text if outcome.failure else "") or case.probe.complaint
        image = case.image.path if case.image else "it"
        return failed(
            f"of {counted(case.nodes, 'node')} only {where} started a program in {image}: {text}",
            case.probe.fix or "put the image where all nodes see it: toolkit image copy",
        )
    starts = [(report.started, report.host) for report in case.reports if report.started > 0]
    if not starts:
        return passed(counted(case.nodes, "node"))
    text = ", ".join(f"{host} {seconds:.1f} s" for seconds, host in starts)
    if max(starts)[0] > _SLOW:
        return warned(
            f"slow to start: {text}",
            "stripe the image over more servers (lfs setstripe), or copy it to the nodes' own "
            "disks",
        )
    return passed(f"starts everywhere: {text}")
