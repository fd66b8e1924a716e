"""Build in layers: a base that is packed once, and the changes of each step, which are cached.

Only the steps from the first changed one on run again; the image is composed of the base and the
layers without packing any of them again: ``images/sif/squashfs`` says how, and why not otherwise.
A machine that does not let a user mount overlays builds flat images.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path

from toolkit import shell
from toolkit.errors import NO_SPACE, ToolkitError
from toolkit.images.builder.apptainer import compose, identity
from toolkit.images.builder.apptainer.apptainer import BuildOutcome, build_base
from toolkit.images.builder.apptainer.collector import Collector
from toolkit.images.builder.apptainer.entries import Entries
from toolkit.images.builder.apptainer.programs import (
    LAYER_PACKING,
    PASSING,
    SKIPPED,
    STEP_SCRIPTS,
    STEPS,
    SYSTEM_PATH,
    prepare_end,
    program_version,
    run_image_checks,
    run_sandbox,
    write_step_config,
)
from toolkit.images.builder.apptainer.protocol import Lower, SandboxTasks
from toolkit.images.builder.apptainer.tasks import SCRIPTS, TaskPlan, needs_products, plan_tasks
from toolkit.images.builder.follow import LAST_STEPS, BuildContext
from toolkit.images.host import host_config
from toolkit.images.host.host_mounts import Bind, HostConfig
from toolkit.images.host.privilege import build_command
from toolkit.images.host.remove import remove
from toolkit.images.recipe.chain import Chain
from toolkit.images.recipe.lock import Lock
from toolkit.images.recipe.reproducible import ENVIRONMENT, EPOCH
from toolkit.images.sif import header as sif
from toolkit.images.store.cache import Cache, CacheEntry
from toolkit.images.store.contents import Contents, read_contents
from toolkit.images.store.settings import inspect, parse_inspection, read_variables
from toolkit.images.store.sif_files import read_text_object


@dataclass(frozen=True)
class LockedBuild:
    """The additional inputs of a locked build.

    Attributes:
        lock: The lock.
        fetch: Fetches the locked packages, and returns the host configuration that offers them;
            called only if a step has to run.
    """

    lock: Lock
    fetch: Callable[[], HostConfig]


def build(
    context: BuildContext,
    chain: Chain,
    definition: str,
    *,
    login: Mapping[str, str] | None = None,
    fresh: bool = False,
    locked: LockedBuild | None = None,
) -> BuildOutcome:
    """Build the context's ``place.sif``, but only what changed; errors as of ``apptainer.build``.

    Args:
        context: The place and the reports of this build.
        chain: The recipe's steps with their keys.
        definition: The recipe's definition.
        login: Further variables for Apptainer to fetch the base.
        fresh: Run every step and replace the cache entries; only what was compiled on exactly the
            same layers is used again.
        locked: Build exactly what a lock says.

    Raises:
        DamagedError: A cache entry was damaged; it is removed, and the next build makes it again.
    """
    run = LayeredBuild(context, chain, definition, fresh, locked)
    try:
        with run.entries.cache.used():
            run.prepare_base(login)
            run.run_steps()
            run.compose()
            run.check()
    except Exception as error:
        run.entries.check()  # a damaged entry explains any failure
        if not isinstance(error, OSError):
            raise
        run.follower.reader.no_space |= error.errno in NO_SPACE
        raise run.follower.error(error.errno or 1) from None
    finally:
        if run.copier:
            run.copier.close()
    run.follower.end()
    return run.outcome()


class LayeredBuild:
    """One build, step by step."""

    def __init__(
        self,
        context: BuildContext,
        chain: Chain,
        definition: str,
        fresh: bool,
        locked: LockedBuild | None,
    ) -> None:
        self.program = build_command().program
        self.place, self.chain, self.definition = context.place, chain, definition
        self.locked = locked
        lock = locked.lock if locked else None
        self.entries = Entries(Cache(context.log.parent), chain, lock, fresh=fresh)
        details = {link.name: link.detail for link in (*chain.links, *chain.build)}
        details |= {"base": chain.base.output().detail, **LAST_STEPS}
        self._host_config = host_config.collect_host_config()
        secrets = host_config.collect_secrets(self._host_config)
        self.follower = context.follower(details, secrets)
        self.builder = ""
        self.cached: list[str] = []
        self.copier: compose.Copier | None = None
        self.contents: Contents | None = None
        self.base_variables: dict[str, str] = {}
        threading.Thread(target=prepare_end, daemon=True).start()

    def outcome(self) -> BuildOutcome:
        """Return the outcome."""
        return BuildOutcome(
            self.follower.reader.results,
            self.builder,
            self.follower.seconds,
            tuple(self.cached),
            self.contents,
            self.base_variables or read_variables(self.entries.used[0].path),
            layers=self.entries.layers,
            products=self.entries.products,
            unequal=tuple(self.entries.unequal),
        )

    def prepare_base(self, login: Mapping[str, str] | None) -> None:
        """Take or build the base, and begin to copy its data."""
        entry = self.entries.take_next()
        if entry:
            self._reuse("base")
        else:
            self.follower.begin("base")
            made, began = self.place.output / "base.sif", int(time.time()) - 1
            build_base(self.chain.base, self.place, made, self.follower, environment=login)
            compose.normalize_times(made, began, EPOCH)
            entry = self.entries.keep_next(made, inspect(made)["labels"])
        self.copier = compose.Copier(self.place.sif)
        self.copy(entry)

    def _reuse(self, step: str) -> None:
        self.follower.reuse(step)
        self.cached.append(step)

    def run_steps(self) -> None:
        """Take every cached layer, and make the layers from the first that is not cached on."""
        while len(self.layers) < len(self.chain.links):
            name = self.entries.next_name
            entry = self.entries.take_next()
            if entry is None:
                break
            self._reuse(name)
            self.copy(entry)
        if needs_products(self.chain, len(self.layers)) and self.entries.may_have_products():
            # Only on these layers is it known whether what was compiled before fits.
            self._run(until=len(self.chain.common))
        self._run(until=len(self.chain.links))

    @property
    def layers(self) -> list[CacheEntry]:
        """The layers so far."""
        return self.entries.used[1:]

    def _run(self, until: int) -> None:
        """Run the steps up to a number, if there are any."""
        cached = len(self.layers)
        if cached >= until:
            return
        compiled = None
        if until > len(self.chain.common) and needs_products(self.chain, cached):
            compiled = self._take_products()
        products = (
            compiled.path if compiled else str(_make(self.place.output / f"products-{until}"))
        )
        seed = self.entries.take_seed() if until == len(self.chain.links) else None
        plan = plan_tasks(
            self.chain,
            cached,
            directory=str(_make(self.place.output / f"layers-{until}")),
            products=products,
            compiled=compiled is not None,
            until=until,
            seed_below=seed[1] if seed else 0,
        )
        collector = Collector(self, plan, Path(products))
        tasks = self._sandbox_tasks(plan, until, seed[0] if seed else None)
        code = run_sandbox(tasks, self.place, self.follower, collector.collect)
        collector.collect()
        if code != 0:
            raise self.follower.error(code)

    def _take_products(self) -> CacheEntry | None:
        """Take what was compiled before on exactly the current layers."""
        if len(self.layers) < len(self.chain.common):
            return None  # a step that runs again may install another version to compile against
        entry = self.entries.take_products()
        for link in self.chain.build if entry else ():
            self._reuse(link.name)
        return entry

    def copy(self, entry: CacheEntry) -> None:
        """Copy the data of the base or of a layer to the image."""
        assert self.copier
        self.copier.append(*compose.data_range(entry.path))

    @cached_property
    def _binds(self) -> tuple[Bind, ...]:
        """The mounts of the host that the steps see."""
        config = self.locked.fetch() if self.locked else self._host_config
        return write_step_config(config, self.place, self.chain)

    def _sandbox_tasks(self, plan: TaskPlan, until: int, seed: CacheEntry | None) -> SandboxTasks:
        binds, scripts = self._binds, self.place.output / f"host/{SCRIPTS}"
        for name, text in plan.scripts.items():
            (scripts / name).write_text(text, encoding="utf-8")
        paths = [entry.path for entry in (*self.entries.used, *([seed] if seed else []))]
        lowers = [Lower(path=path, offset=compose.open_squashfs(path)[0]) for path in paths]
        return SandboxTasks(
            directory=str(_make(self.place.scratch / f"{STEPS}-{until}")),
            lowers=tuple(lowers),
            tasks=tuple(plan.tasks),
            binds=binds,
            environment={
                "PATH": SYSTEM_PATH,
                "HOME": "/root",
                "LC_ALL": "C.UTF-8",
                **ENVIRONMENT,
                **host_config.proxies(),
            },
            byte_code=f"{STEP_SCRIPTS}/byte-code",
            changed=str(scripts / "changed"),
            passing=f"{STEP_SCRIPTS}/{PASSING}",
            skipped=str(scripts / SKIPPED),
            pack=("mksquashfs",),
            packing=LAYER_PACKING,
        )

    def compose(self) -> None:
        """Compose the image of its layers."""
        assert self.copier
        self.follower.begin("pack")
        base = self.entries.used[0]
        tables = compose.graft_layers(self.entries.cache, base, self.layers, self.place.output)
        self.builder = program_version(self.program)
        lock = self.locked.lock if self.locked else None
        now = datetime.fromtimestamp(lock.epoch if lock else time.time(), timezone.utc)
        machine = platform.machine()
        labels = identity.labels(self.definition, base.note.facts, self.builder, machine, now)
        layer = self.place.output / "identity.sqfs"
        directory = self.place.output / "identity"
        directory.mkdir(mode=0o755)
        environment = parse_inspection(read_text_object(Path(base.path), sif.LABELS))["environment"]
        metadata = identity.write(directory, self.definition, labels, self.chain.files, environment)
        shell.run(["mksquashfs", directory, layer, *LAYER_PACKING, "-all-root"])
        compose.graft_file(tables, str(layer), only_adds=True)
        self.copier.append(*compose.data_range(str(layer)))
        compose.finish(self.copier, tables, self.definition, metadata, int(now.timestamp()))
        self.entries.check()

    def check(self) -> None:
        """Run the checks of the finished image, beside other work at the end of a build."""
        self.follower.begin("checks")
        threads = [
            threading.Thread(target=task, daemon=True) for task in (self._ask_contents, self._tidy)
        ]
        for thread in threads:
            thread.start()
        code = run_image_checks(self.program, self.place, self.follower)
        for thread in threads:
            thread.join()
        if code != 0:
            raise self.follower.error(code)

    def _ask_contents(self) -> None:
        with suppress(ToolkitError):  # who needs them asks again, and reports the error
            self.contents = read_contents(str(self.place.sif))
            self.base_variables = read_variables(self.entries.used[0].path)

    def _tidy(self) -> None:
        """Remove what the steps wrote, which is in the image now."""
        for directory in self.place.scratch.glob(f"{STEPS}-*"):
            remove(directory)


def _make(directory: Path) -> Path:
    directory.mkdir()
    return directory
