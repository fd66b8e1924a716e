"""The build of an image's Horovod, and the check that a launcher can use it."""

from __future__ import annotations

import re

from toolkit.errors import LauncherMismatchError, ToolkitError
from toolkit.launchers.shared.base import Launcher, sockets
from toolkit.model.case import Case
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


def check(launcher: Launcher, case: Case, operation: str) -> list[ToolkitError]:
    """Return an error if Horovod, or what carries a launcher's messages, is not in the image.

    An image whose contents are not known, and a build that was not checked, is not refused.

    Args:
        launcher: that needs Horovod.
        case: what the launcher decides from.
        operation: ``mpi`` or ``gloo``.
    """
    findings = launcher.require("horovod", case)
    built_with = operations(case.manifest) if not findings else None
    if built_with is not None and operation not in built_with:
        has = ", ".join(_NAMES.get(name, name) for name in built_with)
        findings.append(
            LauncherMismatchError(
                f"the launcher {launcher.name} needs a Horovod that was built with "
                f"{_NAMES[operation]}, this {case.noun}'s has {has}",
                place="--launcher",
                next_step=_OTHER[operation],
            )
        )
    return [*findings, *_unbuilt(case)]


def _unbuilt(case: Case) -> list[ToolkitError]:
    """Return an error if the script imports a part of Horovod that was not built."""
    match = _DETAIL.match(detail_of("horovod-build", case.manifest) or "")
    if match is None:
        return []
    built_for = sorted(word.split()[0] for word in match["frameworks"].split(", "))
    missing = next(
        (
            (part, name)
            for part, name in _PARTS.items()
            if case.source.imports_any(part) and name not in built_for
        ),
        None,
    )
    if missing is None:
        return []
    part, name = missing
    is_image = case.noun == "image"
    return [
        LauncherMismatchError(
            f"the script imports {part}, "
            f"this {case.noun}'s Horovod was built for {', '.join(built_for)}",
            place="--image" if is_image else "--runtime",
            next_step=f"an image whose recipe builds Horovod for {name}: toolkit image list"
            if is_image
            else f"build Horovod for {name} in the environment",
        )
    ]


def operations(manifest: Manifest | None) -> tuple[str, ...] | None:
    """Return what carries the collectives of an image's Horovod: ``("mpi", "gloo")``.

    The build information of Horovod says so. None if it is not known.
    """
    match = _DETAIL.match(detail_of("horovod-build", manifest) or "")
    return tuple(match["operations"].split(", ")) if match else None


def gloo(case: Case) -> dict[str, str]:
    """Return the variables that make Horovod use Gloo, on the site's interface if it is known."""
    interface = case.interface
    return {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        **({"HOROVOD_GLOO_IFACE": interface} if interface else {}),
        **sockets(case, "NCCL"),
    }


def detail_of(check: str, manifest: Manifest | None) -> str | None:
    """Return the detail of a check that an image has passed: ``Open MPI 4.1.4 speaks pmix``.

    None if the check was not made, or the manifest is not known.
    """
    verdicts = manifest.verdicts if manifest else ()
    passed = (item for item in verdicts if item.name == check and item.outcome == "passed")
    return next((item.detail for item in passed), None)
