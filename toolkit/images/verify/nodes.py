"""Ranks on a site's nodes: a job of `toolkit run` like any other, whose script is ``scripts/ranks.py``. The edge of verify."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from toolkit import shell
from toolkit.errors import ToolkitError
from toolkit.images.verify import jobs
from toolkit.images.verify.case import Met, Offer
from toolkit.images.verify.together import judge
from toolkit.resources import package_directory


def offer(name: str) -> Offer:
    """What a site has.

    Raises:
        UnknownSiteError, SlurmUnreachableError: it is not known, or cannot be reached.
    """
    from toolkit.planning.gather import find_place
    from toolkit.planning.offline import container_command
    from toolkit.slurm.client import Client

    place = find_place(name)
    client = Client(place.access)
    program = next((command for command in place.site.containers if shell.which(command)), None)
    if program is None and place.site.modules:
        program = container_command(place.site)  # the module brings it, in the job
    return Offer(
        name=place.site.name,
        mpi=client.mpi_types() or (),
        container=program,
        containers=place.site.containers,
    )


def on_nodes(
    image: str,
    site: str,
    nodes: int,
    gpus: int,
    options: Sequence[str],
    *,
    within: Path | None = None,
) -> Callable[[str, Sequence[str], str], Met]:
    """What starts ranks on nodes: one on each, or one for each GPU.

    Args:
        options: more of `toolkit run`, such as a partition.
        within: the directory that jobs are run in; None: one in the user's cache directory.
    """

    def job(launcher: str, arguments: Sequence[str], controller: str) -> Met:
        shape = (
            "--nodes",
            str(nodes),
            *(("--gpus", str(gpus)) if gpus else ("--ntasks-per-node", "1")),
        )
        words = ("--image", image, "--site", site, "--launcher", launcher, *shape, *options)
        ended = jobs.run(
            package_directory("images/verify/scripts") / "ranks.py",
            words,
            arguments,
            within=within or jobs.parent(None),
        )
        return _met(ended, nodes * (gpus or 1), nodes, controller)

    return job


def _met(ended: jobs.Ended, ranks: int, nodes: int, controller: str) -> Met:
    if ended.outcome is None:
        # It was refused before it queued, or nobody answered: that says nothing of the image.
        return Met(outcome="unchecked", detail=ended.refusal)
    found = ended.results or {}
    answer = judge(found or None, ranks, controller, ended.complaint, nodes)
    speed = float(found.get("gigabytes_per_second") or 0.0)
    return Met(
        outcome=answer.outcome,
        detail=answer.detail,
        drivers=tuple(found.get("drivers", ())),
        speed=speed,
    )


def local_drivers() -> tuple[int, tuple[str, ...]]:
    """How many GPUs this machine has, and the version of its driver."""
    import re

    gpus = (
        len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
        if Path("/proc/driver/nvidia/gpus").is_dir()
        else 0
    )
    try:
        found = re.search(
            r"\s(\d+\.\d+(?:\.\d+)?)\s",
            Path("/proc/driver/nvidia/version").read_text(encoding="utf-8"),
        )
    except OSError:
        return gpus, ()
    return gpus, (found[1],) if found else ()


def site_or_reason(name: str, *, wanted: bool) -> tuple[Offer | None, str]:
    """What a site has, or why that is not known.

    Args:
        wanted: somebody asked for it; else it is looked for, and not missed.

    Raises:
        ToolkitError: somebody asked for it, and it is not there.
    """
    try:
        return offer(name), ""
    except ToolkitError as error:
        if wanted:
            raise
        return None, f"no cluster: {error.cause}"
