"""`toolkit bench stage`: how soon ranks run with the image on the shared file system and on nodes.

Each number of nodes has three runs of a program that imports what the image is for: one that reads
the shared file, one that copies it to the nodes, and one that finds it there. The seconds are those
of the whole job by Slurm's clock, which counts whole seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.bench import jobs
from toolkit.model.base import Model
from toolkit.planning.settings import Layer
from toolkit.units import counted

PROGRAM = "python3"
_IMPORT = """\
import importlib.util
for name in ("torch", "tensorflow", "ray"):
    if importlib.util.find_spec(name):
        __import__(name)
"""


class Row(Model, frozen=True, kw_only=True):
    """The seconds of the jobs on one number of nodes.

    Attributes:
        shared: every node reads the shared file.
        copied: each node copies it first; those that have a copy already do not.
        staged: each node has its copy.
    """

    nodes: int
    shared: float
    copied: float
    staged: float


def settings(given: Mapping[str, Any], nodes: int, *, stage_image: bool) -> Layer:
    """Return the settings of a job; the user's own override none of them."""
    own = {"nodes": nodes, "ntasks_per_node": 1, "launcher": "srun", "stage_image": stage_image}
    return Layer("bench stage", {"job_name": "stage", **given, **own, "arguments": ("-c", _IMPORT)})


def run(given: Mapping[str, Any], counts: Iterable[int], cwd: Path, say: jobs.Inform) -> list[Row]:
    """Run the jobs one after the other.

    Raises:
        FailedRunError: a job failed.
        ToolkitError: one could not be planned or submitted.
    """
    rows: list[Row] = []
    for nodes in counts:
        seconds: list[float] = []
        for stage_image in (False, True, True):
            ran = jobs.run(PROGRAM, settings(given, nodes, stage_image=stage_image), cwd, say)
            if ran.outcome.kind != "ok":
                raise jobs.FailedRunError(ran)
            seconds.append(float(ran.outcome.seconds))
        rows.append(Row(nodes=nodes, shared=seconds[0], copied=seconds[1], staged=seconds[2]))
    return rows


def verdict(rows: Sequence[Row]) -> str:
    """Return from how many nodes on a copy pays, for the job that makes it and for later ones."""
    first = next((row.nodes for row in rows if row.copied < row.shared), None)
    later = next((row.nodes for row in rows if row.staged < row.shared), None)
    if later is None:
        return "the shared file is as fast here: leave --stage-image out"
    text = f"a copy pays from {counted(later, 'node')} on, for jobs that find it"
    return (
        f"{text}; from {counted(first, 'node')} on also for the job that makes it"
        if first
        else text
    )
