"""Build in layers: a base that is packed once, and the changes of each step, which are cached.

Only the steps from the first changed one on run again; the image is composed of the base and the
layers without packing any of them again: ``images/sif/README.md`` says how, and why not otherwise.
A machine that does not let a user mount overlays builds flat images.

A cached entry is used when its key fits: the step, and all before it, are unchanged. A lock also
names the digest of every layer. So a locked build uses an entry of any earlier build that has
exactly these bytes, on layers that have the locked bytes, too; what it has to make itself is kept
under a key of the lock. The caches are trusted as the images beside them are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from threading import Event

from toolkit import shell
from toolkit.errors import NO_SPACE
from toolkit.images.builder.apptainer import compose
from toolkit.images.builder.apptainer.apptainer import BUILD_DATE, BuildOutcome, make_base
from toolkit.images.builder.apptainer.programs import (
    LAYER_PACKING,
    SHELL,
    STEP_SCRIPTS,
    SYSTEM_PATH,
    program_version,
    run_step,
    write_step_config,
)
from toolkit.images.builder.apptainer.sandbox import Lower, SandboxStep
from toolkit.images.builder.follow import LAST_STEPS
from toolkit.images.builder.remote_base import BuildTask
from toolkit.images.host import host_config
from toolkit.images.host.host_config import HostConfig
from toolkit.images.host.kernel import Bind
from toolkit.images.lockfile.files import fetch_files
from toolkit.images.recipe import library
from toolkit.images.recipe.apptainer_def import metadata
from toolkit.images.recipe.block import HOST_WHEELS, WHEELS
from toolkit.images.recipe.digests import hash_texts
from toolkit.images.recipe.plan import Step
from toolkit.images.recipe.reproducible import ENVIRONMENT
from toolkit.images.sif.tables import Tables
from toolkit.images.store import cache as caches
from toolkit.images.store.cache import Cache, CacheEntry
from toolkit.images.store.contents import VARIABLES, read_contents
from toolkit.images.store.provenance import hash_lock
from toolkit.images.store.settings import inspect
from toolkit.model.image import Layer


def build(task: BuildTask, host: HostConfig) -> BuildOutcome:
    """Build the task's ``place.sif``, but only what changed; errors as of ``make_base``.

    Args:
        task: The build. If it is fresh, every step runs and replaces the cache entries; only what
            was compiled on exactly the same layers is used again.
        host: The host configuration that the steps see, unless there is a lock.
    """
    run, over = _LayeredBuild(task, host), Event()
    try:
        with run.cache.used(), ThreadPoolExecutor(1) as pool:
            run.copy = lambda path: pool.submit(compose.append, task.place.sif, path, over)
            try:
                run.take_base()
                run.run_steps()
                return run.compose()
            finally:
                over.set()  # a build that fails does not wait for its data
    except OSError as error:
        run.follower.reader.no_space |= error.errno in NO_SPACE
        run.follower.reader.tail.append(str(error))
        raise run.follower.error(error.errno or 1) from None


class _LayeredBuild:
    """One build, step by step.

    Attributes:
        used: The base and the layers on it, as far as the build has come.
        copy: Appends the data of each to the image, one after the other, meanwhile.
        cached: The names of the steps that came from the cache.
    """

    def __init__(self, task: BuildTask, host: HostConfig) -> None:
        self.place, self.follower, self.plan = task.place, task.follower, task.exact()
        self.task, self.fresh, self.lock = task, task.fresh, task.lock
        self.cache = Cache(self.place.images)
        self.used: list[CacheEntry] = []
        self.copy: Callable[[str], Future[Tables]]
        self._copies: list[Future[Tables]] = []
        self.cached: list[str] = []
        self._lock_key = hash_lock(self.lock)
        self._locked = [layer.sha256 for layer in self.lock.layers] if self.lock else []
        self._names = ("base", *(step.name for step in self.plan.steps))
        self._lowers: list[Lower] = []
        self._is_changed = False  # something was made, and what follows is made on it
        self._number = 0
        self._binds: tuple[Bind, ...] | None = None
        self._host_config = host
        steps = (*self.plan.steps, *self.plan.build)
        details = {"base": self.plan.base.output().detail, **LAST_STEPS}
        self.follower.secrets = host_config.collect_secrets(host)
        self.follower.details = details | {step.name: step.detail for step in steps}

    def take_base(self) -> None:
        """Take the base from the cache, or build it."""
        key = self.plan.base_key
        if entry := self._find(caches.BASES, key):
            self._reuse("base")
        else:
            self.follower.begin("base")
            entry = make_base(
                self.plan,
                self._cache_key(key),
                self.place,
                self.follower,
                environment=self.task.login(),
                replace=self.fresh,
            )
            self._is_changed = True
        self._take(entry)
        self._lowers.append(_lower(entry))

    def run_steps(self) -> None:
        """Take every cached layer, and make the layers from the first that is not cached on."""
        products = ""
        for step in self.plan.steps:
            if entry := self._find(caches.LAYERS, step.key):
                self._reuse(step.name)
                self._lowers.append(_lower(entry))
            else:
                takes = step.products and self.plan.build  # else it compiles in place
                if takes and not products:
                    products = self._compile()
                binds = (Bind(source=products, target=WHEELS),) if takes else ()
                upper = self._run_step(step, self._lowers, binds)
                entry = self._keep(step, self.place.output / f"{upper}.sqfs")
                self._lowers.append(Lower(path=upper))
                self._is_changed = True
            self._take(entry)

    def _take(self, entry: CacheEntry) -> None:
        self.used.append(entry)
        self._copies.append(self.copy(entry.path))
        for copy in self._copies:
            if copy.done():
                copy.result()  # raises why it failed, before further steps run

    def _find(self, kind: str, key: str) -> CacheEntry | None:
        """Return the cache's entry for the next layer, if it may be used."""
        if self.fresh or self._is_changed:
            return None
        if self.lock is None:
            return self.cache.use(kind, key)
        entry = self.cache.use(kind, key) if not self._unequal() else None
        if entry and [entry.note.digest] == self._locked[len(self.used) :][:1]:
            return entry
        return self.cache.use(kind, self._own_key(key))

    def _keep(self, step: Step, made: Path) -> CacheEntry:
        """Keep the layer of a step for other builds, as soon as it is complete."""
        key = self._cache_key(step.key)
        return self.cache.keep(caches.LAYERS, key, made, about=step.name, replace=self.fresh)

    def _cache_key(self, key: str) -> str:
        """Return the key under which this build keeps what it makes next."""
        return self._own_key(key) if self.lock else key

    def _own_key(self, key: str) -> str:
        """Return the key of what this lock makes on top of the layers so far."""
        return hash_texts(key, self._lock_key, *(entry.note.digest for entry in self.used))

    def _unequal(self) -> tuple[str, ...]:
        """Return the names of the layers so far that differ from the lock."""
        made = zip(self._names, self.used, self._locked, strict=False)
        return tuple(name for name, entry, locked in made if entry.note.digest != locked)

    def _reuse(self, step: str) -> None:
        self.follower.reuse(step)
        self.cached.append(step)

    def _compile(self) -> str:
        """Return the directory of what was compiled before on the same layers, or compile it."""
        plan = self.plan
        common = self.used[: len(plan.common) + 1]
        compiled_on = hash_texts(*(entry.note.digest for entry in common))
        key = plan.products_key
        key = hash_texts(key, self._lock_key) if self.lock else key
        entry = self.cache.use(caches.WHEELS, key)
        if entry and entry.note.facts.get("on") == compiled_on:
            for step in plan.build:
                self._reuse(step.name)
            return entry.path
        # Steps that another image ends with, such as Horovod's, take what they made there.
        earlier = (self.cache.use(caches.WHEELS, earlier) for earlier in plan.earlier_products)
        fitting = [old for old in earlier if old and old.note.facts.get("on") == compiled_on]
        binds = tuple(Bind(source=old.path, target=HOST_WHEELS) for old in fitting[-1:])
        made, lowers = self.place.output / "products", self._lowers[: len(common)]
        made.mkdir()
        for step in plan.build:
            is_last = step is plan.build[-1]
            products = str(made) if is_last else ""
            upper = self._run_step(step, lowers, () if self.lock else binds, products)
            lowers = [*lowers, Lower(path=upper)]
        name, facts = plan.build[-1].name, {"on": compiled_on}
        return self.cache.keep(caches.WHEELS, key, made, about=name, facts=facts, replace=True).path

    def _run_step(
        self, step: Step, lowers: Iterable[Lower], binds: tuple[Bind, ...] = (), products: str = ""
    ) -> str:
        """Run a step on layers; return the name of its changes in the directory of the steps."""
        if self._binds is None:
            config, target = self._host_config, self.place.scratch / "locked"
            if self.lock:
                config = fetch_files(self.lock, self.plan, self.place.images, target)
            self._binds = write_step_config(config, self.place, self.plan)
            self._directory.mkdir()
        scripts = self.place.output / "host/steps"
        upper = f"u{self._number}"
        self._number += 1
        layer = self.place.output / f"{upper}.sqfs"
        pack = ("mksquashfs", str(self._directory / upper), str(layer), *LAYER_PACKING)
        (scripts / upper).write_text(step.script, encoding="utf-8")
        sandbox = SandboxStep(
            bubblewrap=shell.which("bwrap") or "bwrap",
            directory=str(self._directory),
            lowers=tuple(lowers),
            upper=upper,
            command=(*SHELL, f"{STEP_SCRIPTS}/{upper}"),
            environment={
                "PATH": SYSTEM_PATH,
                "HOME": "/root",
                "LC_ALL": "C.UTF-8",
                **ENVIRONMENT,
                **host_config.proxies(),
            },
            binds=self._binds,
            passing_binds=binds,
            products=products,
            product_source=WHEELS if products else "",
            byte_code=(*SHELL, f"{STEP_SCRIPTS}/byte-code"),
            pack=() if step in self.plan.build else pack,
            changed=str(scripts / "changed"),
        )
        self.follower.announce(step.name)
        code = run_step(sandbox, self.place, self.follower)
        if code != 0:
            raise self.follower.error(code)
        return upper

    @property
    def _directory(self) -> Path:
        return self.place.scratch / "steps"

    def compose(self) -> BuildOutcome:
        """Compose the image of its layers, whose data are in it, or on their way."""
        self.follower.begin("pack")
        base, definition = self.used[0], self.task.definition()
        when = self.lock.epoch if self.lock else int(time.time())
        now = datetime.fromtimestamp(when, timezone.utc).isoformat(timespec="seconds")
        own = library.labels(self.task.plan)
        labels = {**base.note.facts, BUILD_DATE: now, **own}
        layer = self.place.output / "identity.sqfs"
        directory = self.place.output / "identity"
        directory.mkdir(mode=0o755)
        environment = inspect(base.path)["environment"]
        sections = {**metadata(self.plan, own), "deffile": definition}
        text = compose.write_metadata(directory, sections, labels, self.plan.files, environment)
        shell.run(["mksquashfs", directory, layer, *LAYER_PACKING, "-all-root"])
        paths = [*(entry.path for entry in self.used), str(layer)]
        layers = [copy.result() for copy in (*self._copies, self.copy(str(layer)))]
        compose.finish(self.place.sif, paths, layers, (definition, text), when)
        made = zip(self._names, self.used, strict=True)
        # Bases of earlier versions have none in their notes.
        variables = base.note.variables or read_contents(base.path, VARIABLES).variables
        return BuildOutcome(
            program_version(),
            tuple(self.cached),
            variables,
            tuple(Layer(name=name, sha256=entry.note.digest) for name, entry in made),
            self._unequal(),
        )


def _lower(entry: CacheEntry) -> Lower:
    return Lower(path=entry.path, offset=compose.open_squashfs(entry.path)[0])
