"""Items about the GPUs of nodes, and their driver."""

from __future__ import annotations

from collections import Counter

from toolkit.checks import Result, check, failed, passed, unchecked, warned
from toolkit.doctor.case import DoctorCase
from toolkit.images.verify.checks.cluster import judge_driver


@check("gpus", "the container on each node sees the requested GPUs", scope="nodes")
def check_gpus(case: DoctorCase) -> Result:
    """Check that each node's container sees as many GPUs as were requested."""
    if not case.gpus:
        return unchecked("no GPUs were asked for", "toolkit doctor --gpus-per-node N")
    if reason := case.no_reports():
        return reason
    if case.has_simulated_gpus and not any(report.gpus for report in case.reports):
        given = [len(list(filter(None, report.visible.split(",")))) for report in case.reports]
        numbers = ", ".join(map(str, given))
        return unchecked(f"this cluster's GPUs are simulated; Slurm gave the nodes {numbers}")
    few = [
        f"{report.host} sees {len(report.gpus)}"
        for report in case.reports
        if len(report.gpus) < case.gpus
    ]
    if few:
        return failed(
            f"{case.gpus} GPUs were asked for: {'; '.join(few)}",
            "on the node: nvidia-smi. In the image: --nv needs the host's driver and "
            "libnvidia-container",
        )
    kinds = Counter(gpu.split(":", 1)[-1].strip() for each in case.reports for gpu in each.gpus)
    return passed("; ".join(f"{count} x {kind}" for kind, count in kinds.items()))


@check("driver", "all nodes have one driver that runs the image's CUDA", scope="nodes")
def check_driver(case: DoctorCase) -> Result:
    """Check that all nodes have one NVIDIA driver, and that it runs the image's CUDA."""
    if not case.gpus:
        return unchecked("no GPUs were asked for")
    if reason := case.no_reports():
        return reason
    drivers = {report.host: report.driver for report in case.reports if report.driver}
    if not drivers:
        return unchecked("no node has a driver of NVIDIA")
    versions = tuple(dict.fromkeys(drivers.values()))
    image = case.image_case
    if image is not None:
        judged = judge_driver(image, versions)
        if judged.outcome == "failed":
            step = "an older image: toolkit image search; or ask for a newer driver"
            return failed(judged.message, step)
    if len(versions) > 1 or len(drivers) < len(case.reports):
        each = ", ".join(f"{report.host} {report.driver or 'none'}" for report in case.reports)
        step = "tell the operators; --constraint or --exclude keeps a job on equal nodes"
        return warned(f"drivers differ: {each}", step)
    return passed(f"{versions[0]} on every node")
