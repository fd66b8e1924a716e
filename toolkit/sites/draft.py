"""Write the site file of a cluster from its survey, by the template ``draft.toml.j2``. Pure."""

from __future__ import annotations

import re
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from toolkit.config import package_directory
from toolkit.model.base import toml_value
from toolkit.model.overview import Queue
from toolkit.model.site import Limits
from toolkit.sites.survey import Survey

_CONTAINERS = re.compile(r"(?:apptainer|singularity)(?:/|$)", re.IGNORECASE)


def draft(name: str, survey: Survey, *, date: str) -> str:
    """Return the text of the file.

    Args:
        name: of the site.
        survey: the cluster's own facts.
        date: today, as ``2026-11-21``.
    """
    environment = Environment(
        loader=FileSystemLoader(package_directory("sites")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # not HTML: the filters quote for TOML
    )
    environment.filters |= {"toml": toml_value, "plain": _plain}
    probes = [probe for probe in survey.probes.values() if not probe.problem]
    drivers = {probe.driver for probe in probes if probe.driver}
    return environment.get_template("draft.toml.j2").render(
        name=name,
        survey=survey,
        date=date,
        loaded=[module for module in survey.modules or () if _CONTAINERS.match(module)],
        interfaces=list(dict.fromkeys(each for probe in probes for each in probe.interfaces)),
        driver=min(drivers, key=lambda text: [*map(int, re.findall(r"\d+", text))], default=""),
        partitions=[_partition(queue, survey) for queue in survey.queues],
    )


def _partition(queue: Queue, survey: Survey) -> dict[str, Any]:
    members, probe = survey.members(queue), survey.probes.get(queue.name)
    is_bare = re.fullmatch(r"[A-Za-z0-9_-]+", queue.name)
    types = dict.fromkeys(node.gpu_type.upper() for node in members if node.gpu_type)
    hardware = [
        (key, sorted({getattr(node, key) for node in members}))
        for key in ("cpus", "memory", "gpus")
    ]
    return {
        "queue": queue,
        "key": queue.name if is_bare else toml_value(queue.name),
        "members": members,
        "limits": survey.limits.get(queue.name, Limits()),
        "hardware": [
            (key, values) for key, values in hardware if values and (values[-1] or key != "gpus")
        ],
        "has_gpus": any(node.gpus for node in members),
        "gpu": probe.gpus[0] if probe and probe.gpus else ", ".join(types),
        "arches": sorted({node.arch for node in members if node.arch}),
    }


def _plain(text: str) -> str:
    """Return text on one line of printable characters, for a comment."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
