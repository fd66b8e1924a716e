"""Build an image by the first method that works here: layers, a flat build, or Docker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from toolkit.errors import BuildError, ForbiddenError, NeedsInstallError, ToolkitError
from toolkit.images.builder.apptainer import apptainer, layered
from toolkit.images.builder.apptainer.apptainer import BuildOutcome
from toolkit.images.builder.apptainer.programs import why_no_layers
from toolkit.images.builder.remote_base import BuildTask
from toolkit.images.host.host_config import HostConfig, collect_host_config
from toolkit.images.host.privilege import build_options
from toolkit.images.lockfile import files as lockfile
from toolkit.images.lockfile.apply import locked_definition
from toolkit.images.recipe.lock import Lock
from toolkit.images.recipe.reproducible import ENVIRONMENT
from toolkit.images.store.cache import WHEELS, Cache
from toolkit.images.store.provenance import describe_base
from toolkit.shell import Progress

if TYPE_CHECKING:
    from toolkit.images.builder import docker

Engine = Literal["auto", "apptainer", "docker"]
_NOT_EQUAL = "; the image has what is locked, but is another file than in layers"


def run(task: BuildTask, progress: Progress, engine: Engine, *, flat: bool) -> BuildOutcome:
    """Build the task's ``place.sif`` in layers, unless ``flat``, the engine or the machine says no.

    Raises:
        BuildError, NoSpaceError, NeedsInstallError, ForbiddenError: The build failed.
    """
    if not task.lock and (builder := choose_builder(engine, progress)):
        return _build_by_docker(task, builder)
    if not flat:
        reason = why_no_layers(task.place, task.follower)  # no step has run yet
        if not reason:
            return _build_layered(task, collect_host_config())
        note = _NOT_EQUAL if task.lock else ""
        progress.say("flat", f"no layers on this machine: {reason}{note}")
    progress.say(
        "warning",
        "Apptainer does not confine the steps of a flat build: they can do on this machine"
        " what you can do",
    )
    return _build_flat_locked(task, task.lock) if task.lock else _build_flat(task)


def choose_builder(engine: Engine, progress: Progress) -> docker.Builder | None:
    """Return Docker's engine and client if they build for this user here; None: Apptainer does.

    Args:
        engine: The user's choice; ``auto`` if there is none.
        progress: Shows a choice that is not the usual one.

    Raises:
        ForbiddenError, NeedsInstallError: Neither can build here; gives the reasons of both.
    """
    if engine == "apptainer":
        return None
    if engine == "docker":
        return _find_docker()
    try:
        build_options()
    except (ForbiddenError, NeedsInstallError) as refusal:
        try:
            builder = _find_docker()
        except ToolkitError as error:
            reasons = (
                f"Apptainer: {refusal.cause}",
                *refusal.details,
                f"Docker: {error.cause}",
                *error.details,
            )
            raise type(refusal)(
                "no image can be built here", details=reasons, next_step=refusal.next_step
            ) from None
        progress.say("engine", f"{builder[0]}, since {refusal.cause}")
        return builder
    return None


def _find_docker() -> docker.Builder:
    from toolkit.images.builder.docker import find_builder  # most builds take no part of it

    return find_builder()


def _build_flat(task: BuildTask) -> BuildOutcome:
    with _compiled_wheels(task) as wheels:
        return apptainer.build(
            task.place,
            task.follower,
            task.exact(),
            task.definition(),
            environment=task.login(),
            wheels=wheels,
        )


@contextmanager
def _compiled_wheels(task: BuildTask) -> Iterator[Path | None]:
    """Yield the cached wheels of the same steps; the image's checks reveal whether they fit."""
    cache, key = Cache(task.place.images), task.plan.products_key
    with cache.used():
        entry = cache.use(WHEELS, key) if key and not task.fresh else None
        yield Path(entry.path) if entry else None


def _build_by_docker(task: BuildTask, builder: docker.Builder) -> BuildOutcome:
    from toolkit.images.builder import docker

    with _compiled_wheels(task) as wheels:
        return docker.build(task, builder, wheels)


def _require_locked_base(task: BuildTask, lock: Lock) -> None:
    """Refuse a build on another base than the locked one.

    Raises:
        BuildError: The base is another.
    """
    base = task.base.image if task.base else describe_base(task.plan.base, digest=True)
    if base.digest and base.digest != lock.base.digest:
        raise BuildError(
            f"the base of {lock.name} differs from the locked one",
            place=base.reference,
            details=(lock.base.digest, base.digest),
        )


def _build_flat_locked(task: BuildTask, lock: Lock) -> BuildOutcome:
    """Build flat and without caches: the same bytes on every machine."""
    _require_locked_base(task, lock)
    place = task.place
    config = lockfile.fetch_files(lock, task.plan, place.images, place.scratch / "locked")
    # The packing sees the first variable; the steps see the others, and no further variables.
    environment = {"SOURCE_DATE_EPOCH": str(lock.epoch)}
    environment |= {
        f"APPTAINERENV_{name}": value for name, value in (ENVIRONMENT | environment).items()
    }
    try:
        with Cache(place.images).used():  # a base that is a definition is in it
            return apptainer.build(
                place,
                task.follower,
                task.exact(),
                locked_definition(task.definition(), lock),
                environment=environment | task.login(),
                config=config,
            )
    except BuildError as error:
        raise lockfile.explain_failure(error, lock, task.follower.log) from None


def _build_layered(task: BuildTask, host: HostConfig) -> BuildOutcome:
    if task.lock:
        _require_locked_base(task, task.lock)
    try:
        return layered.build(task, host)
    except BuildError as error:
        if task.lock is None:
            raise
        raise lockfile.explain_failure(error, task.lock, task.follower.log) from None
