"""Merge layers of settings, and record the origin of each value.

The precedence is default < site < user < project < job < environment < flag. Pure: ``layers`` and
``gather`` read the layers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

import msgspec

from toolkit.errors import UsageError
from toolkit.model.base import BadDataError, convert, field_names
from toolkit.model.job import Job, SlurmValue
from toolkit.model.slurm_options import OPTIONS

VARIABLE = "TOOLKIT_"
SLURM_VARIABLE = "TOOLKIT_SLURM_"  # TOOLKIT_SLURM_MAIL_USER is --slurm mail-user
# Fields of a job that no variable sets.
_NO_VARIABLE = frozenset(
    {
        "summary",
        "script",
        "arguments",
        "env",
        "pass_env",
        "secret",
        "bind",
        "sweep",
        "rerun_of",
        "after",
        "modules",
        "slurm",
    }
)
_JOINED = ("arguments", "pass_env", "secret", "bind", "modules")
_GPUS = ("gpus", "gpus_per_node")
# Settings that a site may require of every job.
_DEMANDS = ("require_signed", "signature_key")
_WHOLE = re.compile(r"-?\d+\Z")
_TRUE = ("1", "true", "yes")

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
    """Settings from one origin, named as users know it, such as ``job.toml`` or ``--nodes``."""

    origin: str
    values: Mapping[str, Any]


class Settings(NamedTuple):
    """Merged settings, and for each key the origin of its value."""

    job: Job
    origins: dict[str, str]


def layer(origin: str, job: Job) -> Layer:
    """Return the settings of ``job`` as a layer, without those that are unset."""
    values = {name: getattr(job, name) for name in field_names(Job)}
    return Layer(
        origin, {name: value for name, value in values.items() if value not in (None, (), {})}
    )


def merge(layers: Sequence[Layer]) -> Settings:
    """Put layers on top of each other, the first at the bottom.

    A later layer's value replaces an earlier value; ``arguments``, ``bind`` and ``modules`` are
    joined, ``env`` and ``slurm`` are joined key by key. A layer with a number of GPUs for each node
    also decides how many ranks each node starts, and replaces an earlier ``ntasks_per_node``.

    Raises:
        BadDataError: a value is not valid.
        UsageError: a layer gives an option of sbatch twice.
    """
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, values in layers:
        values, slurm = _split_slurm(origin, values)
        _drop_other_gpus(values, merged, origins)
        for key, value in values.items():
            if key in _JOINED:
                merged[key] = (*merged.get(key, ()), *value)
            elif key == "env":
                merged[key] = {**merged.get(key, {}), **value}
            else:
                merged[key] = value
            origins[key] = f"--{key.replace('_', '-')}" if origin == "flag" else origin
        options = {**merged.get("slurm", {}), **slurm}
        merged["slurm"] = {name: value for name, value in options.items() if value is not False}
        origins |= dict.fromkeys(
            map(slurm_origin, slurm), "--slurm" if origin == "flag" else origin
        )
    return Settings(convert(merged, Job), origins)


def slurm_origin(name: str) -> str:
    """Return the key of an option of sbatch among the origins."""
    return f"slurm {name}"


def _split_slurm(
    origin: str, values: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, SlurmValue]]:
    """Return a layer's settings, and its further options of sbatch.

    An option that has a setting becomes that setting: ``--slurm partition=long`` is
    ``--partition long``, so that all decisions that depend on the partition are made.

    Raises:
        UsageError: both are given, and they differ.
    """
    settings, slurm = dict(values), dict(values.get("slurm", {}))
    settings.pop("slurm", None)
    for name, value in list(slurm.items()):
        option = OPTIONS.get(name)
        if option is None or not option.kind or option.refusal:
            continue
        if value is True and option.takes == "value":
            continue  # The plan refuses it.
        if settings.get(option.field, value) != value:
            raise UsageError(
                f"--slurm {name}={value} contradicts --{name} {settings[option.field]}",
                place=origin if origin != "flag" else f"--{name}",
                next_step="leave one of them out",
            )
        settings[option.field] = slurm.pop(name)
    return settings, slurm


def _drop_other_gpus(
    values: Mapping[str, Any], merged: dict[str, Any], origins: dict[str, str]
) -> None:
    """Drop earlier numbers of GPUs: ``gpus`` and ``gpus_per_node`` are names of the same value."""
    named = [key for key in _GPUS if key in values]
    dropped = list(_GPUS) if named else []
    if any("," in str(values[key]) for key in named):
        dropped.append("ntasks_per_node")
    for key in dropped:
        merged.pop(key, None)
        origins.pop(key, None)


def demands(site: Layer) -> Layer:
    """Return the demands of a site, merged last: no setting, variable or flag relaxes them."""
    keys = _DEMANDS if site.values.get("require_signed") else ()
    return Layer(site.origin, {key: site.values[key] for key in keys if key in site.values})


def from_environment(environment: Mapping[str, str]) -> Layer:
    """Return the layer of ``TOOLKIT_NODES``, ``TOOLKIT_SLURM_LICENSES`` and the like.

    Raises:
        UsageError: a value is not valid.
    """
    types = {field.encode_name: field.type for field in msgspec.structs.fields(Job)}
    values: dict[str, Any] = {}
    for key, hint in types.items():
        name = VARIABLE + key.upper()
        text = environment.get(name)
        if text and key not in _NO_VARIABLE:
            values[key] = _value(text, hint)
            _check(name, key, values[key])
    slurm = {
        name.removeprefix(SLURM_VARIABLE).lower().replace("_", "-"): text
        for name, text in environment.items()
        if name.startswith(SLURM_VARIABLE)
    }
    if slurm:
        values["slurm"] = {name: _slurm_value(name, text) for name, text in slurm.items()}
    return Layer("environment", values)


def _value(text: str, hint: object) -> Any:
    """Convert the text of a variable to the number or boolean that its field takes."""
    if _accepts(hint, int) and _WHOLE.match(text):
        return int(text)
    is_switch = _accepts(hint, bool)
    return text.lower() in _TRUE if is_switch and not _is_word(hint, text) else text


def _is_word(hint: object, text: str) -> bool:
    """Return whether a field that may be true or a word, as ``exclusive=user``, is given a word."""
    return _accepts(hint, str) and text.lower() not in (*_TRUE, "0", "false", "no", "off")


def _accepts(hint: object, kind: type) -> bool:
    return hint is kind or any(_accepts(inner, kind) for inner in get_args(hint))


def _slurm_value(name: str, text: str) -> SlurmValue:
    option = OPTIONS.get(name)
    if option is not None and option.takes == "flag":
        return text.lower() in _TRUE
    return text


def _check(place: str, key: str, value: Any) -> None:
    try:
        convert({key: value}, Job)
    except BadDataError as error:
        raise UsageError(f"{value!r} is not valid: {error}", place=place) from None
