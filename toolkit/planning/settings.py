"""Precedence, as code: default < site < user < project < job < environment < flag; and where each value came from.

Pure: the layers are read elsewhere (``prepare``); here they are only put on top of each other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from toolkit.errors import UsageError
from toolkit.model.base import BadDataError, convert, field_names
from toolkit.model.job import Job

VARIABLE = "TOOLKIT_"
# Variables of ours that are no options of a job.
_NOT_OPTIONS = frozenset(
    {
        "SUMMARY",
        "SCRIPT",
        "ARGUMENTS",
        "ENV",
        "PASS_ENV",
        "SECRET",
        "BIND",
        "SWEEP",
        "RERUN_OF",
        "AFTER",
        "MODULES",
    }
)
_NUMBERS = frozenset(
    {
        "nodes",
        "ntasks_per_node",
        "gpus",
        "gpus_per_node",
        "cpus_per_task",
        "time",
        "max_restarts",
        "max_requeues",
        "mem",
        "array",
    }
)
_WHOLE = re.compile(r"-?\d+\Z")

DEFAULTS = Job(
    site="auto",
    image=None,
    runtime="apptainer",
    launcher="auto",
    nodes=1,
    gpus_per_node=0,
    runs="runs",
)


class Layer(NamedTuple):
    """Settings from one place: ``origin`` is how people know it, such as ``job.toml`` or ``--nodes``."""

    origin: str
    values: Mapping[str, Any]


class Settings(NamedTuple):
    """All layers merged, and for each key the layer that had the last word."""

    job: Job
    origins: dict[str, str]


def layer(origin: str, job: Job) -> Layer:
    """What ``job`` says, as a layer; what it leaves open is left out."""
    values = {name: getattr(job, name) for name in field_names(Job)}
    return Layer(
        origin, {name: value for name, value in values.items() if value not in (None, (), {})}
    )


def merge(layers: Sequence[Layer]) -> Settings:
    """Put layers on top of each other, the first at the bottom.

    A later layer's value replaces an earlier one's; ``arguments``, ``bind`` and ``modules`` are
    joined, ``env`` is joined key by key. A layer with a number of GPUs for each node has said how
    many ranks each starts, whatever an earlier one says of all nodes.

    Raises:
        BadDataError: a layer's value does not fit.
    """
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, values in layers:
        named = [key for key in _GPUS if key in values]
        if (
            any("," in str(values[key]) for key in named)
            and merged.pop("ntasks_per_node", None) is not None
        ):
            del origins["ntasks_per_node"]
        for key in (
            _GPUS if named else ()
        ):  # two names of one value: the layer that says either has said both
            merged.pop(key, None)
            origins.pop(key, None)
        for key, value in values.items():
            if key in ("arguments", "pass_env", "secret", "bind", "modules"):
                merged[key] = (*merged.get(key, ()), *value)
            elif key == "env":
                merged[key] = {**merged.get(key, {}), **value}
            else:
                merged[key] = value
            origins[key] = f"--{key.replace('_', '-')}" if origin == "flag" else origin
    return Settings(convert(merged, Job), origins)


_GPUS = ("gpus", "gpus_per_node")
# What a site may demand of every job.
_DEMANDS = ("require_signed", "signature_key")


def demands(site: Layer) -> Layer:
    """Return what a site demands, to be merged last: no setting, variable or flag relaxes it."""
    keys = _DEMANDS if site.values.get("require_signed") else ()
    return Layer(site.origin, {key: site.values[key] for key in keys if key in site.values})


def from_environment(environment: Mapping[str, str]) -> Layer:
    """The layer of ``TOOLKIT_NODES`` and its like.

    Raises:
        UsageError: a value does not fit.
    """
    values: dict[str, Any] = {}
    for key in field_names(Job):
        text = environment.get(VARIABLE + key.upper())
        if text and key.upper() not in _NOT_OPTIONS:
            values[key] = _value(key, text)
            _check(VARIABLE + key.upper(), key, values[key])
    return Layer("environment", values)


def _value(key: str, text: str) -> Any:
    if key in _NUMBERS and _WHOLE.match(text):
        return int(text)
    return (
        text.lower() in ("1", "true", "yes")
        if key in ("exclusive", "require_signed", "requeue", "interactive", "pty", "snapshot")
        else text
    )


def _check(place: str, key: str, value: Any) -> None:
    try:
        convert({key: value}, Job)
    except BadDataError as error:
        raise UsageError(f"{value!r} does not fit: {error}", place=place) from None
