"""What an image's Horovod was built with, and a finding where a launcher needs more."""

from __future__ import annotations

import re
from collections.abc import Sequence

from toolkit.errors import LauncherMismatchError, ToolkitError
from toolkit.launchers import Request
from toolkit.launchers.common import needs
from toolkit.model.image import Manifest

_NAMES = {"mpi": "MPI", "gloo": "Gloo"}
_OTHER = {
    "mpi": "--launcher horovod-gloo starts ranks without MPI",
    "gloo": "--launcher horovod starts ranks over MPI",
}
# What a script imports of Horovod -> the framework that this must have been built for, as Horovod
# itself calls it.
_PARTS = {
    "horovod.torch": "pytorch",
    "horovod.tensorflow": "tensorflow",
    "horovod.keras": "tensorflow",
    "horovod.mxnet": "mxnet",
}
_DETAIL = re.compile(r"built for (?P<frameworks>.+), with (?P<operations>.+)")


def check(request: Request, launcher: str, operation: str) -> Sequence[ToolkitError]:
    """Horovod must be in the image, and built with what carries the launcher's messages (``mpi`` or ``gloo``).

    Of an image that nobody has looked into, and of a build that was not checked, nothing is known,
    and nothing is refused.
    """
    findings: list[ToolkitError] = list(needs("horovod", launcher, request))
    held = operations(request.manifest) if not findings else None
    if held is not None and operation not in held:
        findings.append(
            LauncherMismatchError(
                f"the launcher {launcher} needs a Horovod that was built with {_NAMES[operation]}, "
                f"this {request.noun}'s has "
                f"{', '.join(_NAMES.get(one, one) for one in held)}",
                place="--launcher",
                next_step=_OTHER[operation],
            )
        )
    return [*findings, *_unbuilt(request)]


def _unbuilt(request: Request) -> Sequence[ToolkitError]:
    """A finding where the script imports a part of Horovod that was not built."""
    found = _DETAIL.match(said_of("horovod-build", request.manifest) or "")
    if found is None:
        return []
    held = {word.split()[0] for word in found["frameworks"].split(", ")}
    lacking = [
        (part, name)
        for part, name in _PARTS.items()
        if request.source.imports_any(part) and name not in held
    ]
    return [
        LauncherMismatchError(
            f"the script imports {part}, this {request.noun}'s Horovod was built for {', '.join(sorted(held))}",
            place="--image" if request.noun == "image" else "--runtime",
            next_step=f"an image whose recipe builds Horovod for {name}: toolkit image list"
            if request.noun == "image"
            else f"build Horovod for {name} in the environment",
        )
        for part, name in lacking[:1]
    ]


def operations(manifest: Manifest | None) -> tuple[str, ...] | None:
    """What carries the collectives of an image's Horovod (``("mpi", "gloo")``), as its own build information says; None: not known."""
    match = _DETAIL.match(said_of("horovod-build", manifest) or "")
    return tuple(match["operations"].split(", ")) if match else None


def said_of(check: str, manifest: Manifest | None) -> str | None:
    """What a check that an image has passed said: ``Open MPI 4.1.4 speaks pmix``; None: it was not made, or nobody knows."""
    passed = (
        (one for one in manifest.verdicts if one.name == check and one.outcome == "passed")
        if manifest
        else ()
    )
    return next((one.detail for one in passed), None)
