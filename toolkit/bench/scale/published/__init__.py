"""Numbers that others have published, each a TOML file here with its source."""

from __future__ import annotations

from pathlib import Path

from toolkit.errors import UsageError
from toolkit.files import read_toml
from toolkit.model.base import Model


class PublishedPoint(Model, frozen=True, kw_only=True):
    """A published efficiency; ``name`` is the model that was trained."""

    name: str
    ranks: int
    efficiency: float


class Published(Model, frozen=True, kw_only=True):
    """A published result.

    Attributes:
        statement: the result as its source has it.
        source, url: where it is from.
        differs: what else is different from a study here, besides the hardware.
        points: efficiencies, if the source has numbers.
    """

    title: str
    year: int
    statement: str
    source: str
    url: str
    hardware: str
    differs: str
    points: tuple[PublishedPoint, ...] = ()


def names() -> tuple[str, ...]:
    """Return the names of all published results."""
    return tuple(sorted(path.stem for path in Path(__file__).parent.glob("*.toml")))


def read(name: str) -> Published:
    """Return a published result.

    Raises:
        UsageError: there is none of this name.
    """
    if name not in names():
        raise UsageError(
            f"there is no published result {name!r}",
            place="--beside",
            choices=names(),
            value=name,
            next_step=f"--beside with one of: {', '.join(names())}",
        )
    return read_toml(Path(__file__).with_name(f"{name}.toml"), Published)
