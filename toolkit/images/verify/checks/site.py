"""Checks of an image against a cluster: its container command, its PMI types, its drivers."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.checks import Result, check, failed, passed, unchecked
from toolkit.images.recipe import catalogue
from toolkit.images.verify.case import ImageCase
from toolkit.slurm.parse import common_mpi_type
from toolkit.units import compare


@check(
    "container",
    "the site has a command that starts containers",
    scope="site",
    at_build=True,
)
def check_container(case: ImageCase) -> Result:
    """Check that the site has a command that starts containers."""
    if case.site is None:
        return unchecked(case.no_site)
    if case.site.container is None:
        names = " nor ".join(case.site.containers)
        return failed(f"neither {names} is on PATH at {case.site.name}")
    return passed(f"{case.site.container} at {case.site.name}")


@check(
    "pmi",
    "Slurm and the image's MPI have a PMI type in common",
    scope="site",
    at_build=True,
)
def check_pmi(case: ImageCase) -> Result:
    """Check that Slurm can start the image's MPI: both must speak one PMI."""
    if not case.mpi:
        return unchecked("it has no MPI whose PMI types are known")
    if case.site is None or case.site.mpi is None:
        return unchecked(case.no_site)
    shared = common_mpi_type(case.mpi, case.site.mpi)
    if shared is None:
        offered = ", ".join(case.site.mpi) or "none"
        return failed(f"Slurm offers {offered}, the image's MPI speaks {', '.join(case.mpi)}")
    return passed(f"srun --mpi={shared}")


@check(
    "driver",
    "the nodes' NVIDIA driver runs the image's CUDA",
    scope="site",
    at_build=True,
)
def check_driver(case: ImageCase) -> Result:
    """Check that the drivers run the image's CUDA.

    With an older driver its programs end with CUDA errors 803 and 804.
    """
    contents = case.contents
    return judge_driver(contents.cuda, case.drivers, release_driver(case), compat=contents.compat)


def release_driver(case: ImageCase) -> str | None:
    """Return the driver that the image's NGC release is made for, if the catalogue has it."""
    release = catalogue.find_by_name(case.base)
    return release.value("driver") if release else None


def judge_driver(
    cuda: str, drivers: Sequence[str], made_for: str | None, *, compat: bool
) -> Result:
    """Compare an image's CUDA with the drivers of nodes.

    Args:
        cuda: version; empty if there is none in the image.
        drivers: of the nodes.
        made_for: the oldest driver that supports all of the image, if known.
        compat: the image has CUDA's compat package.
    """
    if not cuda:
        return passed("no CUDA is in it: it needs no driver")
    known = catalogue.find_oldest_driver(cuda)
    needed = known[0] if known else made_for
    if needed is None:
        return unchecked(f"the catalogue does not say which driver CUDA {cuda} needs")
    whole = f", {made_for} for all of it" if made_for and made_for != needed else ""
    need = f"CUDA {cuda} needs driver {needed} or newer{whole}"
    if not drivers:
        return unchecked(f"{need}; no node with a GPU was asked: --nodes 1 --gpus 1")
    oldest = min(drivers, key=lambda driver: [int(part) for part in driver.split(".")])
    if compare(oldest, needed) < 0 and compat:
        return unchecked(
            f"{need}, {oldest} is installed: only data-center GPUs run it, "
            "by the compat package in the image"
        )
    if compare(oldest, needed) < 0:
        return failed(f"{need}, {oldest} is installed")
    if made_for and compare(oldest, made_for) < 0:
        return passed(
            f"{need}, {oldest} is installed: it runs by CUDA's minor version compatibility, "
            "without what is newer than the driver"
        )
    return passed(f"{need}, {oldest} is installed")
