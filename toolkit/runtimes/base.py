"""A runtime as a row of functions and facts.

It is pure, but for ``discover``: it refuses or warns (``check``), and decides how a command enters
(``container``), which its template writes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, get_args

from toolkit.errors import ImportsMissingError, ToolkitError
from toolkit.launchers.base import Capability
from toolkit.model.case import Case
from toolkit.model.plan import Container

ALL_CAPABILITIES: frozenset[Capability] = frozenset(get_args(Capability))


class Runtime(NamedTuple):
    """A kind of container or environment that ranks run in.

    Attributes:
        name: of the runtime, and of its template.
        about: for ``--help`` and the documentation.
        container: the decisions that the runtime's template writes out.
        check: why the job cannot run in it, or will probably fail, beyond what holds for all
            runtimes.
        discover: the case with what the runtime needs to know of this machine or of the cluster;
            it raises a ToolkitError if that is not there.
        image: the kind of image that it starts, such as ``sif`` or ``docker``; empty: it starts
            none.
        offers: what it has of all that a launcher may need.
        interface: the network interface that ranks use; None for that of the site.
        environments: the environments of this machine that ``--env NAME`` may name; None: it
            enters none.
        has_user_site: ranks see the user's own Python packages (``~/.local``).
    """

    name: str
    about: str
    container: Callable[[Case], Container]
    check: Callable[[Case], Iterable[ToolkitError]] = lambda _: ()
    discover: Callable[[Case], Case] = lambda case: case
    image: str = ""
    offers: frozenset[Capability] = ALL_CAPABILITIES
    interface: str | None = None
    environments: Callable[[], list[str]] | None = None
    has_user_site: bool = False


# Modules that are looked for in a Python of the host, by the names that scripts import.
FRAMEWORKS = ("torch", "horovod", "tensorflow", "ray", "mpi4py", "lightning", "submitit")


def missing_frameworks(case: Case, name: str) -> Iterator[ToolkitError]:
    """Warn of frameworks that the script imports and that ``name`` does not have."""
    held = case.manifest.frameworks if case.manifest else FRAMEWORKS
    missing = [
        framework
        for framework in FRAMEWORKS
        if case.source.imports_any(framework) and framework not in held
    ]
    if missing and case.source.python:
        yield ImportsMissingError(
            f"the script imports {', '.join(missing)}, which {name} does not have",
            is_warning=True,
        )


def pmi_types(mpirun: str) -> tuple[str, ...]:
    """Return the PMI types that an MPI supports, from the first line of ``mpirun --version``."""
    if not mpirun:
        return ()
    if "Open MPI" in mpirun or "OpenRTE" in mpirun:
        return ("pmix",)
    is_mpich = any(name in mpirun for name in ("HYDRA", "MPICH", "Intel", "MVAPICH"))
    return ("pmi2",) if is_mpich else ("pmix", "pmi2")
