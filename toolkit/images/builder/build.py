"""Build a recipe's image into the store: once at a time, only after changes, completely or not."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from toolkit import shell
from toolkit.errors import BuildError, ForbiddenError, UsageError
from toolkit.images.builder.apptainer import apptainer, layered
from toolkit.images.builder.apptainer.apptainer import BuildOutcome
from toolkit.images.builder.apptainer.programs import why_no_layers
from toolkit.images.builder.follow import Follower
from toolkit.images.builder.remote_base import BuildTask, resolve_base
from toolkit.images.host.host_config import collect_host_config
from toolkit.images.host.mutex import hold_image
from toolkit.images.host.workspace import make_directories, require_space, sweep, workspace
from toolkit.images.lockfile import files as lockfile
from toolkit.images.lockfile.apply import list_differences
from toolkit.images.recipe import library
from toolkit.images.recipe.bases import LocalImage
from toolkit.images.recipe.block import CheckCall
from toolkit.images.recipe.image_checks import (
    list_missing,
    list_modules,
    promised_variables,
    runner,
)
from toolkit.images.recipe.plan import with_keys
from toolkit.images.recipe.quoting import quote_words
from toolkit.images.store import sbom, store
from toolkit.images.store.cache import Cache
from toolkit.images.store.contents import (
    SCRIPT,
    Contents,
    require_contents,
)
from toolkit.images.store.provenance import (
    base_state,
    describe_base,
    expected_hash,
    find_manifest,
    hash_lock,
    tool_versions,
)
from toolkit.images.store.sif_files import partition_digest
from toolkit.images.verify.case import local_case
from toolkit.images.verify.own_checks import MOUNTED, OWN_CHECKS, start_image
from toolkit.images.verify.verdicts import FindSite, merged, no_site, to_verdict
from toolkit.images.verify.verdicts import verdicts as check_image
from toolkit.model.base import Model
from toolkit.model.image import Manifest, Verdict
from toolkit.quoting import shell_words
from toolkit.shell import Progress
from toolkit.units import counted

Engine = Literal["apptainer", "docker"]


class BuildOptions(Model, frozen=True, kw_only=True):
    """Options of one image build.

    Attributes:
        force: Build even if nothing has changed, without cached results except for what was
            compiled on exactly the same layers.
        engine: The engine that builds.
        flat: Pack the image as one by Apptainer alone, not in layers.
        lock: The lock file that says exactly what to build; None for the current versions.
        find_site: Returns what the site offers that the image is verified for.
    """

    force: bool = False
    engine: Engine = "apptainer"
    flat: bool = False
    lock: str | None = None
    find_site: FindSite = no_site


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
        NoSpaceError, BuildError, NeedsInstallError, ForbiddenError: The build failed.
    """
    options = options or BuildOptions()
    if options.lock and options.engine == "docker":
        raise UsageError(
            "Docker cannot build a lock: it packs no image twice in the same way; use Apptainer",
            place="--engine",
        )
    plan = library.load(recipe)
    lock = lockfile.read(Path(options.lock), plan) if options.lock else None
    directory = store.images_directory()
    make_directories(directory)
    path = directory / f"{plan.name}.sif"
    with hold_image(path, "built", wait=progress):
        existing = find_manifest(path)
        recipe_hash = expected_hash(plan)
        if existing and not options.force:
            inputs = (existing.recipe_hash, existing.locked)
            if inputs == (recipe_hash, hash_lock(lock)):
                store.settle(path)  # an earlier build may have been stopped before it
                sweep(directory)
                return BuildResult(path=str(path), manifest=existing, is_current=True)
        times = 1 if options.flat else 2  # the layers of an image stay in the cache
        require_space(directory, replace(plan.space, image=times * plan.space.image))
        draft = Manifest(
            name=plan.name,
            sif_id="",
            size=0,
            built="",
            recipe_hash=recipe_hash,
            locked=hash_lock(lock),
            seconds={**plan.seconds, **(existing.seconds if existing else {})},
            command=shell_words(_command(recipe, options)),
        )
        # It is named as the log of a failed build until the build has succeeded, also if no
        # process is left to rename it.
        log = directory / f"{plan.name}.failed.log"
        log.unlink(missing_ok=True)
        try:
            # A build that is ended politely removes its directories.
            with shell.interrupted_by_signals():
                base = resolve_base(plan.base, digest=lock.base.digest if lock else "")
                plan = with_keys(plan, base.image.digest if base else base_state(plan))
                with workspace(directory) as place:
                    follower = Follower(plan.name, log, progress, draft.seconds)
                    task = BuildTask(plan, base, lock, place, follower, options.force)
                    outcome = _run(task, progress, options.engine, flat=options.flat)
                    built = _finish(task, outcome, draft, progress, options.find_site)
        except KeyboardInterrupt:
            progress.end("stopped")
            shown = f"; the log: {log}" if log.exists() else ""
            progress.say("stopped", f"no process of the build is left{shown}")
            raise
        before, now = existing.base if existing else None, built.manifest.base
        if before and now and before.reference == now.reference and before.digest != now.digest:
            text = f"{now.reference} is {now.digest}, and was {before.digest} in the build before"
            progress.say("base", text)
        return built


def _run(task: BuildTask, progress: Progress, engine: Engine, *, flat: bool) -> BuildOutcome:
    """Build the task's ``place.sif`` in layers, unless ``flat``, the engine or the machine says no.

    Raises:
        BuildError, NoSpaceError, NeedsInstallError, ForbiddenError: The build failed.
    """
    if engine == "docker":
        from toolkit.images.builder import docker  # most builds take no part of it

        return docker.build(task)
    lock, plan = task.lock, task.plan
    reason = "as asked for" if flat else why_no_layers(task.place, task.follower)
    if reason and lock:
        raise ForbiddenError("a lock is built in layers only", details=(reason,))
    if reason:
        text = f"{reason}: Apptainer does not confine the steps, which can do what you can do"
        progress.say("flat", text)
        place, follower = task.place, task.follower
        with Cache(place.images).used():  # a base that is a definition is in it
            return apptainer.build(place, follower, task.exact(), task.definition(), task.login())
    if lock is None:
        return layered.build(task, collect_host_config())
    base = task.base.image if task.base else describe_base(plan.base, digest=True)
    if base.digest and base.digest != lock.base.digest:
        raise BuildError(
            f"the base of {lock.name} differs from the locked one",
            place=base.reference,
            details=(lock.base.digest, base.digest),
        )
    try:
        return layered.build(task, collect_host_config())
    except BuildError as error:
        raise lockfile.explain_failure(error, lock, task.follower.log) from None


def _finish(
    task: BuildTask,
    outcome: BuildOutcome,
    draft: Manifest,
    progress: Progress,
    find_site: FindSite,
) -> BuildResult:
    """Verify a built image, and publish it with its manifest and its bill of materials.

    Args:
        task: The build.
        outcome: Its outcome.
        draft: What the manifest says of the build before it begins.
        progress: Shows what differs from the lock.
        find_site: As of ``BuildOptions``.
    """
    name, lock, sif = task.plan.name, task.lock, str(task.place.sif)
    contents = _run_checks(task)
    _require_promised(task, outcome.variables, contents)
    manifest = replace(_describe(task, outcome, draft), tools=tool_versions(outcome.builder))
    image = store.StoredImage(name=name, path=sif, manifest=manifest)
    site, reason = find_site()
    case = local_case(image, site=site, no_site=reason)
    case.contents, case.results = contents, task.follower.reader.results
    verdicts = (*manifest.verified, *check_image(case, at_build=True))
    if lock and (wrong := list_differences(lock, contents)):
        raise BuildError(
            f"the built image of {name} differs from the lock; it is not kept",
            details=wrong,
            next_step=f"the log: {task.follower.log}",
        )
    if lock and outcome.unequal:
        progress.say("differs", f"not the locked bytes: {', '.join(outcome.unequal)}")
    _require_passed(task, verdicts)
    manifest = replace(
        manifest,
        verified=merged(manifest.verified, verdicts),
        packages=contents.packages,
        pythons=contents.pythons,
        programs=contents.programs,
        system=contents.system,
        horovod=contents.horovod,
    )
    outcome.keep()
    path, manifest = _publish(task, manifest, contents)
    seconds = round(sum(task.follower.seconds.values()), 1)
    return BuildResult(
        path=str(path), manifest=manifest, is_current=False, seconds=seconds, verdicts=verdicts
    )


def _publish(task: BuildTask, manifest: Manifest, contents: Contents) -> tuple[Path, Manifest]:
    """Publish an image with its facts.

    What a locked build has of this machine and this hour is noted beside the image, and not in it.
    """
    name, lock, sif, log = task.plan.name, task.lock, task.place.sif, task.follower.log
    sealed = manifest
    if lock:
        sealed = replace(
            manifest,
            recipe_hash=library.hash_recipe(task.plan),
            built=_time(lock.epoch),
            seconds={},
            verified=(),
            command=shell_words(["toolkit", "image", "build", name, "--locked"]),
        )
    bill = sbom.cyclonedx(sealed, contents)
    sealed = store.seal(sif, sealed, bill, lock.epoch if lock else None)
    manifest = replace(manifest, sif_id=sealed.sif_id, size=sealed.size)
    path = store.publish(sif, task.place.images, name, manifest if lock else None)
    log.replace(log.with_name(f"{name}.log"))
    return path, manifest


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def _run_checks(task: BuildTask) -> Contents:
    """Start the finished image, once: list its contents, and run its checks.

    A base that is an image of this machine may bring frameworks of which no step knows.

    Raises:
        BuildError: A check failed, or the image does not run.
    """
    image, plan, follower = str(task.place.sif), task.plan, task.follower
    existing = find_manifest(Path(plan.base.path)) if isinstance(plan.base, LocalImage) else None
    names = set(existing.frameworks if existing else ()) - {*list_modules(plan.steps)}
    call = CheckCall(
        name="base-imports", command=f"imports.py {quote_words(sorted(names))}", is_python=True
    )
    of_base = (runner((call,), (), MOUNTED),) if names else ()
    follower.begin("checks")
    scripts = (*of_base, SCRIPT, OWN_CHECKS)
    code = follower.follow(*start_image(image, *scripts, action="run"))
    if code != 0:
        raise follower.error(code)
    follower.end()
    contents = require_contents(image, follower.reader.results.listed, follower.reader.tail)
    if "PATH" not in contents.variables:  # Apptainer sets it; its users may not run `cat`
        reason = "the image could not list its variables"
        raise BuildError(reason, place=image, details=tuple(contents.variables))
    return contents


def _require_promised(task: BuildTask, base: Mapping[str, str], contents: Contents) -> None:
    """Refuse an image that lacks variables of its recipe or of its base.

    Raises:
        BuildError: It does.
    """
    plan = task.plan
    wrong = list_missing(promised_variables(base, plan.variables, plan.path), contents.variables)
    if wrong:
        raise BuildError(
            f"{plan.name} was built, but lacks what its recipe and its base promise; it is not"
            " kept",
            place=plan.base.output().detail,
            details=wrong,
            next_step=f"a step may have removed it; the log: {task.follower.log}",
        )


def _require_passed(task: BuildTask, verdicts: Iterable[Verdict]) -> None:
    """Raise if a check of the image failed; a mismatch with this cluster is no fault of the image.

    Raises:
        BuildError: A check failed.
    """
    failed = [verdict for verdict in verdicts if verdict.outcome == "failed" and not verdict.site]
    if failed:
        count = counted(len(failed), "check")
        raise BuildError(
            f"{task.plan.name} was built, but did not pass {count}; it is not kept",
            place=", ".join(verdict.name for verdict in failed),
            details=[f"{verdict.name}: {verdict.detail}" for verdict in failed],
            next_step=f"the log: {task.follower.log}",
        )


def _describe(task: BuildTask, outcome: BuildOutcome, draft: Manifest) -> Manifest:
    plan, lock, sif, results = task.plan, task.lock, task.place.sif, task.follower.reader.results
    base = task.base.image if task.base else describe_base(plan.base)
    return replace(
        draft,
        sif_id=store.whole_header(sif).sif_id,
        size=sif.stat().st_size,
        built=_time(time.time()),
        seconds={
            step: draft.seconds.get(step, 0.0) if step in outcome.cached else seconds
            for step, seconds in task.follower.seconds.items()
        },
        frameworks=results.frameworks,
        mpi=tuple(results.mpi),
        gpu_code=results.gpu_code,
        builder=outcome.builder,
        verified=tuple(map(to_verdict, results.checks)),
        partition=partition_digest(sif) if lock else "",
        layers=outcome.layers,
        base=lock.base if lock else base,
    )


def _command(recipe: str, options: BuildOptions) -> list[str]:
    words = ["toolkit", "image", "build", recipe]
    words += ["--lock-file", options.lock] if options.lock else []
    words += ["--flat"] if options.flat else []
    return [*words, "--engine", "docker"] if options.engine == "docker" else words
