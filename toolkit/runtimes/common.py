"""What runtimes share: a home of the image's own, and what means nothing where there is no image or no environment."""

from __future__ import annotations

import re
from typing import TypedDict

from toolkit.errors import ShapeError, SignatureError, ToolkitError, UsageError
from toolkit.runtimes import Asked

# Where a runtime has no prefix of its own for variables that are meant for the ranks.
PREFIX = "TOOLKITENV_"


class Home(TypedDict):
    """The part of a ``Container`` that says where its home is."""

    home: str | None
    home_name: str


def unsigned(asked: Asked, runtime: str) -> list[ToolkitError]:
    """A finding where only signed images may be run: a signature is part of a SIF."""
    if not asked.job.require_signed:
        return []
    cause = f"only signed images may be run, and {runtime} runs none that could be"
    return [
        SignatureError(
            cause, place="--runtime", next_step="--runtime apptainer, with a signed image"
        )
    ]


def home(name: str, scratch: str | None) -> Home:
    """A directory for each image, on the site's scratch where it has one; without characters that a container's options read."""
    safe = re.sub(r"[^\w.+-]", "-", name, flags=re.ASCII)
    return Home(
        home=f"{scratch.rstrip('/')}/toolkit/home/{safe}" if scratch else None, home_name=safe
    )


def no_environment(asked: Asked, runtime: str) -> list[ToolkitError]:
    """A finding where an environment of conda is named and the runtime has none."""
    name = asked.job.conda_env
    if name is None:
        return []
    return [
        UsageError(
            f"an environment of conda ({name}) means nothing to the runtime {runtime}",
            place="--env",
            next_step=f"--runtime conda --env {name}",
        )
    ]


def no_image(asked: Asked, runtime: str) -> list[ToolkitError]:
    """Findings where an image, or something of the host to show in it, is asked for by whoever asked for a runtime without one.

    An image that the job's folder or the project names is passed over: it is the runtime that was
    chosen in its place.
    """
    findings: list[ToolkitError] = []
    said = asked.origins.get("image", "")
    if asked.job.image and (said == "--image" or said == asked.origins.get("runtime")):
        findings.append(
            UsageError(
                f"the runtime {runtime} starts no image",
                place="--image",
                next_step="leave --image out, or --runtime apptainer",
            )
        )
    if asked.job.bind and asked.origins.get("bind") == "--bind":
        findings.append(
            UsageError(
                f"the runtime {runtime} has no container to show a directory in",
                place="--bind",
                next_step="use the directory as it is",
            )
        )
    return findings


def on_path(prefix: str, option: str) -> list[ToolkitError]:
    """A finding where an environment lies in a directory that PATH cannot name."""
    if ":" not in prefix:
        return []
    return [
        UsageError(
            f"PATH cannot name a directory with ':' in it: {prefix}",
            place=option,
            next_step="put the environment elsewhere",
        )
    ]


def one_node(asked: Asked, runtime: str, why: str) -> list[ToolkitError]:
    """A finding where more than one node may be asked for, and why that is one too many."""
    _, most = asked.job.node_range
    if most == 1:
        return []
    return [
        ShapeError(
            f"{runtime} runs on one node only: {why}",
            place="--nodes",
            next_step="--nodes 1, or --runtime apptainer (toolkit image build --engine docker gives a SIF)",
        )
    ]


def unheld(asked: Asked, what: str) -> tuple[str, ...]:
    """Warnings for frameworks that the script imports and that were looked for in vain."""
    held = asked.manifest.frameworks if asked.manifest else None
    if held is None or not asked.source.python:
        return ()
    lacking = [name for name in FRAMEWORKS if asked.source.imports_any(name) and name not in held]
    return (
        (f"the script imports {', '.join(lacking)}, not to be found in {what}",) if lacking else ()
    )


# What is looked for in a Python of the host, by the names that scripts import.
FRAMEWORKS = ("torch", "horovod", "tensorflow", "ray", "mpi4py", "lightning", "submitit")
