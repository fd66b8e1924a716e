"""Plan a job for a cluster that this machine does not reach, from the site's file alone.

A laptop has no Slurm, no Apptainer and no image. What they would tell stays unknown, and one
warning names all of it.
"""

from __future__ import annotations

from pathlib import Path

from toolkit.errors import ToolkitError, UnknownImageError
from toolkit.images.store import store
from toolkit.images.store.store import StoredImage
from toolkit.model.job import Job
from toolkit.model.site import Facts, Site
from toolkit.planning.settings import Layer
from toolkit.preflight.model import HostFacts, source_of
from toolkit.runtimes.shared.base import RuntimeFacts


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


def find_image(name: str) -> StoredImage:
    """Return an image where the cluster would have it; one that is on this machine is used as it is.

    Raises:
        UnknownImageError: no recipe has the name.
    """
    try:
        return store.find(name)
    except UnknownImageError as error:
        if name.startswith(("/", "./", "../", "~")):
            return StoredImage(name=Path(name).stem, path=name)
        error.place, error.next_step = (
            "--image",
            "toolkit image list; or the path that the image has on the cluster",
        )
        raise
    except ToolkitError:
        name = name.removesuffix(".sif")
        return StoredImage(name=name, path=str(store.images_directory() / f"{name}.sif"))


def is_recipe(job: Job) -> bool:
    """Return whether a job's image is built from one of our recipes, whose runscript is ours."""
    return job.image in store.recipe_names()


def seen(script: Path | None) -> HostFacts:
    """Return what is true of a job on any machine: all else is of the cluster's login node."""
    import os

    return HostFacts(
        unreadable=str(script) if script is not None and not os.access(script, os.R_OK) else ""
    )


def warning(job: Job, site: Site, image: RuntimeFacts, origins: dict[str, str]) -> str:
    """Return the one warning: what was checked, what was not, and what a script from here takes for granted."""
    unknown = ["its partitions and limits as they are now", "your jobs there"]
    if image.manifest is None and image.image:
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
