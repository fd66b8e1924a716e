"""Look up what the ranks will run inside: an image and its manifest, a Python and what it can import, an engine that answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from toolkit.errors import ToolkitError, UnknownRuntimeError, UsageError
from toolkit.images.store.store import FoundImage
from toolkit.model.environment import Engine, Environment
from toolkit.model.image import Manifest
from toolkit.model.job import Job
from toolkit.model.site import Site
from toolkit.runtimes import RUNTIMES
from toolkit.slurm.client import Client


class Inside(NamedTuple):
    """What was found.

    Attributes:
        image: path or reference; empty where there is none.
        manifest: what is in the image or the environment; None: nobody knows.
        found: the image as the store knows it, where it is a SIF.
        environment, engine: where the runtime has one.
        shared: a directory that the nodes must see, and the option that chose it.
    """

    image: str = ""
    manifest: Manifest | None = None
    found: FoundImage | None = None
    environment: Environment | None = None
    engine: Engine | None = None
    shared: tuple[str, str] | None = None


def look(
    job: Job,
    site: Site,
    client: Client,
    sif: Callable[[], FoundImage],
    findings: list[ToolkitError],
) -> Inside:
    """What the job's runtime needs, looked up; what is wrong with it is added to ``findings``.

    Args:
        job: the merged settings.
        site: whose modules are loaded.
        client: the door to Slurm, for srun's own options.
        sif: finds the image where that is a SIF.
        findings: gets what is wrong.
    """
    runtime = job.runtime or "apptainer"
    try:
        return _look(runtime, job, site, client, sif)
    except UnknownRuntimeError:
        return Inside()  # the plan says so
    except ToolkitError as error:
        error.place = error.place or ("--image" if RUNTIMES[runtime].image else "--runtime")
        findings.append(error)
        return Inside()


def _look(
    runtime: str, job: Job, site: Site, client: Client, sif: Callable[[], FoundImage]
) -> Inside:
    if runtime == "apptainer":
        found = sif()
        return Inside(
            image=found.path, manifest=found.manifest, found=found, shared=("--image", found.path)
        )
    if runtime not in RUNTIMES:
        return Inside()
    if runtime in ("conda", "none"):
        from toolkit.runtimes.discover.environments import conda, host

        if runtime == "conda" and not job.conda_env:
            return Inside()
        environment, manifest = (
            conda(job.conda_env or "", site, job.modules)
            if runtime == "conda"
            else host(site, job.modules)
        )
        option = "--env" if runtime == "conda" else "--runtime"
        return Inside(
            manifest=manifest, environment=environment, shared=(option, environment.prefix)
        )
    if not job.image:
        raise UsageError(
            "no image was named",
            place="--image",
            next_step=f"--runtime {runtime} --image REGISTRY/NAME:TAG",
        )
    if runtime == "pyxis":
        from toolkit.runtimes.discover.plugin import check

        image = check(client, job.image)
        return Inside(image=image, shared=("--image", image) if image.startswith("/") else None)
    from toolkit.runtimes.discover.engines import look as engine_and_image

    engine, held = engine_and_image(job.image)
    return Inside(image=job.image, manifest=held, engine=engine)
