"""`toolkit bench allreduce`: which job measures a backend, and what its output says. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from toolkit.errors import UsageError
from toolkit.model.base import Model, Stored, convert
from toolkit.model.case import Case
from toolkit.planning.settings import Layer

JOB = "nccl-allreduce"
DEVICES = 4  # on each node, where buffers are shown and no number is given


class Backend(NamedTuple):
    """A library that adds up the buffers.

    Attributes:
        launcher: the launcher of its ranks.
        summary: its description.
        script: the script in the job's folder, if it is not the usual one.
        image: the image, if it needs its own.
        gpus: whether it works on GPUs only.
    """

    launcher: str
    summary: str
    script: str = ""
    image: str | None = None
    gpus: bool = False


BACKENDS: dict[str, Backend] = {
    "auto": Backend("torchrun", "nccl where PyTorch can use GPUs, else gloo"),
    "gloo": Backend("torchrun", "torch.distributed over Gloo"),
    "nccl": Backend("torchrun", "torch.distributed over NCCL, on GPUs", gpus=True),
    "horovod": Backend("horovod", "Horovod, over what it was built with"),
    "mpi": Backend("mpi", "the image's MPI, by mpi4py"),
    "nccl-tests": Backend(
        "mpi", "NVIDIA's all_reduce_perf, on GPUs", "nccl-tests.sh", "nccl-tests", gpus=True
    ),
}


class Row(Stored, frozen=True, kw_only=True):
    """One size of buffer.

    Attributes:
        microseconds: the median of the slowest rank.
        algorithm_gb_per_s: bytes / time, in 10^9.
        bus_gb_per_s: the same by 2 (n - 1) / n for n ranks, as NCCL defines it.
        wrong: elements of all sums on all ranks that were not what they must be.
    """

    bytes: int
    microseconds: float
    algorithm_gb_per_s: float
    bus_gb_per_s: float
    wrong: int


class Measured(Model, frozen=True, kw_only=True):
    """One backend, measured.

    Attributes:
        backend: that was used in the end, where ``auto`` was asked for.
        wrong: over all rows.
        run: the run that measured it.
    """

    backend: str
    shape: str
    ranks: int
    wrong: int
    rows: tuple[Row, ...] = ()
    device: str = ""
    run: str = ""


def settings(
    backend: str,
    given: Mapping[str, Any],
    sizes: tuple[int, int, int],
    *,
    show_buffers: bool = False,
) -> Layer:
    """Return the settings of a backend's job; the user's own override them.

    Args:
        given: options of a job, as on the command line.
        sizes: bytes of the smallest and of the largest buffer, and the factor between them.
        show_buffers: show one small buffer of each device instead of measuring.
    """
    entry = BACKENDS[backend]
    values: dict[str, Any] = {"launcher": entry.launcher, "job_name": f"allreduce-{backend}"}
    if entry.image:
        values["image"] = entry.image
    if show_buffers and "gpus" not in given:
        values["ntasks_per_node"] = DEVICES
    return Layer(
        "bench allreduce",
        {**values, **given, "arguments": _arguments(backend, sizes, show_buffers=show_buffers)},
    )


def refusing(backend: str) -> Callable[[Case], Case]:
    """Return a function that adds a finding if the backend needs GPUs and the job has none."""

    def adapt(given: Case) -> Case:
        if not BACKENDS[backend].gpus or given.job.most_gpus:
            return given
        error = UsageError(
            f"{backend} adds up on GPUs, and none were asked for",
            place="--backend",
            next_step="--gpus N, or --backend gloo",
        )
        return given.with_findings(error)

    return adapt


def _arguments(backend: str, sizes: tuple[int, int, int], *, show_buffers: bool) -> tuple[str, ...]:
    least, most, factor = map(str, sizes)
    if backend == "nccl-tests":
        options = {
            "minbytes": least,
            "maxbytes": most,
            "stepfactor": factor,
            "ngpus": "1",
            "check": "1",
        }
        return tuple(word for name in options for word in (f"--{name}", options[name]))
    shown = ("--show-buffers",) if show_buffers else ()
    sized = ("--min-size", least, "--max-size", most, "--factor", factor)
    return ("--backend", backend, *sized, *shown)


def measured(
    backend: str, shape: str, ranks: int, results: Mapping[str, Any], lines: Iterable[str], run: str
) -> Measured | None:
    """Return the measurements in a job's output; None if there are none.

    Args:
        results: the JSON object that our own script prints.
        lines: of rank 0; nccl-tests prints a table.
    """
    values = dict(results)
    if backend == "nccl-tests":
        rows = nccl_tests(lines, ranks)
        values = {"rows": rows} if rows else {}
        wrong = sum(row.wrong for row in rows)
        values |= {"backend": backend, "device": "cuda", "world_size": ranks, "wrong": wrong}
    if "rows" not in values:
        return None
    named = {name: values[name] for name in ("backend", "device", "wrong", "rows")}
    return convert({**named, "ranks": values["world_size"], "shape": shape, "run": run}, Measured)


# Size, count, type, operation, root; then out of place and in place: time, algorithm's and bus
# bandwidth, wrong elements.
_NCCL_TESTS = re.compile(
    r"\s*(?P<bytes>\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+\s+(?P<time>[\d.]+)\s+[\d.]+\s+[\d.]+\s+(?P<out>\d+|N/A)"
    r"(?:\s+[\d.]+\s+[\d.]+\s+[\d.]+\s+(?P<in>\d+|N/A))?\s*$"
)


def nccl_tests(lines: Iterable[str], ranks: int) -> tuple[Row, ...]:
    """Return the table of all_reduce_perf, with bandwidths computed from the out-of-place times.

    It prints bandwidths with two decimals only.
    """
    rows = []
    for match in filter(None, map(_NCCL_TESTS.match, lines)):
        size, microseconds = int(match["bytes"]), float(match["time"])
        rate = size / microseconds / 1e3 if microseconds else 0.0  # GB/s
        wrong = sum(int(text) for text in (match["out"], match["in"]) if text and text.isdigit())
        rows.append(
            Row(
                bytes=size,
                microseconds=microseconds,
                algorithm_gb_per_s=round(rate, 6),
                bus_gb_per_s=round(rate * 2 * (ranks - 1) / ranks, 6),
                wrong=wrong,
            )
        )
    return tuple(rows)


def size_text(count: int) -> str:
    """``1 KiB``, ``256 MiB``: buffers are powers of two."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << power:
            return f"{count / (1 << power):g} {unit}"
    return f"{count} B"


def table(
    all_measured: Sequence[Measured], *, width: int = 24
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Return the header and the rows, with a bar for the bus bandwidth to one scale."""
    header = ("backend", "size", "time", "algorithm", "bus", "wrong", "bus GB/s")
    most = (
        max((row.bus_gb_per_s for result in all_measured for row in result.rows), default=0.0)
        or 1.0
    )
    rows: list[tuple[object, ...]] = [
        (
            result.backend,
            size_text(row.bytes),
            f"{row.microseconds:.0f} us",
            f"{row.algorithm_gb_per_s:.3f}",
            f"{row.bus_gb_per_s:.3f}",
            row.wrong,
            "#" * round(width * row.bus_gb_per_s / most),
        )
        for result in all_measured
        for row in result.rows
    ]
    return header, rows
