"""Looks up what the doctor looks at: the site and its Slurm, the image, the directories, and how the probe gets onto nodes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from toolkit import shell
from toolkit.doctor.case import Case
from toolkit.doctor.together import MEGABYTES
from toolkit.errors import SlurmUnreachableError, ToolkitError
from toolkit.images.store import store
from toolkit.images.store.store import FoundImage
from toolkit.images.verify import jobs
from toolkit.images.verify.case import Asked, Inside, Offer
from toolkit.images.verify.case import Case as ImageCase
from toolkit.images.verify.nodes import local_drivers, on_nodes
from toolkit.model.site import Site
from toolkit.planning.gather import Place, find_place
from toolkit.resources import package_directory
from toolkit.slurm.client import Client


class Wanted(NamedTuple):
    """What the user asked for.

    Attributes:
        options: more of `toolkit run`, for the jobs: partition, time, comment, account.
    """

    site: str
    image: str | None
    nodes: int
    gpus: int
    partition: str | None
    options: Sequence[str]


def assemble(wanted: Wanted, here: Path) -> Case:
    """What the doctor looks at.

    Raises:
        UnknownSiteError: no site is called so.
    """
    case = Case(here=here, nodes=wanted.nodes, gpus=wanted.gpus, partition=wanted.partition)
    place = _place(wanted.site, case)
    if place is not None:
        case.site, case.client, case.simulated = (
            place.site,
            Client(place.access),
            place.site.access == "local-cluster",
        )
    case.directories = directories(case.site, here)
    found = _image(wanted.image, case)
    if found is not None:
        case.image = found
        case.probe = lambda: _probe(wanted, found, case)
        case.verified = _verified(wanted, found, case)
    return case


def _place(name: str, case: Case) -> Place | None:
    try:
        return find_place(name)
    except SlurmUnreachableError as error:
        case.no_site = error.cause
        return None


def directories(site: Site | None, here: Path) -> dict[str, Path]:
    """Where images, runs and caches go."""
    scratch = (
        site.scratch
        if site and site.scratch
        else "$SCRATCH"
        if "SCRATCH" in os.environ
        else str(Path.home() / ".cache")
    )
    return {
        "images": store.images_directory(),
        "runs": here,
        "caches": Path(os.path.expandvars(scratch)) / "toolkit",
    }


def _image(name: str | None, case: Case) -> FoundImage | None:
    if not name:
        return None
    try:
        return store.find(
            name,
            [
                Path(os.path.expandvars(directory))
                for directory in (case.site.images if case.site else ())
            ],
        )
    except ToolkitError as error:
        case.no_image = f"{error.cause}{f': {error.next_step}' if error.next_step else ''}"
        return None


def _common(wanted: Wanted) -> tuple[str, ...]:
    return (
        ("--partition", wanted.partition, *wanted.options)
        if wanted.partition
        else tuple(wanted.options)
    )


PROBE = package_directory("doctor/scripts") / "probe.py"


def probe_words(wanted: Wanted, image: FoundImage) -> tuple[str, ...]:
    """Options of the `toolkit run` that looks at nodes: a task on each."""
    shape = (
        "--nodes",
        str(wanted.nodes),
        "--ntasks-per-node",
        "1",
        *(("--gpus", str(wanted.gpus)) if wanted.gpus else ()),
    )
    return (
        "--image",
        image.path,
        "--site",
        wanted.site,
        "--launcher",
        "none",
        "--job-name",
        "doctor",
        *shape,
        *_common(wanted),
    )


def _probe(wanted: Wanted, image: FoundImage, case: Case) -> jobs.Ended:
    site = case.site
    interface = (site.interface,) if site and site.interface else ()
    return jobs.run(
        PROBE,
        probe_words(wanted, image),
        (*map(str, case.ports), *interface),
        within=jobs.parent(site),
    )


def _verified(wanted: Wanted, image: FoundImage, case: Case) -> ImageCase | None:
    """The image for the checks of `toolkit image verify`; None where nothing starts containers here."""
    try:
        shell.require_apptainer()
    except ToolkitError as error:
        case.no_image = error.cause
        return None
    gpus, _ = local_drivers()
    options = (*_common(wanted), "--env", f"RANKS_SPEED_MB={MEGABYTES}")
    site, client = case.site, case.client
    offer = None
    if site is not None and client is not None and wanted.nodes:
        found = next((command for command in site.containers if shell.which(command)), None)
        offer = Offer(
            name=site.name,
            mpi=client.mpi_types() or (),
            container=found,
            containers=site.containers,
        )
    return ImageCase(
        image=image,
        inside=Inside(image.path, gpus=gpus > 0),
        gpus=gpus,
        site=offer,
        no_site=case.no_site,
        asked=Asked(nodes=wanted.nodes, gpus=wanted.gpus),
        job=on_nodes(
            image.path, wanted.site, wanted.nodes, wanted.gpus, options, within=jobs.parent(site)
        )
        if wanted.nodes
        else None,
    )
