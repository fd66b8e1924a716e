"""The checks of an image: its file, how it starts, what runs in it, and whether it fits a cluster.

A check is a function under ``@check`` and has its place in ``CHECKS``; later ones use the results
of earlier ones. The names are those of the checks that an image carries.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from toolkit.checks import Check, Result, check, failed, passed, unchecked
from toolkit.images.recipe import catalogue
from toolkit.images.store.store import whole_header
from toolkit.images.verify.case import ImageCase
from toolkit.slurm.parse import common_mpi_type
from toolkit.units import compare, counted, human_size


@check("manifest", "the image has a manifest")
def check_manifest(case: ImageCase) -> Result:
    """Check that the image has a manifest."""
    manifest = case.image.manifest
    if manifest is None:
        return unchecked("a foreign image: it has no manifest")
    return passed(f"{manifest.name}, built {manifest.built} by {manifest.builder}")


@check("size", "the file is as long as its header says")
def check_size(case: ImageCase) -> Result:
    """Check the length of the file against its header."""
    path = Path(case.image.path)
    whole_header(path)
    return passed(f"{human_size(path.stat().st_size)}, and nothing of it is cut off")


@check("labels", "the image's labels agree with its manifest")
def check_labels(case: ImageCase) -> Result:
    """Check that the image's labels agree with its manifest."""
    manifest, recipe = case.image.manifest, case.labels.get("toolkit.recipe", "")
    if manifest is None:
        return unchecked(f"no manifest to compare {len(case.labels)} labels with")
    judged = passed if recipe == manifest.name else failed
    return judged(f"the labels name the recipe {recipe or '-'}, the manifest {manifest.name}")


@check("entrypoint", "starting the image prints nothing")
def check_entrypoint(case: ImageCase) -> Result:
    """Check that starting the image prints nothing: what a rank prints is the rank's own.

    A foreign image is started as jobs start it, by ``exec``: what its own runscript would start is
    not known.
    """
    action, own = case.action, case.results.own
    if not case.results.is_started:
        reason = own[-1] if own else "it printed nothing"
        return failed(f"by {action}: a command does not run in it ({reason})")
    if own:
        text = f"it prints {counted(len(own), 'line')} of its own, first: {own[0]}"
        return failed(f"by {action}: {text}")
    return passed(f"prints nothing of its own by {action}, as jobs start it")


def _report(name: str, case: ImageCase) -> Result:
    """Return what a check in the image says, or why it was not made there."""
    result, lacks = case.results.find(name), case.lacks(name)
    if result and result.outcome == "failed" and lacks and name.startswith("ranks-"):
        result = None  # it could not pass
    return result or unchecked(lacks or "it is not among the image's checks")


def _reported(name: str, about: str) -> Check:
    return Check(name, about, partial(_report, name))


@check("pmi", "Slurm and the image's MPI have a PMI type in common", scope="site")
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


class Backend(NamedTuple):
    """A library that carries messages between ranks.

    Attributes:
        title: as people call it.
        routes: pairs of the library that sums and the launcher of `toolkit run`, best first.
        takes_gpus: every rank needs a GPU of its own.
    """

    title: str
    routes: tuple[tuple[str, str], ...]
    takes_gpus: bool = False


BACKENDS = {
    "mpi": Backend("MPI", (("horovod", "horovod"),)),
    "gloo": Backend("Gloo", (("torch", "torchrun"), ("horovod", "horovod-gloo"))),
    "nccl": Backend("NCCL", (("torch", "torchrun"),), takes_gpus=True),
}


def sum_on_nodes(name: str, case: ImageCase) -> Result:
    """Have ranks on the site's nodes sum their vectors by a backend."""
    backend = BACKENDS[name]
    if reason := case.lacks(f"ranks-{name}", gpus=2):
        return unchecked(reason)
    if backend.takes_gpus and case.nodes and not case.gpus:
        return unchecked("no GPUs were asked for: --gpus-per-node N")
    if case.run_ranks is None:
        return unchecked("no nodes were asked for: --nodes N")
    held = (route for route in backend.routes if route[0] in case.contents.modules)
    library, launcher = next(held)
    ranks = case.nodes * (case.gpus or 1)
    run = case.run_ranks(launcher, (library, name, str(ranks), str(case.nodes)))
    case.runs[name] = run
    # A job that was refused before it queued, or that Slurm did not answer for, says nothing of the
    # image.
    if run.outcome is None:
        return unchecked(run.refusal)
    judged = passed if run.results.get("passed") is True else failed
    return judged(str(run.results.get("detail") or run.complaint))


@check("driver", "the nodes' NVIDIA driver runs the image's CUDA", scope="site")
def check_driver(case: ImageCase) -> Result:
    """Check that the drivers run the image's CUDA.

    With an older driver its programs end with CUDA errors 803 and 804.
    """
    return judge_driver(case, case.drivers)


def judge_driver(case: ImageCase, drivers: Sequence[str]) -> Result:
    """Compare an image's CUDA with the drivers of nodes."""
    cuda, release = case.contents.cuda, catalogue.find_by_name(case.base)
    if not cuda:
        return passed("no CUDA is in it: it needs no driver")
    # The oldest driver that supports all of the image's NGC release, if the catalogue has it.
    made_for = release.value("driver") if release else None
    known = catalogue.find_oldest_driver(cuda)
    needed = known[0] if known else made_for
    if needed is None:
        return unchecked(f"the catalogue does not say which driver CUDA {cuda} needs")
    whole = f", {made_for} for all of it" if made_for and made_for != needed else ""
    need = f"CUDA {cuda} needs driver {needed} or newer{whole}"
    if not drivers:
        return unchecked(f"{need}; no node with a GPU was asked: --nodes 1 --gpus-per-node 1")
    oldest = min(drivers, key=lambda driver: [int(part) for part in driver.split(".")])
    if compare(oldest, needed) < 0 and case.contents.compat:
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


# Every build ends with these, since they are quick.
AT_BUILD = (
    check_manifest,
    check_size,
    check_labels,
    check_entrypoint,
    check_pmi,
    check_driver,
)
CHECKS = (
    *AT_BUILD[:4],
    _reported("imports", "the modules of the image can be imported"),
    _reported("user-site", "packages in a user's home do not hide the image's"),
    _reported("gpu-code", "the GPUs that the frameworks of the image have code for"),
    _reported("openmpi", "Slurm can start the image's MPI"),
    _reported("horovod-build", "Horovod is built for the frameworks of the image"),
    _reported("ranks-mpi", "two ranks on this machine sum by MPI"),
    _reported("ranks-gloo", "two ranks on this machine sum by Gloo"),
    _reported("ranks-nccl", "two ranks on this machine sum by NCCL"),
    check_pmi,
    *(
        Check(
            f"nodes-{name}",
            f"ranks on several nodes sum by {backend.title}",
            partial(sum_on_nodes, name),
            scope="nodes",
        )
        for name, backend in BACKENDS.items()
    ),
    check_driver,
)
