"""Turn the options of `toolkit cluster up`, or the file of ``--shape``, into a shape."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from toolkit.errors import UsageError
from toolkit.files import read_toml
from toolkit.localcluster.shape import Shape, numbered
from toolkit.model.base import BadDataError, convert
from toolkit.units import megabytes

# Fields of nodes, and the options that give them.
_OPTIONS = {
    "cpus": "--cpus-per-node",
    "memory": "--mem-per-node",
    "gpus": "--gpus-per-node",
    "gpu_type": "--gpu-type",
}


def from_options(
    *,
    nodes: int,
    cpus: int,
    memory: str,
    gpus: int,
    gpu_type: str | None,
    partitions: Sequence[str],
    accounting: bool,
) -> Shape:
    """Return a shape of equal nodes called nid001, nid002, ...

    Raises:
        UsageError: an option is invalid.
    """
    try:
        size = megabytes(memory)
    except ValueError as error:
        raise _bad("--mem-per-node", str(error), "write MB or a unit: 4000, 4000M or 4G") from None
    group = {"names": numbered(nodes), "cpus": cpus, "memory": size, "gpus": gpus}
    data = {
        "nodes": [{**group, "gpu_type": gpu_type}],
        "partitions": [{"name": name} for name in partitions],
        "accounting": accounting,
    }
    try:
        return convert(data, Shape)
    except BadDataError as error:
        is_partition = error.key.startswith("partitions")
        place = "--partition" if is_partition else _OPTIONS.get(error.key.rpartition(".")[2])
        raise _bad(place, str(error), "toolkit cluster up --help") from None


def with_light(shape: Shape, light: bool | None) -> Shape:
    """Return the shape with ``--light`` or ``--no-light``, if one of them was given.

    Raises:
        UsageError: there are too many nodes for it.
    """
    try:
        return replace(shape, light=light) if light is not None else shape
    except ValueError as error:
        raise _bad("--no-light", str(error), "fewer --nodes, or leave it out") from None


def from_file(path: Path) -> Shape:
    """Return the shape that a TOML file describes.

    Raises:
        ConfigError: it is missing or invalid, or no cluster could have this shape.
    """
    return read_toml(path, Shape, named=True)


def _bad(place: str | None, cause: str, next_step: str) -> UsageError:
    return UsageError(cause, place=place, next_step=next_step)
