"""A runtime as a row of functions and facts, and what several of these functions share.

It is pure, but for ``discover``: it refuses or warns (``check``), and decides how a command enters
(``container``), which its template writes out. The directories of the host that a container sees
are the same in all.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePosixPath
from typing import NamedTuple, get_args

from toolkit.errors import ToolkitError, UsageError
from toolkit.launchers.base import Capability
from toolkit.model.case import Case
from toolkit.model.run import Bind, Container

ALL_CAPABILITIES: frozenset[Capability] = frozenset(get_args(Capability))
_MODES = ("ro", "rw", "squashfs")


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
        environments: ``--env NAME`` may name an environment that it enters.
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
    environments: bool = False
    has_user_site: bool = False


# Modules that are looked for in a Python of the host, by the names that scripts import.
FRAMEWORKS = ("torch", "horovod", "tensorflow", "ray", "mpi4py", "lightning", "submitit")


def pmi_types(mpirun: str) -> tuple[str, ...]:
    """Return the PMI types that an MPI supports, from the first line of ``mpirun --version``."""
    if not mpirun:
        return ()
    if "Open MPI" in mpirun or "OpenRTE" in mpirun:
        return ("pmix",)
    is_mpich = any(name in mpirun for name in ("HYDRA", "MPICH", "Intel", "MVAPICH"))
    return ("pmi2",) if is_mpich else ("pmix", "pmi2")


def binds(case: Case) -> tuple[Bind, ...]:
    """Return the binds of a job: those of every run, the site's data sets, what the user names."""
    return (*_own(case), *_data(case), *case.binds)


def _own(case: Case) -> Iterator[Bind]:
    """Yield the working directory, the run's own, and that of the script; none within another."""
    target = case.target
    paths = [target.cwd, case.run, target.folder, *case.shown]
    if case.tree is not None:
        paths = [case.tree.cwd, case.run, *paths]
    if case.shown:
        paths.sort(key=lambda path: len(PurePosixPath(path).parts))
    outermost: list[str] = []
    for path in paths:
        if not any(PurePosixPath(path).is_relative_to(other) for other in outermost):
            outermost.append(path)
            yield Bind(source=path, target=path)


def _data(case: Case) -> Iterator[Bind]:
    taken = {bind.target for bind in case.binds}
    for name in case.job.datasets:
        if name in case.site.datasets and f"/data/{name}" not in taken:
            yield Bind(source=case.site.datasets[name], target=f"/data/{name}", read_only=True)


def bind_findings(case: Case) -> Iterator[ToolkitError]:
    """Yield the errors of binds that a container cannot have.

    Apptainer's ``--bind`` separates by commas and colons and has no quoting.
    """
    places = {"working directory": _own(case), "datasets": _data(case), "--bind": case.binds}
    for place, shown in places.items():
        for path in dict.fromkeys(path for bind in shown for path in (bind.source, bind.target)):
            if wrong := next((character for character in ",:\n\\" if character in path), ""):
                yield UsageError(
                    f"a directory with {wrong!r} in its name cannot be bound into a container: "
                    f"{path!r}",
                    place=place,
                    next_step="rename it, or bind a directory above it",
                )
    if not case.is_sif and any(bind.squashfs for bind in case.binds):
        yield UsageError(
            f"the runtime {case.job.runtime} cannot mount a squashfs",
            place="--bind",
            next_step="--runtime apptainer, or unpack it: unsquashfs -d DIRECTORY FILE",
        )


def parse_binds(
    texts: Iterable[str], directory: str
) -> tuple[tuple[Bind, ...], list[ToolkitError]]:
    """Parse each ``SRC[:DST[:ro|rw|squashfs]]``; relative sources start at ``directory``.

    Returns:
        The binds, and an error for each text that has no such form.
    """
    parsed, wrong = list[Bind](), list[ToolkitError]()
    for text in texts:
        try:
            parsed.append(_parse(text, directory))
        except UsageError as error:
            wrong.append(error)
    return tuple(parsed), wrong


def _parse(text: str, directory: str) -> Bind:
    parts = text.split(":")
    if not parts[0] or len(parts) > 3 or (len(parts) == 3 and parts[2] not in _MODES):
        raise UsageError(
            f"{text!r} is not SRC:DST[:ro]",
            place="--bind",
            next_step="--bind /data/imagenet:/data:ro",
        )
    source = str(PurePosixPath(directory) / parts[0])
    target = parts[1] if len(parts) > 1 and parts[1] else posixpath.normpath(source)
    if not target.startswith("/") or ".." in PurePosixPath(target).parts:
        raise UsageError(
            f"the target of {text!r} must be an absolute path without ..",
            place="--bind",
            next_step=f"--bind {parts[0]}:{posixpath.normpath('/' + target.lstrip('/'))}",
        )
    return Bind(
        source=source,
        target=target,
        read_only=parts[2:] in (["ro"], ["squashfs"]),
        squashfs=parts[2:] == ["squashfs"],
    )
