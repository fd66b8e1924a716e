"""Build an image by the first method that works here: layers, a flat build, or Docker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from toolkit import shell
from toolkit.errors import BuildError, ForbiddenError, NeedsInstallError, ToolkitError
from toolkit.images.builder.apptainer import apptainer, layered
from toolkit.images.builder.apptainer.apptainer import BuildOutcome
from toolkit.images.builder.apptainer.programs import why_no_layers
from toolkit.images.builder.docker import docker
from toolkit.images.builder.docker.clients import find_client
from toolkit.images.builder.follow import BuildContext
from toolkit.images.builder.remote_base import RemoteBase, resolve_base
from toolkit.images.host.privilege import build_command
from toolkit.images.host.workspace import Workspace, workspace
from toolkit.images.lockfile import files as lockfile
from toolkit.images.lockfile.apply import locked_base, locked_definition
from toolkit.images.recipe import library
from toolkit.images.recipe.bases import LocalImage
from toolkit.images.recipe.lock import Lock
from toolkit.images.recipe.plan import Plan, with_keys
from toolkit.images.recipe.reproducible import ENVIRONMENT
from toolkit.images.store.cache import WHEELS, Cache
from toolkit.images.store.provenance import describe_base
from toolkit.images.verify.verdicts import FindSite, no_site
from toolkit.model.base import Model
from toolkit.runtimes.docker import find_engine
from toolkit.shell import Progress

Engine = Literal["auto", "apptainer", "docker"]
_Result = TypeVar("_Result")
_NOT_EQUAL = "; the image has what is locked, but is another file than in layers"


class BuildOptions(Model, frozen=True, kw_only=True):
    """Options of one image build.

    Attributes:
        force: Build even if nothing has changed, without cached results except for what was
            compiled on exactly the same layers.
        engine: The engine: ``apptainer``, ``docker``, or ``auto``: the first of these that can.
        flat: Pack the image as one by Apptainer alone, not in layers.
        wait: Wait for another process that builds the same image; else give up.
        lock: The lock file that says exactly what to build; None for the current versions.
        find_site: Returns what the site offers that the image is verified for.
    """

    force: bool = False
    engine: Engine = "auto"
    flat: bool = False
    wait: bool = True
    lock: str | None = None
    find_site: FindSite = no_site


@dataclass(frozen=True)
class BuildTask:
    """One build.

    Attributes:
        resolved: The recipe.
        recipe: The recipe as the user named it.
        options: The options of the build.
        lock: The lock to build, if there is one.
        state: What identifies the file of a local base.
        log: The file that receives all output.
        expected: The seconds that each step is likely to take.
        progress: Shows the steps.
    """

    resolved: Plan
    recipe: str
    options: BuildOptions
    lock: Lock | None
    state: str
    log: Path
    expected: Mapping[str, float]
    progress: Progress

    def context(self, place: Workspace) -> BuildContext:
        """Return the context of a build in a workspace."""
        return BuildContext(self.resolved.name, place, self.log, self.progress, self.expected)


def choose_engine(engine: Engine, progress: Progress) -> Literal["apptainer", "docker"]:
    """Return the engine for this machine and user: Apptainer if it can build, else Docker.

    Args:
        engine: The user's choice; ``auto`` if there is none.
        progress: Shows a choice that is not the usual one.

    Raises:
        ForbiddenError, NeedsInstallError: Neither can build here; gives the reasons of both.
    """
    if engine != "auto":
        return engine
    try:
        build_command()
    except (ForbiddenError, NeedsInstallError) as refusal:
        try:
            docker_engine = find_engine()
            find_client(docker_engine)
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
        progress.say("engine", f"{docker_engine}, since {refusal.cause}")
        return "docker"
    return "apptainer"


def run(
    task: BuildTask, finish: Callable[[BuildOutcome, RemoteBase | None, Workspace], _Result]
) -> _Result:
    """Build the image, and return what ``finish`` makes of it while its workspace exists."""
    with shell.interrupted_by_signals():  # a build that is ended politely removes its directories
        base = resolve_base(task.resolved.base, digest=task.lock.base.digest if task.lock else "")
        build = _build_flat
        if not task.lock and choose_engine(task.options.engine, task.progress) == "docker":
            build = _build_by_docker
        elif not task.options.flat and _layers_are_possible(task):
            build = _build_layered
        with workspace(task.log.parent) as place:
            return finish(build(task, base, place), base, place)


def _layers_are_possible(task: BuildTask) -> bool:
    """Return whether this machine can build in layers; say why not. No step has run yet."""
    with workspace(task.log.parent) as place:
        reason = why_no_layers(place, task.context(place).follower({}, ()))
    if reason:
        note = _NOT_EQUAL if task.lock else ""
        task.progress.say("flat", f"no layers on this machine: {reason}{note}")
    return not reason


def _build_flat(task: BuildTask, base: RemoteBase | None, place: Workspace) -> BuildOutcome:
    task.progress.say(
        "warning",
        "Apptainer does not confine the steps of a flat build: they can do on this machine"
        " what you can do",
    )
    context, login = task.context(place), base.environment(place) if base else {}
    if task.lock:
        return _build_flat_locked(task, task.lock, base, place)
    definition = library.render(task.resolved)
    definition = base.definition(definition, task.resolved.base) if base else definition
    with _compiled_wheels(task, base) as wheels:
        return apptainer.build(context, task.resolved, definition, environment=login, wheels=wheels)


@contextmanager
def _compiled_wheels(task: BuildTask, base: RemoteBase | None) -> Iterator[Path | None]:
    """Yield the cached wheels of the same steps; the image's checks reveal whether they fit."""
    state = base.image.digest if base else task.state
    key = with_keys(task.resolved, state).products_key
    cache = Cache(task.log.parent)
    with cache.used():
        entry = cache.use(WHEELS, key) if key and not task.options.force else None
        yield Path(entry.path) if entry else None


def _build_by_docker(task: BuildTask, base: RemoteBase | None, place: Workspace) -> BuildOutcome:
    definition = library.render(task.resolved, "docker")
    with _compiled_wheels(task, base) as wheels:
        return docker.build(
            task.context(place),
            task.resolved,
            definition,
            base=base,
            wheels=wheels,
            fresh=task.options.force,
        )


def _require_locked_base(task: BuildTask, lock: Lock) -> None:
    """Refuse a build on another base than the locked one.

    Raises:
        BuildError: The base is another.
    """
    base = describe_base(task.resolved.base, digest=True)
    if isinstance(task.resolved.base, LocalImage) and base.digest != lock.base.digest:
        raise BuildError(
            f"the base of {lock.name} differs from the locked one",
            place=base.reference,
            details=(lock.base.digest, base.digest),
        )


def _build_flat_locked(
    task: BuildTask, lock: Lock, base: RemoteBase | None, place: Workspace
) -> BuildOutcome:
    """Build flat and without caches: the same bytes on every machine."""
    _require_locked_base(task, lock)
    resolved = msgspec.structs.replace(task.resolved, base=locked_base(task.resolved.base, lock))
    definition = locked_definition(library.render(resolved), lock)
    if base:
        definition = base.definition(definition, resolved.base)
    config = lockfile.fetch_files(lock, resolved, task.log.parent, place.scratch / "locked")
    # The packing sees the first variable; the steps see the others, and no further variables.
    environment = {"SOURCE_DATE_EPOCH": str(lock.epoch)}
    environment |= {
        f"APPTAINERENV_{name}": value for name, value in (ENVIRONMENT | environment).items()
    }
    environment |= base.environment(place) if base else {}
    context = task.context(place)
    try:
        return apptainer.build(
            context, resolved, definition, environment=environment, config=config
        )
    except BuildError as error:
        raise lockfile.explain_failure(error, lock, task.log) from None


def _build_layered(task: BuildTask, base: RemoteBase | None, place: Workspace) -> BuildOutcome:
    resolved, lock = task.resolved, task.lock
    definition = library.render(resolved)
    plan = with_keys(resolved, base.image.digest if base else task.state)
    if base:
        plan = msgspec.structs.replace(plan, base=base.base)
        definition = base.definition(definition, resolved.base)
    locked = None
    if lock:
        _require_locked_base(task, lock)
        target = place.scratch / "locked"
        locked = layered.LockedBuild(
            lock, lambda: lockfile.fetch_files(lock, resolved, task.log.parent, target)
        )
    try:
        return layered.build(
            task.context(place),
            plan,
            definition,
            login=base.environment(place) if base else {},
            fresh=task.options.force,
            locked=locked,
        )
    except BuildError as error:
        raise (lockfile.explain_failure(error, lock, task.log) if lock else error) from None
