"""Build a recipe's image into the store: once at a time, only after changes, completely or not."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from toolkit.errors import BuildError, UsageError
from toolkit.images.builder import methods
from toolkit.images.builder.apptainer.apptainer import BuildOutcome
from toolkit.images.builder.methods import BuildOptions, BuildTask, Engine
from toolkit.images.builder.remote_base import RemoteBase
from toolkit.images.host.mutex import hold_image
from toolkit.images.host.workspace import Workspace, make_directories, require_space, sweep
from toolkit.images.lockfile import files as lockfile
from toolkit.images.lockfile.apply import list_differences
from toolkit.images.recipe import library
from toolkit.images.recipe.bases import LocalImage
from toolkit.images.recipe.image_checks import list_missing, promised_variables
from toolkit.images.recipe.lock import Lock
from toolkit.images.store import sbom, store
from toolkit.images.store.contents import Contents, read_contents
from toolkit.images.store.provenance import (
    add_provenance,
    base_state,
    describe_base,
    find_existing,
    find_manifest,
    hash_lock,
    hash_recipe,
)
from toolkit.images.store.settings import read_variables, user_options
from toolkit.images.store.sif_files import partition_digest
from toolkit.images.verify.own_checks import MOUNTED, ImageRunner, Results
from toolkit.images.verify.verdicts import finish, merged, to_verdict
from toolkit.model.base import Model
from toolkit.model.image import BaseImage, Manifest, Verdict
from toolkit.quoting import shell_words
from toolkit.runtimes.docker import VERSIONS
from toolkit.shell import Progress
from toolkit.units import counted


class BuildResult(Model, frozen=True, kw_only=True):
    """The result of `image build`.

    Attributes:
        path: The path of the SIF.
        manifest: The image's manifest.
        is_current: The image existed already, and its inputs have not changed.
        seconds: The seconds that the build took; 0 if the image existed.
        verdicts: The checks at the end of a build; none if the image existed.
    """

    path: str
    manifest: Manifest
    is_current: bool
    seconds: float = 0.0
    verdicts: tuple[Verdict, ...] = ()


def build(recipe: str, progress: Progress, options: BuildOptions | None = None) -> BuildResult:
    """Build the image of a recipe, unless it exists and its inputs have not changed.

    Args:
        recipe: The name of a shipped recipe, or the path of a ``.toml`` file.
        progress: Shows the steps.
        options: The options of the build.

    Raises:
        UnknownImageError, ConfigError: The recipe is unknown or malformed.
        BusyError: Another process builds it, and ``wait`` is false.
        NoSpaceError, BuildError, NeedsInstallError, ForbiddenError: The build failed.
    """
    options = options or BuildOptions()
    if options.lock and options.engine == "docker":
        raise UsageError(
            "Docker cannot build a lock: it packs no image twice in the same way; use Apptainer",
            place="--engine",
        )
    resolved = library.load(recipe)
    lock = lockfile.read(Path(options.lock), resolved) if options.lock else None
    directory = store.images_directory()
    make_directories(directory)
    with hold_image(
        directory / f"{resolved.name}.sif",
        "built",
        wait=progress if options.wait else None,
        next_step="leave --no-wait out to wait for it",
    ):
        existing = find_existing(directory, resolved.name)
        state = base_state(resolved)
        if existing and not options.force:
            path, manifest = existing
            if (
                manifest.recipe_hash == hash_recipe(resolved, state)
                and manifest.locked == hash_lock(lock)
                and _is_built_by(options.engine, manifest)
            ):
                _complete_existing(directory, path)
                return BuildResult(path=str(path), manifest=manifest, is_current=True)
        for warning in require_space(directory, resolved.space, twice=not options.flat):
            progress.say("warning", warning)
        task = BuildTask(
            resolved=resolved,
            recipe=recipe,
            options=options,
            lock=lock,
            state=state,
            # It is named as the log of a failed build until the build has succeeded, also if no
            # process is left to rename it.
            log=directory / f"{resolved.name}.failed.log",
            expected={**resolved.seconds, **(existing[1].seconds if existing else {})},
            progress=progress,
        )
        task.log.unlink(missing_ok=True)
        try:
            built = methods.run(
                task, lambda outcome, base, place: _finish(task, outcome, base, place)
            )
        except KeyboardInterrupt:
            progress.end("stopped")
            progress.say("stopped", _describe_interruption(task, has_image=existing is not None))
            raise
        if existing:
            _tell_moved_base(existing[1].base, built.manifest.base, progress)
        return built


def _tell_moved_base(before: BaseImage | None, now: BaseImage | None, progress: Progress) -> None:
    """Print that the tag of the base names another image than in the build before."""
    if before is None or now is None or "" in (before.digest, now.digest):
        return
    if before.reference == now.reference and before.digest != now.digest:
        text = f"{now.reference} is {now.digest}, and was {before.digest} in the build before"
        progress.say("base", text)


def _describe_interruption(task: BuildTask, *, has_image: bool) -> str:
    if not task.log.exists():
        return "the image exists and has passed its checks"
    image = "is the one from before" if has_image else "does not exist"
    return f"no process of the build is left; the image {image}; the log: {task.log}"


def _complete_existing(directory: Path, path: Path) -> None:
    """Do the last work of an earlier build that may have been stopped before it."""
    store.settle(path)
    sweep(directory)


def _is_built_by(engine: Engine, manifest: Manifest) -> bool:
    return engine == "auto" or manifest.builder.startswith(VERSIONS) == (engine == "docker")


def _finish(
    task: BuildTask, outcome: BuildOutcome, base: RemoteBase | None, place: Workspace
) -> BuildResult:
    """Verify a built image, and publish it with its manifest and its bill of materials."""
    name, lock = task.resolved.name, task.lock
    outcome.results.frameworks |= _keep_promises(task, outcome, place)
    contents = outcome.contents or read_contents(str(place.sif))
    if lock and (wrong := list_differences(lock, contents)):
        raise BuildError(
            f"the built image of {name} differs from the lock; it is not kept",
            details=wrong,
            next_step=f"the log: {task.log}",
        )
    manifest = _describe(task, outcome, place)
    form = "docker" if outcome.builder.startswith(VERSIONS) else "apptainer"
    current_base = base.image if base else describe_base(task.resolved.base)
    definition = library.render(task.resolved, form)
    manifest = add_provenance(
        manifest, contents, definition, lock.base if lock else current_base, _command(task)
    )
    if lock and outcome.unequal:
        reason = _explain_unequal(lock, outcome.unequal, manifest.tools)
        task.progress.say("differs", reason)
    image = store.StoredImage(name=name, path=str(place.sif), manifest=manifest)
    verdicts = finish(image, task.options.find_site)
    _require_passed(task, verdicts)
    manifest = msgspec.structs.replace(manifest, verified=merged(manifest.verified, verdicts))
    path, manifest = _publish(task, manifest, contents, place)
    seconds = round(sum(outcome.seconds.values()), 1)
    return BuildResult(
        path=str(path), manifest=manifest, is_current=False, seconds=seconds, verdicts=verdicts
    )


def _publish(
    task: BuildTask, manifest: Manifest, contents: Contents, place: Workspace
) -> tuple[Path, Manifest]:
    """Publish an image with its facts.

    What a locked build has of this machine and this hour is noted beside the image, and not in it.
    """
    name, lock = task.resolved.name, task.lock
    sealed = manifest
    if lock:
        sealed = msgspec.structs.replace(
            manifest,
            recipe_hash=library.hash_recipe(task.resolved),
            built=_time(lock.epoch),
            seconds={},
            verified=(),
            products="",
            command=shell_words(["toolkit", "image", "build", name, "--locked"]),
        )
    bill = sbom.cyclonedx(sealed, contents)
    sealed = store.seal(place.sif, sealed, bill, lock.epoch if lock else None)
    manifest = msgspec.structs.replace(manifest, sif_id=sealed.sif_id, size=sealed.size)
    path = store.publish(place.sif, task.log.parent, name, manifest if lock else None)
    task.log.replace(task.log.with_name(f"{name}.log"))
    return path, manifest


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def _keep_promises(task: BuildTask, outcome: BuildOutcome, place: Workspace) -> dict[str, str]:
    """Start the finished image as a user does; return the frameworks that are its base's.

    Raises:
        BuildError: It lacks variables of its recipe or its base, or cannot import a framework that
            the manifest of its base names.
    """
    image, base = str(place.sif), task.resolved.base
    promised = promised_variables(
        outcome.base_variables, task.resolved.variables, task.resolved.path
    )
    wrong = list_missing(promised, read_variables(image, user_options()))
    existing = find_manifest(Path(base.path)) if isinstance(base, LocalImage) else None
    names = set(existing.frameworks if existing else ()) - set(outcome.results.frameworks)
    versions: dict[str, str] = {}
    if names and not wrong:
        words = ["python3", f"{MOUNTED}/imports.py", *sorted(names)]
        result, results = ImageRunner(image, as_user=True).run(words), Results()
        for line in result.stdout.splitlines():
            results.feed(line)
        versions = results.frameworks
        if not result.ok:
            wrong = list(result.tail(1))
    if wrong:
        raise BuildError(
            f"{task.resolved.name} was built, but lacks what its recipe and its base promise; it is"
            " not kept",
            place=base.output().detail,
            details=wrong,
            next_step=f"a step may have removed it; the log: {task.log}",
        )
    return versions


def _require_passed(task: BuildTask, verdicts: Iterable[Verdict]) -> None:
    """Raise if a check of the image failed; a mismatch with this cluster is no fault of the image.

    Raises:
        BuildError: A check failed.
    """
    failed = [verdict for verdict in verdicts if verdict.outcome == "failed" and not verdict.site]
    if failed:
        raise BuildError(
            f"{task.resolved.name} was built, but did not pass {counted(len(failed), 'check')}; it"
            " is not kept",
            place=", ".join(verdict.name for verdict in failed),
            details=[f"{verdict.name}: {verdict.detail}" for verdict in failed],
            next_step=f"the log: {task.log}",
        )


def _describe(task: BuildTask, outcome: BuildOutcome, place: Workspace) -> Manifest:
    """Return the manifest of a built image, without its provenance."""
    lock, results = task.lock, outcome.results
    return Manifest(
        name=task.resolved.name,
        sif_id=store.whole_header(place.sif).sif_id,
        size=place.sif.stat().st_size,
        recipe_hash=hash_recipe(task.resolved, task.state),
        built=_time(time.time()),
        seconds={
            step: task.expected.get(step, 0.0) if step in outcome.cached else seconds
            for step, seconds in outcome.seconds.items()
        },
        frameworks=results.frameworks,
        mpi=tuple(results.mpi),
        builder=outcome.builder,
        verified=tuple(map(to_verdict, results.checks)),
        locked=hash_lock(lock),
        partition=partition_digest(place.sif) if lock else "",
        layers=outcome.layers,
        products=outcome.products,
    )


def _explain_unequal(lock: Lock, names: Iterable[str], tools: Mapping[str, str]) -> str:
    """Return which layers have the locked packages in other bytes, and the likely reason."""
    changes = [
        f"{name} {lock.tools.get(name, 'none')} then, {version} now"
        for name, version in tools.items()
        if lock.tools.get(name) != version
    ]
    reason = "; ".join(changes) or "a step that makes random or machine-dependent files"
    return f"not the locked bytes: {', '.join(names)} ({reason})"


def _command(task: BuildTask) -> list[str]:
    """Return the command that builds the image again."""
    options: list[str] = []
    if task.options.lock == str(lockfile.lock_path(task.recipe)):
        options = ["--locked"]
    elif task.options.lock:
        options = ["--lock-file", task.options.lock]
    elif task.options.flat:
        options = ["--flat"]
    if task.options.engine != "auto":
        options += ["--engine", task.options.engine]
    return ["toolkit", "image", "build", task.recipe, *options]
