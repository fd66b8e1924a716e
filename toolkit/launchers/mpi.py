"""Launchers of MPI and Horovod: Slurm starts every rank, or the host's mpirun does.

There is no ssh. Where Slurm starts the ranks, its PMI numbers them for the image's MPI: Slurm must
offer one that this MPI supports. Without a common PMI every rank would believe that it is alone,
and the only sign would be a wrong result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.errors import (
    LauncherMismatchError,
    NeedsInstallError,
    ToolkitError,
)
from toolkit.launchers.base import Launcher, default, require, sockets
from toolkit.model.case import Case
from toolkit.model.run import Launch

# Default for an image whose MPI is not known: recent Open MPI supports PMIx, MPICH PMI2.
_DEFAULT = ("pmix", "pmi2")
# Slurm's PMIx server and the image's PMIx library must agree on how to authenticate and where data
# lies; the host's munge and shared-memory store are not in the container.
_EXPORTS = {"PMIX_MCA_psec": "^munge", "PMIX_MCA_gds": "hash"}


def _spoken(case: Case) -> tuple[str, ...]:
    return (case.manifest.mpi if case.manifest else ()) or _DEFAULT


def _common_pmi(case: Case) -> str | None:
    from toolkit.slurm.parse import common_mpi_type  # most jobs start no ranks by PMI

    return common_mpi_type(_spoken(case), case.facts.mpi or ())


def _check_pmi(case: Case) -> Iterator[ToolkitError]:
    """Require a PMI that Slurm and the image's MPI share; one that is not known is not refused."""
    offered = case.facts.mpi
    if offered is not None and _common_pmi(case) is None:
        yield LauncherMismatchError(
            f"Slurm here offers {', '.join(offered) or 'no PMI'}, "
            f"the {case.noun}'s MPI speaks {', '.join(_spoken(case))}",
            place="--launcher",
            next_step="ask the administrator for Slurm's pmix plugin, "
            "or use a launcher without MPI (horovod-gloo, torchrun)",
        )


def _require_mpi(case: Case) -> Iterator[ToolkitError]:
    """Require an MPI in the image, and a script that does not start ranks itself."""
    source, script = case.source, case.target.script
    if source.imports_any("mpi4py") and source.calls_any("Spawn", "MPIPoolExecutor"):
        yield LauncherMismatchError(
            f"{script} has MPI start processes, which Slurm's PMI does not do, "
            "and mpirun would do outside of the container",
            place="SCRIPT",
            next_step=f"for MPIPoolExecutor: -- python3 -m mpi4py.futures {script}; "
            "in place of Spawn: start all ranks, and split MPI.COMM_WORLD",
        )
    elif case.manifest is not None and not case.manifest.mpi:
        recipe = ', or add block = "openmpi" to its recipe' if case.noun == "image" else ""
        yield LauncherMismatchError(
            f"the launcher {case.job.launcher} needs an MPI, which this {case.noun} does not hold",
            place="--launcher",
            next_step=f"choose another {case.noun}{recipe}",
        )


def _parameters(interface: str | None) -> dict[str, str]:
    """Return Open MPI's settings for messages over plain TCP, on the site's interface if known.

    No InfiniBand verbs and no hcoll: the host's versions do not fit the image's, and Horovod's own
    advice is to leave the heavy traffic to NCCL. These values replace those of the image's
    openmpi-mca-params.conf: like Debian's, they exclude ``uct`` and ``ofi``, with which one-sided
    communication aborts. ``osc_rdma`` has no atomics over TCP, so windows are left to UCX.
    """
    return {
        "pml": "ob1",
        "btl": "^uct,openib,ofi",
        "coll": "^hcoll",
        "osc": "^rdma",
        **({"btl_tcp_if_include": interface} if interface else {}),
    }


def _by_pmi(case: Case, environment: dict[str, str], template: str | None = None) -> Launch:
    own = {f"OMPI_MCA_{name}": value for name, value in _parameters(case.interface).items()}
    return default(
        case,
        {**own, **environment},
        mpi=_common_pmi(case) or _DEFAULT[0],
        exports=_EXPORTS,
        template=template,
    )


def _check_mpi(case: Case) -> Iterator[ToolkitError]:
    """Require an MPI in the image, mpi4py if it is imported, and a PMI shared with Slurm."""
    lacking = list(_require_mpi(case))
    if case.source.imports_any("mpi4py") and not lacking:
        lacking += require("mpi4py", case)
    yield from lacking or _check_pmi(case)


MPI = Launcher(
    "mpi",
    "Slurm starts every rank and PMIx tells it who it is; for any program of MPI",
    launch=lambda case: _by_pmi(case, {}, "horovod"),
    check=_check_mpi,
    facts=("mpi",),
    needs=frozenset(("pmi",)),
)

# What carries the messages of Horovod's ranks: its name for people, and the launcher of the other.
_OPERATIONS = {
    "mpi": ("MPI", "--launcher horovod-gloo starts ranks without MPI"),
    "gloo": ("Gloo", "--launcher horovod starts ranks over MPI"),
}
# What a script imports of Horovod -> the framework that this must have been built for, as Horovod
# itself calls it.
_PARTS = {
    "horovod.torch": "pytorch",
    "horovod.tensorflow": "tensorflow",
    "horovod.keras": "tensorflow",
    "horovod.mxnet": "mxnet",
}
_BUILD = re.compile(r"built for (?P<frameworks>.+), with (?P<operations>.+)")


def _check_horovod(case: Case, operation: str) -> Iterator[ToolkitError]:
    """Require Horovod in the image, built with an operation and for what the script imports.

    An image whose contents are not known, and a build that was not checked, is not refused.
    """
    lacking = list(require("horovod", case))
    yield from lacking
    build = _BUILD.match(case.manifest.detail_of("horovod-build") if case.manifest else "")
    if build is None:
        return
    has, (name, other) = build["operations"].split(", "), _OPERATIONS[operation]
    if not lacking and operation not in has:
        names = ", ".join(_OPERATIONS[each][0] if each in _OPERATIONS else each for each in has)
        yield LauncherMismatchError(
            f"the launcher {case.job.launcher} needs a Horovod that was built with "
            f"{name}, this {case.noun}'s has {names}",
            place="--launcher",
            next_step=other,
        )
    built_for = sorted(word.split()[0] for word in build["frameworks"].split(", "))
    imported = (part for part in _PARTS if case.source.imports_any(part))
    part = next((part for part in imported if _PARTS[part] not in built_for), None)
    if part is None:
        return
    place, step = "--runtime", f"build Horovod for {_PARTS[part]} in the environment"
    if case.noun == "image":
        place = "--image"
        step = f"an image whose recipe builds Horovod for {_PARTS[part]}: toolkit image list"
    yield LauncherMismatchError(
        f"the script imports {part}, "
        f"this {case.noun}'s Horovod was built for {', '.join(built_for)}",
        place=place,
        next_step=step,
    )


HOROVOD = Launcher(
    "horovod",
    "Slurm starts every rank and PMIx tells it who it is; for Horovod over MPI",
    launch=lambda case: _by_pmi(case, sockets(case, "NCCL")),
    check=lambda case: (*_check_horovod(case, "mpi"), *_check_pmi(case)),
    facts=("mpi",),
    needs=frozenset(("pmi",)),
    framework="horovod",
)


def _gloo(case: Case) -> dict[str, str]:
    """Return the variables that make Horovod use Gloo, on the site's interface if it is known."""
    return {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        **({"HOROVOD_GLOO_IFACE": case.interface} if case.interface else {}),
        **sockets(case, "NCCL"),
    }


HOROVOD_GLOO = Launcher(
    "horovod-gloo",
    "Slurm starts every rank, one server tells them of each other; for Horovod without MPI",
    # One small server of Horovod's own, in the image on the first node, gives the ranks each
    # other's addresses. Horovod waits half a minute for ranks that come late, less than a cold
    # start from a busy file system may take; the user can set another time.
    launch=lambda case: default(case, {**_gloo(case), "HOROVOD_GLOO_TIMEOUT_SECONDS": "300"}),
    check=lambda case: _check_horovod(case, "gloo"),
    framework="horovod",
)


def _check_horovod_elastic(case: Case) -> Iterator[ToolkitError]:
    """Require Horovod with Gloo in the image, and a script that calls ``hvd.elastic.run``."""
    yield from _check_horovod(case, "gloo")
    if case.source.imports_any("horovod") and not case.source.calls_any("elastic.run"):
        yield LauncherMismatchError(
            "the script uses Horovod and never its elastic.run: it could not go on after a change",
            place="--launcher",
            next_step="--launcher horovod-gloo, or see jobs/digits-horovod-elastic/train.py",
        )


def _horovod_elastic(case: Case) -> Launch:
    """Start Horovod's driver; the job's script starts each rank that it asks for, as a step.

    A rank that dies, or a node that is lost, costs its node's ranks; training goes on with the
    others from the last commit of the script's state. The node is tried again after a while (in
    seconds at first, doubled each time, and at most). Slurm takes a node that is down out of the
    job for good, and gives a job no new ones.
    """
    resets = case.job.max_restarts
    ranks = (str(nodes * case.ranks_per_node) for nodes in case.job.node_range)
    return default(
        case,
        {**_gloo(case), "HOROVOD_ELASTIC": "1", "HOROVOD_ELASTIC_COOLDOWN": "10,120"},
        options=(*ranks, "" if resets is None else str(resets)),
        directives=(("no-kill", ""),),
    )


HOROVOD_ELASTIC = Launcher(
    "horovod-elastic",
    "Horovod's elastic driver, for which Slurm starts and ends ranks; for hvd.elastic.run",
    launch=_horovod_elastic,
    check=_check_horovod_elastic,
    needs=frozenset(("command", "nodes")),
    framework="horovod",
    can=frozenset(("elastic", "max_restarts")),
    is_per_node=True,
    starters=("-c", "horovod_elastic.py"),
    rank_variables=("HOROVOD_RANK",),
)


def _check_mpirun(case: Case) -> Iterator[ToolkitError]:
    """Require an Open MPI on the nodes, and an MPI in the image, or Horovod built with it."""
    is_horovod = case.source.imports_any("horovod")
    yield from _check_horovod(case, "mpi") if is_horovod else _require_mpi(case)
    version = case.facts.mpirun
    if version is None and not case.site.modules:
        yield NeedsInstallError(
            "there is no mpirun on PATH, and the site names no module that brings one",
            place="--launcher mpirun",
            next_step="--launcher horovod or mpi does without it; or load the site's Open "
            "MPI; on Debian: apt-get install openmpi-bin",
        )
    elif version and "Open MPI" not in version:
        yield LauncherMismatchError(
            f"mpirun here is not Open MPI's: {version}",
            place="--launcher mpirun",
            next_step="load the site's Open MPI, or use --launcher mpi",
        )


def _mpirun(case: Case) -> Launch:
    """Let Slurm give a slot for each rank, and mpirun fill them; Slurm starts its daemons.

    mpirun binds no rank to a core: that is the business of Slurm and the user.
    """
    parameters, ranks = _parameters(case.interface), case.ranks_per_node
    if case.interface:
        parameters["oob_tcp_if_include"] = case.interface
    return default(
        case,
        sockets(case, "NCCL"),
        # The MPI plugin that a site's Slurm starts by default is for ranks; mpirun starts its
        # daemons with it, and brings a PMIx of its own.
        exports={**_EXPORTS, "SLURM_MPI_TYPE": "none"},
        options=(
            *("-n", str(case.ranks), "--map-by", f"ppr:{ranks}:node", "--bind-to", "none"),
            *(word for name, value in parameters.items() for word in ("--mca", name, value)),
        ),
    )


MPIRUN = Launcher(
    "mpirun",
    "the host's Open MPI starts every rank in its container; for Horovod and any MPI",
    launch=_mpirun,
    check=_check_mpirun,
    facts=("mpirun",),
    needs=frozenset(("command", "nodes")),
    can=frozenset(),
    starters=("mpirun",),
    rank_variables=("OMPI_COMM_WORLD_RANK", "PMIX_RANK"),
)
