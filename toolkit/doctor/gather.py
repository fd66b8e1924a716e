"""Gather what the doctor examines: the site and its Slurm, the image, directories, the probe."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from toolkit import shell
from toolkit.config import package_directory
from toolkit.doctor.case import DoctorCase
from toolkit.doctor.items.allreduce import MEGABYTES
from toolkit.doctor.node_jobs import rank_runner, run_script, shared_directory, site_offer
from toolkit.errors import SlurmUnreachableError, ToolkitError
from toolkit.images.store import store
from toolkit.images.store.store import StoredImage
from toolkit.images.verify.case import ImageCase, ScriptRun, local_case
from toolkit.localcluster import access
from toolkit.localcluster.paths import paths_of
from toolkit.model.site import Site
from toolkit.planning.cluster import Cluster, find_cluster
from toolkit.slurm.client import Client

PROBE = package_directory("doctor/scripts") / "probe.py"


class DoctorOptions(NamedTuple):
    """Options of `toolkit doctor`.

    Attributes:
        site: name of the site.
        image: name of the image.
        nodes, gpus: the number of nodes, and of GPUs on each; 0 if unset.
        settings: of the jobs on nodes: partition, time, comment, account.
    """

    site: str
    image: str | None
    nodes: int
    gpus: int
    settings: Mapping[str, Any]


def gather(options: DoctorOptions, cwd: Path) -> DoctorCase:
    """Gather what the doctor examines.

    Raises:
        UnknownSiteError: there is no such site.
    """
    case = DoctorCase(
        cwd=cwd,
        nodes=options.nodes,
        gpus=options.gpus,
        partition=options.settings.get("partition"),
    )
    place = _place(options.site, case)
    if place is not None:
        case.site, case.client = place.site, Client(place.access)
        name = access.local_name(place.site)
        case.has_simulated_gpus = name is not None and not (
            access.must_run(paths_of(name)).real_gpus
        )
    case.directories = directories(case.site, cwd)
    image = _image(options.image, case)
    if image is not None:
        case.image = image
        case.run_probe = lambda: _run_probe(options, image, case)
        case.image_case = _image_case(options, image, case, place)
    return case


def _place(name: str, case: DoctorCase) -> Cluster | None:
    try:
        return find_cluster(name)
    except SlurmUnreachableError as error:
        case.no_site = error.cause
        return None


def directories(site: Site | None, cwd: Path) -> dict[str, Path]:
    """Return where images, runs and caches go."""
    own = "$SCRATCH" if "SCRATCH" in os.environ else str(Path.home() / ".cache")
    scratch = site.scratch if site and site.scratch else own
    return {
        "images": store.images_directory(),
        "runs": cwd,
        "caches": Path(os.path.expandvars(scratch)) / "toolkit",
    }


def _image(name: str | None, case: DoctorCase) -> StoredImage | None:
    if not name:
        return None
    shared = case.site.images if case.site else ()
    try:
        return store.find(name, [Path(os.path.expandvars(directory)) for directory in shared])
    except ToolkitError as error:
        case.no_image = f"{error.cause}{f': {error.next_step}' if error.next_step else ''}"
        return None


def probe_settings(options: DoctorOptions, image: StoredImage) -> dict[str, Any]:
    """Return the settings of the job that examines nodes, with one task on each."""
    return {
        "image": image.path,
        "site": options.site,
        "launcher": "none",
        "job_name": "doctor",
        "nodes": options.nodes,
        "ntasks_per_node": 1,
        **({"gpus": options.gpus} if options.gpus else {}),
        **options.settings,
    }


def probe_command(options: DoctorOptions, image: StoredImage) -> list[str]:
    """Return the `toolkit run` that starts the same job."""
    settings = probe_settings(options, image).items()
    words = [word for key, value in settings for word in (f"--{key.replace('_', '-')}", str(value))]
    return ["toolkit", "run", *words, str(PROBE)]


def _run_probe(options: DoctorOptions, image: StoredImage, case: DoctorCase) -> ScriptRun:
    site = case.site
    interface = (site.interface,) if site and site.interface else ()
    arguments = (*map(str, case.ports), *interface)
    settings = probe_settings(options, image)
    return run_script(PROBE, settings, arguments, within=shared_directory(site))


def _image_case(
    options: DoctorOptions, image: StoredImage, case: DoctorCase, place: Cluster | None
) -> ImageCase | None:
    """Return the image for the checks of `toolkit image verify`.

    None if this machine starts no containers.
    """
    try:
        shell.require_apptainer()
    except ToolkitError as error:
        case.no_image = error.cause
        return None
    settings = {**options.settings, "env": {"RANKS_SPEED_MB": str(MEGABYTES)}}
    runner = rank_runner(
        image.path,
        options.site,
        options.nodes,
        options.gpus,
        settings,
        within=shared_directory(case.site),
    )
    return local_case(
        image,
        site=site_offer(place, case.client) if place and case.client and options.nodes else None,
        no_site=case.no_site,
        nodes=options.nodes,
        gpus=options.gpus,
        run_ranks=runner if options.nodes else None,
    )
