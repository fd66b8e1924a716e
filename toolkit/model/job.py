"""What the user wants to run: the options of `toolkit run`, wherever they are written."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from toolkit.model.base import Model

Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]


class Job(Model, frozen=True, kw_only=True):
    """One layer of settings: flags, ``job.toml``, ``toolkit.toml``, or the merged result. None: this layer does not say.

    Names are Slurm's long options, counts are per node or per rank as there:

    Attributes:
        summary: what the job shows, for people.
        script: the training script, relative to the job's folder or to where the user stands.
        arguments: what comes after the script; the job's own first, then the user's.
        image: a recipe's name, or a path to a SIF.
        site: the name of a site, or ``auto``.
        launcher: how ranks are started.
        nodes: how many nodes.
        ntasks_per_node: ranks on each node.
        gpus: GPUs on each node.
        cpus_per_task: CPUs for each rank.
        time: limit, in Slurm's format (``MM``, ``HH:MM:SS``, ``D-HH:MM:SS``).
        partition: Slurm's partition.
        comment: Slurm's comment, which some sites require.
        job_name: name of the job and of its run directories.
        bind: ``SRC:DST[:ro]``, what of the host is seen in the container.
        env: variables for the ranks.
        runs: directory that run directories are made in.
    """

    summary: str | None = None
    script: str | None = None
    arguments: tuple[str, ...] = ()
    image: str | None = None
    site: str | None = None
    launcher: str | None = None
    nodes: Positive | None = None
    ntasks_per_node: Positive | None = None
    gpus: NotNegative | None = None
    cpus_per_task: Positive | None = None
    time: str | int | None = None
    partition: str | None = None
    comment: str | None = None
    job_name: str | None = None
    bind: tuple[str, ...] = ()
    env: dict[str, str] = {}
    runs: str | None = None
