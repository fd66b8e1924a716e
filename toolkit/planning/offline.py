"""Plan a job for a cluster that this machine does not reach, from the site's file alone.

A laptop has no Slurm, no Apptainer and no image. What they would tell stays unknown, and one
warning names all of it.
"""

from __future__ import annotations

from pathlib import Path

from toolkit.errors import ToolkitError, UnknownImageError, UsageError
from toolkit.images.store import store
from toolkit.model.job import Job
from toolkit.model.site import Facts, Site
from toolkit.planning.settings import Layer
from toolkit.preflight.model import Seen, source_of
from toolkit.runtimes import RUNTIMES
from toolkit.runtimes.discover.discover import Inside


def facts(site: Site) -> Facts:
    """Return what the site's file says where the cluster itself would answer."""
    return Facts(mpi=site.mpi or None, container=container_command(site), mpirun="")


def container_command(site: Site) -> str | None:
    """Return the command that one of the site's modules brings, or else the first that the site names."""
    brought = {module.partition("/")[0] for module in site.modules}
    return next(
        (name for name in site.containers if name in brought), next(iter(site.containers), None)
    )


def comment(site: Site) -> Layer:
    """Return the site's example of a comment as settings, for a site that takes no job without one."""
    rule = site.comment
    needed = rule is not None and rule.required and rule.example
    return Layer(
        f"the example of site {site.name}", {"comment": rule.example} if rule and needed else {}
    )


def inside(job: Job, site: Site, findings: list[ToolkitError]) -> Inside | None:
    """Return the image of a job where the cluster would have it; None if the runtime has no image.

    A name without a directory is that of a recipe; an image that is here is used as it is.

    Args:
        job: the merged settings.
        site: that the job is for.
        findings: gets an error for a name that no recipe has.
    """
    if job.runtime in ("conda", "none"):
        cause = f"the runtime {job.runtime} takes a Python of the cluster, which cannot be examined from here"
        findings.append(
            UsageError(
                cause,
                place="--runtime",
                next_step=f"plan it on a login node of {site.name}, or --runtime apptainer",
            )
        )
        return Inside()
    if not job.image or job.runtime not in (None, "apptainer", "pyxis"):
        return None
    if job.runtime == "pyxis":
        return Inside(image=job.image)
    try:
        found = store.find(job.image)
    except UnknownImageError as error:
        if not job.image.startswith(("/", "./", "../", "~")):
            error.place, error.next_step = (
                "--image",
                "toolkit image list; or the path that the image has on the cluster",
            )
            findings.append(error)
        return Inside(image=job.image)
    except ToolkitError:
        return Inside(image=str(store.images_directory() / f"{job.image.removesuffix('.sif')}.sif"))
    return Inside(image=found.path, manifest=found.manifest, found=found)


def is_recipe(job: Job) -> bool:
    """Return whether a job's image is built from one of our recipes, whose runscript is ours."""
    return job.image in store.recipe_names()


def seen(script: Path | None) -> Seen:
    """Return what is true of a job on any machine: all else is of the cluster's login node."""
    import os

    return Seen(
        unreadable=str(script) if script is not None and not os.access(script, os.R_OK) else ""
    )


def warning(job: Job, site: Site, image: Inside, origins: dict[str, str]) -> str:
    """Return the one warning: what was checked, what was not, and what a script from here takes for granted."""
    unknown = ["its partitions and limits as they are now", "your jobs there"]
    if image.manifest is None and RUNTIMES[job.runtime or "apptainer"].image:
        unknown.append(f"the image ({image.image})")
    if job.require_signed:
        unknown.append("the image's signature")
    unknown += [
        f"the paths of {option}"
        for option, given in (("--bind", job.bind), ("datasets", job.datasets))
        if given
    ]
    taken = (
        f"; its comment is {origins['comment']}"
        if origins.get("comment", "").startswith("the example")
        else ""
    )
    return (
        f"planned without the cluster, from the file of {source_of(site)}. Not checked: {', '.join(unknown)}, "
        f"and directories, which are written as they are here{taken}"
    )
