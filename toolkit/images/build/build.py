"""From a recipe to an image in the store: once at a time, only when something changed, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

import msgspec

from toolkit import __version__
from toolkit.errors import BuildError, ForbiddenError, UsageError
from toolkit.files import write_atomically
from toolkit.images.build import choice
from toolkit.images.build import host_config as host
from toolkit.images.build.apptainer import apptainer, layered
from toolkit.images.build.apptainer.apptainer import BuildOutcome
from toolkit.images.build.apptainer.cache import WHEELS, Cache
from toolkit.images.build.apptainer.entries import DamagedError
from toolkit.images.build.collect import read_contents
from toolkit.images.build.docker import docker
from toolkit.images.build.fetched import ResolvedBase, resolve_base
from toolkit.images.build.mutex import hold_image
from toolkit.images.build.provenance import add_provenance, describe_base
from toolkit.images.build.reproducible import ENVIRONMENT
from toolkit.images.build.verification import FindSite, finish, no_site, record
from toolkit.images.build.wanted import base_state, find_existing, hash_lock, hash_recipe
from toolkit.images.build.workspace import (
    Workspace,
    require_space,
    scratch_parent,
    sweep,
    workspace,
)
from toolkit.images.lockfile import make as locking
from toolkit.images.lockfile.apply import differences, locked_base, locked_definition
from toolkit.images.recipe import library
from toolkit.images.recipe.bases import LocalImage
from toolkit.images.recipe.chain import chain
from toolkit.images.recipe.resolve import Resolved
from toolkit.images.store import sbom, store
from toolkit.images.store.materials import complete
from toolkit.images.store.sharing import require_writable
from toolkit.images.store.sif_files import normalize, partition_digest
from toolkit.model.base import Model
from toolkit.model.image import Manifest, Verdict
from toolkit.model.lock import Lock
from toolkit.progress import Progress
from toolkit.runtimes.discover.docker_engine import VERSIONS


class BuildResult(Model, frozen=True, kw_only=True):
    """What `image build` came to.

    Attributes:
        path: of the SIF.
        kept: it was there already, and nothing that it is made from has changed.
        seconds: that the build took; 0 where it was kept.
        verdicts: every check that a build ends with; none where it was kept.
    """

    path: str
    manifest: Manifest
    kept: bool
    seconds: float = 0.0
    verdicts: tuple[Verdict, ...] = ()


_OTHER_FILE = "; what is locked is built, but as another file than in layers"
Engine = Literal["auto", "apptainer", "docker"]


class BuildOptions(Model, frozen=True, kw_only=True):
    """How somebody wants it built.

    Attributes:
        force: also where nothing has changed, and with nothing that was kept of earlier builds but what was compiled
            on the very same layers.
        engine: what builds it: ``apptainer``, ``docker``, or ``auto``: the first of these that can.
        flat: packed as one by Apptainer alone, not in layers.
        wait: for somebody else who builds the same image; else give up.
        lock: the lock file that says exactly what to build; None: what there is.
        find_site: returns what the site offers that the image is verified for.
    """

    force: bool = False
    engine: Engine = "auto"
    flat: bool = False
    wait: bool = True
    lock: str | None = None
    find_site: FindSite = no_site


def build(recipe: str, progress: Progress, wish: BuildOptions | None = None) -> BuildResult:
    """Make the image of a recipe be there.

    Args:
        recipe: the name of one that is shipped, or a path to a ``.toml``.
        progress: is told the steps.

    Raises:
        UnknownImageError, ConfigError: of the recipe.
        BusyError: somebody else builds it, and ``wait`` is false.
        NoSpaceError, BuildError, NeedsInstallError, ForbiddenError: of the build.
    """
    wish = wish or BuildOptions()
    if wish.lock and wish.engine == "docker":
        raise UsageError(
            "a locked build is Apptainer's: Docker's packs no image twice in the same way",
            place="--engine",
        )
    resolved = library.load(recipe)
    lock = locking.read(Path(wish.lock), resolved) if wish.lock else None
    directory = store.images_directory()
    _make(directory)
    with hold_image(directory, resolved.name, wait=wish.wait, progress=progress):
        found = find_existing(directory, resolved.name)
        state = base_state(resolved)
        wanted = hash_recipe(resolved, state)
        same = (
            found is not None
            and found[1].recipe_hash == wanted
            and found[1].locked == hash_lock(lock)
        )
        if found and same and _by(wish.engine, found[1]) and not wish.force:
            _settle(directory, *found)
            return BuildResult(path=str(found[0]), manifest=found[1], kept=True)
        for warning in require_space(directory, resolved.space, twice=not wish.flat):
            progress.say("warning", warning)
        task = _Task(
            resolved=resolved,
            recipe=recipe,
            wish=wish,
            lock=lock,
            state=state,
            wanted=wanted,
            # Until it is known to have worked, it is the log of a build that has not: also when
            # nobody is left to rename it.
            log=directory / f"{resolved.name}.failed.log",
            expected={**resolved.seconds, **(found[1].seconds if found else {})},
        )
        task.log.unlink(missing_ok=True)
        try:
            return _build(task, progress)
        except KeyboardInterrupt:
            progress.end("stopped")
            if task.log.exists():
                still = "is the one from before" if found else "is not there"
                progress.say(
                    "stopped", f"nothing runs any more; the image {still}; left: {task.log}"
                )
            else:
                progress.say(
                    "stopped",
                    f"the image is there, but not all checks were made: toolkit image verify {resolved.name}",
                )
            raise


def _settle(directory: Path, path: Path, manifest: Manifest) -> None:
    """Nothing has to be built; but the build before may have been stopped when only its last words were missing."""
    store.settle(path, manifest)
    sweep(directory)
    image = store.FoundImage(name=manifest.name, path=str(path), manifest=manifest)
    complete(image)
    if not manifest.pythons:
        record(image, ())


@dataclass(frozen=True)
class _Task:
    """One build that has to be done.

    Attributes:
        recipe: as somebody named it.
        state: of a base that lies on this machine: which one it is.
        wanted: the hash that the manifest gets.
        expected: seconds that each step is likely to take.
    """

    resolved: Resolved
    recipe: str
    wish: BuildOptions
    lock: Lock | None
    state: str
    wanted: str
    log: Path
    expected: dict[str, float]


def _by(engine: Engine, manifest: Manifest) -> bool:
    """Whether it was built by the engine that is wished for now."""
    return engine == "auto" or manifest.builder.startswith(VERSIONS) == (engine == "docker")


def _make(directory: Path) -> None:
    for one in (directory, scratch_parent(directory)):
        try:
            one.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ForbiddenError(
                f"the directory {one} cannot be made: {error.strerror}",
                next_step="set TOOLKIT_IMAGES to a directory of your own",
            ) from None
        require_writable(one)


def _build(task: _Task, progress: Progress) -> BuildResult:
    """By the first way that works here."""
    directory = task.log.parent
    base = resolve_base(task.resolved.base, exactly=task.lock.base.digest if task.lock else "")
    if not task.lock and choice.choose_engine(task.wish.engine, progress) == "docker":
        with workspace(directory) as place:
            return _finished(task, _by_docker(task, base, place, progress), base, place, progress)
    if not task.wish.flat:
        try:
            return _in_layers(task, base, progress)
        except layered.LayersUnavailableError as error:
            progress.say(
                "flat", f"no layers on this machine: {error}{_OTHER_FILE if task.lock else ''}"
            )
    with workspace(directory) as place:
        return _finished(task, _flat(task, base, place, progress), base, place, progress)


def _in_layers(task: _Task, base: ResolvedBase | None, progress: Progress) -> BuildResult:
    """In layers; once more where something that was kept turns out to be damaged, which is gone then."""
    while True:
        try:
            with workspace(task.log.parent) as place:
                return _finished(task, _layered(task, base, place, progress), base, place, progress)
        except DamagedError as error:
            progress.say("damaged", f"in the caches: {error}; it is made again")


def _flat(
    task: _Task, base: ResolvedBase | None, place: Workspace, progress: Progress
) -> BuildOutcome:
    progress.say(
        "warning",
        "Apptainer does not confine the steps of a flat build: they can read what you can read on this machine",
    )
    if task.lock:
        return _flat_locked(task, task.lock, base, place, progress)
    with _compiled(task, base) as wheels:
        definition, login = library.rendered(task.resolved), base.environment if base else {}
        definition = base.definition(definition, task.resolved.base) if base else definition
        return apptainer.build(
            task.resolved,
            definition,
            place,
            task.log,
            progress,
            task.expected,
            environment=login,
            wheels=wheels,
        )


@contextmanager
def _compiled(task: _Task, base: ResolvedBase | None) -> Iterator[Path | None]:
    """What was compiled before for the same steps, if it is kept; the checks of the image tell whether it fits."""
    key = chain(
        library.staged(task.resolved), base.image.digest if base else task.state
    ).products_key
    cache = Cache(task.log.parent)
    with cache.used():
        kept = cache.use(WHEELS, key) if key and not task.wish.force else None
        yield Path(kept.path) if kept else None


def _by_docker(
    task: _Task, base: ResolvedBase | None, place: Workspace, progress: Progress
) -> BuildOutcome:
    definition = library.rendered(task.resolved, "docker")
    with _compiled(task, base) as wheels:
        return docker.build(
            task.resolved,
            definition,
            place,
            task.log,
            progress,
            task.expected,
            base=base,
            wheels=wheels,
            fresh=task.wish.force,
        )


def _require_base(task: _Task, lock: Lock) -> None:
    """Refuse to build upon another file than was locked.

    Raises:
        BuildError: the base is another.
    """
    base = describe_base(task.resolved.base, digest=True)
    if isinstance(task.resolved.base, LocalImage) and base.digest != lock.base.digest:
        raise BuildError(
            f"the base of {lock.name} is another than was locked",
            place=base.reference,
            details=(lock.base.digest, base.digest),
        )


def _flat_locked(
    task: _Task, lock: Lock, fetched_base: ResolvedBase | None, place: Workspace, progress: Progress
) -> BuildOutcome:
    """Flat and with nothing that was kept: the same bytes on every machine, whatever it built before."""
    _require_base(task, lock)
    resolved = msgspec.structs.replace(task.resolved, base=locked_base(task.resolved.base, lock))
    definition = locked_definition(library.rendered(resolved), lock)
    if fetched_base:
        definition = fetched_base.definition(definition, resolved.base)
    with host.override_host_config(
        locking.bring(lock, resolved, task.log.parent, place.scratch / "locked")
    ):
        try:
            # The first is for what packs, the others for the steps, which see nothing else of an
            # environment.
            environment = {"SOURCE_DATE_EPOCH": str(lock.epoch)}
            environment |= {
                f"APPTAINERENV_{name}": value for name, value in (ENVIRONMENT | environment).items()
            }
            environment |= fetched_base.environment if fetched_base else {}
            return apptainer.build(
                resolved,
                definition,
                place,
                task.log,
                progress,
                task.expected,
                environment=environment,
            )
        except BuildError as error:
            raise locking.explained(error, lock, task.log) from None


def _layered(
    task: _Task, base: ResolvedBase | None, place: Workspace, progress: Progress
) -> BuildOutcome:
    resolved, definition = task.resolved, library.rendered(task.resolved)
    links, login = (
        chain(library.staged(resolved), base.image.digest if base else task.state),
        base.environment if base else {},
    )
    if base:
        links, definition = (
            msgspec.structs.replace(links, base=base.base),
            base.definition(definition, resolved.base),
        )
    lock = task.lock
    if lock is None:
        return layered.build(
            resolved.name,
            links,
            definition,
            place,
            task.log,
            progress,
            task.expected,
            login=login,
            fresh=task.wish.force,
        )
    _require_base(task, lock)
    locked = layered.LockedBuild(
        lock, lambda: locking.bring(lock, resolved, task.log.parent, place.scratch / "locked")
    )
    try:
        return layered.build(
            resolved.name,
            links,
            definition,
            place,
            task.log,
            progress,
            task.expected,
            login=login,
            fresh=task.wish.force,
            locked=locked,
        )
    except BuildError as error:
        raise locking.explained(error, lock, task.log) from None


def _finished(
    task: _Task,
    outcome: BuildOutcome,
    fetched_base: ResolvedBase | None,
    place: Workspace,
    progress: Progress,
) -> BuildResult:
    """What was built becomes the image, with what is known of it."""
    name, lock = task.resolved.name, task.lock
    found = outcome.contents or read_contents(str(place.sif))
    if lock and (wrong := differences(lock, found)):
        raise BuildError(
            f"what was built of {name} is not what is locked; it is not kept",
            details=wrong,
            next_step=f"the log: {task.log}",
        )
    manifest = Manifest(
        name=name,
        sif_id=normalize(place.sif, lock.epoch) if lock else store.whole_header(place.sif).sif_id,
        size=place.sif.stat().st_size,
        recipe_hash=task.wanted,
        built=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        seconds={
            step: task.expected.get(step, 0.0) if step in outcome.kept else passed
            for step, passed in outcome.seconds.items()
        },
        frameworks=outcome.results.frameworks,
        mpi=tuple(outcome.results.mpi),
        builder=outcome.builder,
        checks=tuple(outcome.results.checks),
        locked=hash_lock(lock),
        partition=partition_digest(place.sif) if lock else "",
        layers=outcome.layers,
        products=outcome.products,
    )
    base = (
        lock.base
        if lock
        else fetched_base.image
        if fetched_base
        else describe_base(task.resolved.base)
    )
    form = "docker" if outcome.builder.startswith(VERSIONS) else "apptainer"
    manifest = add_provenance(
        manifest, found, library.rendered(task.resolved, form), base, _command(task)
    )
    if lock and outcome.unequal:
        progress.say("differs", _why_unequal(lock, outcome.unequal, manifest.tools))
    path = store.publish(place.sif, manifest, task.log.parent)
    task.log.replace(task.log.with_name(f"{name}.log"))
    with ThreadPoolExecutor(1) as beside:  # most of looking at the image is waiting for it
        bill = beside.submit(sbom.cyclonedx, manifest, found, __version__)
        image = store.FoundImage(name=name, path=str(path), manifest=manifest)
        verdicts = finish(image, task.wish.find_site)
        write_atomically(path.with_name(f"{name}{sbom.ENDING}"), bill.result())
    seconds = round(sum(outcome.seconds.values()), 1)
    return BuildResult(
        path=str(path), manifest=manifest, kept=False, seconds=seconds, verdicts=verdicts
    )


def _why_unequal(lock: Lock, names: Iterable[str], tools: Mapping[str, str]) -> str:
    """What of an image holds what is locked, but not in the same bytes, and the likely reason."""
    other = [
        f"{name} {lock.tools.get(name, 'none')} then, {version} now"
        for name, version in tools.items()
        if lock.tools.get(name) != version
    ]
    why = "; ".join(other) or "a step that makes random or machine-dependent files"
    return f"not the bytes that were locked: {', '.join(names)} ({why})"


def _command(task: _Task) -> list[str]:
    """By which it is built again."""
    own = task.wish.lock == str(locking.lock_path(task.recipe))
    locked = ["--locked"] if own else ["--lock-file", str(task.wish.lock)]
    options = locked if task.wish.lock else ["--flat"] if task.wish.flat else []
    options += ["--engine", task.wish.engine] if task.wish.engine != "auto" else []
    return ["toolkit", "image", "build", task.recipe, *options]
