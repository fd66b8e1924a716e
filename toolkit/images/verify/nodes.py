"""Ranks on a site's nodes: a job of `toolkit run` like any other, whose script is ``scripts/ranks.py``. The edge of verify."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from toolkit import shell
from toolkit.errors import CommandFailedError, ToolkitError
from toolkit.images.verify.case import Met, Offer
from toolkit.images.verify.together import judge
from toolkit.resources import package_directory

_PATIENCE = 1800.0  # seconds: the job may have to wait in a queue


def offer(name: str) -> Offer:
    """What a site has.

    Raises:
        UnknownSiteError, SlurmUnreachableError: it is not known, or cannot be reached.
    """
    from toolkit.prepare import find_place
    from toolkit.slurm.client import Client

    place = find_place(name)
    client = Client(place.access)
    program = next((command for command in place.site.containers if shell.which(command)), None)
    if program is None and place.site.modules:
        program = place.site.containers[-1]  # a module brings it, in the job
    return Offer(name=place.site.name, mpi=client.mpi_types() or (), container=program, containers=place.site.containers)


def on_nodes(image: str, site: str, nodes: int, gpus: int, options: Sequence[str]) -> Callable[[str, Sequence[str], str], Met]:
    """What starts ranks on nodes: one on each, or one for each GPU.

    Args:
        options: more of `toolkit run`, such as a partition.
    """

    def job(launcher: str, arguments: Sequence[str], controller: str) -> Met:
        parent = Path.home() / ".cache" / "toolkit"  # which all nodes see, as they do every run
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="verify-", dir=parent) as directory:
            shutil.copy(package_directory("images/verify/scripts") / "ranks.py", directory)
            shape = ("--nodes", str(nodes), *(("--gpus", str(gpus)) if gpus else ("--ntasks-per-node", "1")))
            words = ("run", "--json", "--image", image, "--site", site, "--launcher", launcher, *shape, *options, "ranks.py", *arguments)
            try:
                done = shell.run([sys.executable, "-m", "toolkit", *words], cwd=directory, check=False, timeout=_PATIENCE)
            except CommandFailedError as error:
                return Met(outcome="unchecked", detail=error.cause)
            return _met(done, nodes * (gpus or 1), nodes, controller)

    return job


def _met(done: shell.Result, ranks: int, nodes: int, controller: str) -> Met:
    try:
        outcome = json.loads(done.stdout)
    except ValueError:
        said = next((line for line in done.stderr.splitlines() if line.startswith("error:")), f"toolkit run ended with {done.returncode}")
        # It was refused before it queued, or nobody answered: that says nothing of the image.
        return Met(outcome="unchecked", detail=said.removeprefix("error: "))
    found = outcome.get("results") or None
    complaint = outcome.get("message") or f"the job ended with {outcome.get('exit_code')}"
    answer = judge(found, ranks, controller, complaint, nodes)
    return Met(outcome=answer.outcome, detail=answer.detail, drivers=tuple((found or {}).get("drivers", ())))


def local_drivers() -> tuple[int, tuple[str, ...]]:
    """How many GPUs this machine has, and the version of its driver."""
    import re

    gpus = len(list(Path("/proc/driver/nvidia/gpus").glob("*"))) if Path("/proc/driver/nvidia/gpus").is_dir() else 0
    try:
        found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", Path("/proc/driver/nvidia/version").read_text(encoding="utf-8"))
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
