"""Plan a job for a cluster that this machine does not reach, from the site's file alone.

A laptop has no Slurm, no Apptainer and no image. The facts that they would give stay unknown, and
one warning lists them.
"""

from __future__ import annotations

import os
from pathlib import Path

from toolkit.errors import ToolkitError, UnknownImageError
from toolkit.images.store import store
from toolkit.images.store.store import StoredImage
from toolkit.model.job import Job
from toolkit.model.site import Facts, Site
from toolkit.planning.settings import Layer
from toolkit.preflight.model import HostFacts, source_of
from toolkit.runtimes.shared.base import RuntimeFacts
from toolkit.sites.comment import example


def facts(site: Site) -> Facts:
    """Return the facts of a cluster that its site's file has."""
    return Facts(mpi=site.mpi or None, container=container_command(site), mpirun="")


def container_command(site: Site) -> str | None:
    """Return the command of one of the site's modules, else the first that the site names."""
    modules = {module.partition("/")[0] for module in site.modules}
    first = next(iter(site.containers), None)
    return next((name for name in site.containers if name in modules), first)


def comment(site: Site) -> Layer:
    """Return an example of a comment as settings if the site requires a comment."""
    rule = site.comment
    values = {"comment": example(rule)} if rule and rule.required else {}
    return Layer(f"the example of site {site.name}", values)


def find_image(name: str) -> StoredImage:
    """Return the image on this machine, else at the path that the cluster would have it at.

    Raises:
        UnknownImageError: no recipe has the name.
    """
    try:
        return store.find(name)
    except UnknownImageError as error:
        if name.startswith(("/", "./", "../", "~")):
            return StoredImage(name=Path(name).stem, path=name)
        error.place = "--image"
        error.next_step = "toolkit image list; or give the path that the image has on the cluster"
        raise
    except ToolkitError:
        name = name.removesuffix(".sif")
        return StoredImage(name=name, path=str(store.images_directory() / f"{name}.sif"))


def is_recipe(job: Job) -> bool:
    """Return whether a job's image is built from one of our recipes, whose runscript is ours."""
    return job.image in store.list_recipes()


def host_facts(script: Path | None) -> HostFacts:
    """Return the facts that hold on any machine; all others are of the cluster's login node."""
    is_unreadable = script is not None and not os.access(script, os.R_OK)
    return HostFacts(unreadable=str(script) if is_unreadable else "")


def warning(job: Job, site: Site, image: RuntimeFacts, origins: dict[str, str]) -> str:
    """Return the warning that lists what was not checked and what the script assumes."""
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
    unknown.append("directories, which the script has as they are on this machine")
    origin = origins.get("comment", "")
    comment = f"; the job's comment is {origin}" if origin.startswith("the example") else ""
    return (
        f"planned without the cluster, from the file of {source_of(site)}. "
        f"Not checked: {'; '.join(unknown)}{comment}"
    )
