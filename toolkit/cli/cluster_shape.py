"""The options of `toolkit cluster up` as a shape."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from toolkit.errors import UsageError
from toolkit.localcluster import options as shapes
from toolkit.localcluster import packages
from toolkit.localcluster.likeness import Likeness
from toolkit.localcluster.likeness import like as imitate
from toolkit.localcluster.shape import Shape


def shape_of(ctx: click.Context, *, shape_file: Path | None, nodes: int, **options: Any) -> Shape:
    """From a file, or from options; not from both.

    Raises:
        UsageError: an option is off, or says what the file says.
    """
    if shape_file is None:
        return shapes.from_options(
            nodes=nodes,
            cpus=options["cpus_per_node"],
            memory=options["mem_per_node"],
            gpus=options["gpus_per_node"],
            gpu_type=options["gpu_type"],
            partitions=options["partitions"],
            accounting=options["accounting"],
        )
    _alone(
        ctx,
        "--shape",
        str(shape_file),
        ("nodes", "cpus_per_node", "mem_per_node", "gpus_per_node", "gpu_type", "partitions"),
    )
    shape = shapes.from_file(shape_file)
    return replace(shape, accounting=True) if options["accounting"] else shape


def likeness(
    ctx: click.Context,
    *,
    like: str | None,
    nodes: int,
    partitions: tuple[str, ...],
    accounting: bool,
    **_: Any,
) -> Likeness | None:
    """Return the imitation of a site; None if the user asked for none.

    Raises:
        UnknownSiteError: no site has this name.
        UsageError: an option describes what the site describes.
    """
    if like is None:
        return None
    from toolkit import sites

    others = ("cpus_per_node", "mem_per_node", "gpus_per_node", "gpu_type", "shape_file")
    _alone(ctx, "--like", f"a site of yours that extends {like}", others)
    likeness = imitate(
        sites.load(like), most=nodes, chosen=partitions, accounting=accounting, there=directory_here
    )
    if packages.imitates():
        return likeness
    missing = "rules are not Slurm's own here: it lacks the plugin job_submit/lua"
    return Likeness(replace(likeness.shape, job_submit=""), (*likeness.said, missing))


def directory_here(text: str) -> str:
    """Return a directory of a site with variables expanded; empty if it is not on this machine."""
    path = Path(os.path.expandvars(text))
    return str(path.resolve()) if path.is_dir() else ""


def _alone(ctx: click.Context, option_given: str, where: str, others: tuple[str, ...]) -> None:
    """Nothing, if no option of ``others`` was given."""
    flags = {"partitions": "--partition", "shape_file": "--shape"}
    for option in others:
        if ctx.get_parameter_source(option) is not click.core.ParameterSource.DEFAULT:
            flag = flags.get(option, "--" + option.replace("_", "-"))
            raise UsageError(
                f"{flag} and {option_given} both describe the cluster",
                place=flag,
                next_step=f"write it in {where}",
            )
