"""Build in layers: a base that is packed once, and the changes of each step, which are cached.

Only the steps from the first changed one on run again; the image is composed of the base and the
layers without packing any of them again: ``images/sif/README.md`` says how, and why not otherwise.
A machine that does not let a user mount overlays builds flat images.
"""

from __future__ import annotations

import errno
import itertools
import platform
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path

from toolkit import shell
from toolkit.errors import NO_SPACE, ToolkitError
from toolkit.images.builder.apptainer import compose, identity
from toolkit.images.builder.apptainer.apptainer import BuildOutcome, build_base
from toolkit.images.builder.apptainer.entries import Entries
from toolkit.images.builder.apptainer.programs import (
    LAYER_PACKING,
    SHELL,
    STEP_SCRIPTS,
    SYSTEM_PATH,
    clean_environment,
    prepare_end,
    program_version,
    run_image_checks,
    run_step,
    write_step_config,
)
from toolkit.images.builder.apptainer.sandbox import Lower, SandboxStep
from toolkit.images.builder.follow import LAST_STEPS, BuildContext, start, stop
from toolkit.images.host import host_config
from toolkit.images.host.host_config import Bind, HostConfig
from toolkit.images.host.kernel import namespace_command
from toolkit.images.host.privilege import build_command, namespace_ids
from toolkit.images.host.workspace import remove
from toolkit.images.recipe.block import WHEELS
from toolkit.images.recipe.lock import Lock
from toolkit.images.recipe.plan import Plan, Step
from toolkit.images.recipe.reproducible import ENVIRONMENT, EPOCH
from toolkit.images.sif import header as sif
from toolkit.images.store.cache import Cache, CacheEntry
from toolkit.images.store.contents import Contents, read_contents
from toolkit.images.store.settings import inspect, parse_inspection, read_variables
from toolkit.images.store.sif_files import read_object


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
    plan: Plan,
    definition: str,
    *,
    login: Mapping[str, str] | None = None,
    fresh: bool = False,
    locked: LockedBuild | None = None,
) -> BuildOutcome:
    """Build the context's ``place.sif``, but only what changed; errors as of ``apptainer.build``.

    Args:
        context: The place and the reports of this build.
        plan: The recipe's steps with their keys.
        definition: The recipe's definition.
        login: Further variables for Apptainer to fetch the base.
        fresh: Run every step and replace the cache entries; only what was compiled on exactly the
            same layers is used again.
        locked: Build exactly what a lock says.
    """
    with closing(LayeredBuild(context, plan, definition, fresh, locked)) as run:
        try:
            with run.entries.cache.used():
                run.prepare_base(login)
                run.run_steps()
                run.compose()
                run.check()
        except OSError as error:
            run.follower.reader.no_space |= error.errno in NO_SPACE
            run.follower.reader.tail.append(str(error))
            raise run.follower.error(error.errno or 1) from None
        run.follower.end()
        return run.outcome()


class LayeredBuild:
    """One build, step by step."""

    def __init__(
        self,
        context: BuildContext,
        plan: Plan,
        definition: str,
        fresh: bool,
        locked: LockedBuild | None,
    ) -> None:
        self.program = build_command().program
        self.place, self.plan, self.definition = context.place, plan, definition
        self.locked = locked
        lock = locked.lock if locked else None
        self.entries = Entries(Cache(context.log.parent), plan, lock, fresh=fresh)
        details = {step.name: step.detail for step in (*plan.steps, *plan.build)}
        details |= {"base": plan.base.output().detail, **LAST_STEPS}
        self._host_config = host_config.collect_host_config()
        secrets = host_config.collect_secrets(self._host_config)
        self.follower = context.follower(details, secrets)
        self.builder = ""
        self.cached: list[str] = []
        self.copier: compose.Copier | None = None
        self.contents: Contents | None = None
        self.base_variables: dict[str, str] = {}
        self._numbers = itertools.count()
        self._executor = ThreadPoolExecutor(1)  # packs one layer after the other
        self._packing: list[Future[None]] = []
        self._packer: subprocess.Popen[str] | None = None
        threading.Thread(target=prepare_end, daemon=True).start()

    def close(self) -> None:
        """End what still works for this build."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        if self._packer:
            stop(self._packer)
        self._executor.shutdown()
        if self.copier:
            self.copier.close()

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
        """Take or build the base, and copy its data to the image."""
        entry = self.entries.take_next()
        if entry:
            self._reuse("base")
        else:
            self.follower.begin("base")
            made, began = self.place.output / "base.sif", int(time.time()) - 1
            build_base(self.plan.base, self.place, made, self.follower, environment=login)
            compose.normalize_times(made, began, EPOCH)
            entry = self.entries.keep_next(made, inspect(made)["labels"])
        self.copier = compose.Copier(self.place.sif)
        self.copy(entry)

    def _reuse(self, step: str) -> None:
        self.follower.reuse(step)
        self.cached.append(step)

    def run_steps(self) -> None:
        """Take every cached layer, and make the layers from the first that is not cached on."""
        plan = self.plan
        while len(self.layers) < len(plan.steps):
            name = self.entries.next_name
            entry = self.entries.take_next()
            if entry is None:
                break
            self._reuse(name)
            self.copy(entry)
        lowers = [
            Lower(path=entry.path, offset=compose.open_squashfs(entry.path)[0])
            for entry in self.entries.used
        ]
        cached, common = len(self.layers), len(plan.common)
        for step in plan.common[cached:]:
            self._make_layer(step, lowers)
        final = plan.steps[max(cached, common) :]
        uses_products = any(step.products for step in final)
        products = self._take_products(lowers[: common + 1]) if uses_products else ""
        for step in final:
            binds = [Bind(source=products, target=WHEELS)] if step.products else []
            self._make_layer(step, lowers, binds)
        self._await_packing()

    @property
    def layers(self) -> list[CacheEntry]:
        """The layers so far."""
        return self.entries.used[1:]

    def _take_products(self, lowers: list[Lower]) -> str:
        """Return the directory of what was compiled before on the same layers, or compile it."""
        if self.entries.may_have_products():
            # Only on these layers is it known whether what was compiled before fits.
            self._await_packing()
            if entry := self.entries.take_products():
                for step in self.plan.build:
                    self._reuse(step.name)
                return entry.path
        made = _make(self.place.output / "products")
        for step in self.plan.build:
            is_last = step is self.plan.build[-1]
            self._run_step(step, lowers, products=str(made) if is_last else "")
        # When the layers below it are kept.
        self._submit(self._keep_products, made)
        return str(made)

    def _keep_products(self, made: Path) -> None:
        copy = self.place.output / "products-kept"
        shutil.copytree(made, copy, symlinks=True)  # later steps see the original
        self.entries.keep_products(copy)

    def _make_layer(self, step: Step, lowers: list[Lower], binds: Iterable[Bind] = ()) -> None:
        """Run a step, and pack its changes beside the next step.

        Each layer is kept as soon as it is complete, so that a build that fails or is killed later
        has not been in vain.
        """
        upper = self._run_step(step, lowers, binds)
        self._submit(self._pack, step, upper)

    def _submit(self, task: Callable[..., None], *arguments: object) -> None:
        """Run a task when the one before it has succeeded, by whose layer its own is found."""
        before = self._packing[-1] if self._packing else None

        def run() -> None:
            if before:
                before.result()
            task(*arguments)

        self._packing.append(self._executor.submit(run))

    def _run_step(
        self, step: Step, lowers: list[Lower], binds: Iterable[Bind] = (), products: str = ""
    ) -> str:
        """Run a step on layers, and add its changes to them; return their name in the directory."""
        host_binds, scripts = self._binds, self.place.output / "host/steps"
        upper = f"u{next(self._numbers)}"
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
            binds=host_binds,
            passing_binds=tuple(binds),
            products=products,
            product_source=WHEELS if products else "",
            byte_code=(*SHELL, f"{STEP_SCRIPTS}/byte-code"),
            changed=str(scripts / "changed"),
        )
        self.follower.announce(step.name)
        code = run_step(sandbox, self.place, self.follower)
        if code != 0:
            with suppress(OSError):  # the step's failure matters
                self._await_packing()
            raise self.follower.error(code)
        lowers.append(Lower(path=upper))
        return upper

    def _pack(self, step: Step, upper: str) -> None:
        """Pack the changes of a step, and keep them as the next layer.

        Raises:
            OSError: They cannot be packed or kept.
        """
        made = self.place.output / f"{upper}.sqfs"
        words = ("mksquashfs", str(self._directory / upper), str(made), *LAYER_PACKING)
        self._packer = start(
            (*namespace_command(namespace_ids()), *words),
            clean_environment(),
            locks=self.place.locks,
        )
        output, _ = self._packer.communicate()
        if self._packer.returncode != 0:
            code = errno.ENOSPC if "No space left on device" in output else errno.EIO
            raise OSError(code, f"the changes of {step.name} could not be packed: {output[-500:]}")
        facts = {"products": self.entries.products} if step.products else {}
        self.copy(self.entries.keep_next(made, facts))

    def _await_packing(self) -> None:
        """Wait until the layers so far are packed.

        Raises:
            OSError: One could not be packed.
        """
        for future in self._packing:
            future.result()
        self._packing.clear()

    def copy(self, entry: CacheEntry) -> None:
        """Copy the data of the base or of a layer to the image."""
        assert self.copier
        self.copier.append(*compose.data_range(entry.path))

    @cached_property
    def _directory(self) -> Path:
        """The directory of the steps' changes."""
        return _make(self.place.scratch / "steps")

    @cached_property
    def _binds(self) -> tuple[Bind, ...]:
        """The mounts of the host that the steps see."""
        config = self.locked.fetch() if self.locked else self._host_config
        return write_step_config(config, self.place, self.plan)

    def compose(self) -> None:
        """Compose the image of its layers."""
        assert self.copier
        self.follower.begin("pack")
        base = self.entries.used[0]
        tables = compose.graft_layers(base, self.layers)
        self.builder = program_version(self.program)
        lock = self.locked.lock if self.locked else None
        now = datetime.fromtimestamp(lock.epoch if lock else time.time(), timezone.utc)
        machine = platform.machine()
        labels = identity.labels(self.definition, base.note.facts, self.builder, machine, now)
        layer = self.place.output / "identity.sqfs"
        directory = self.place.output / "identity"
        directory.mkdir(mode=0o755)
        environment = parse_inspection(read_object(Path(base.path), sif.JSON, sif.METADATA))[
            "environment"
        ]
        metadata = identity.write(directory, self.definition, labels, self.plan.files, environment)
        shell.run(["mksquashfs", directory, layer, *LAYER_PACKING, "-all-root"])
        compose.graft_file(tables, str(layer), only_adds=True)
        self.copier.append(*compose.data_range(str(layer)))
        compose.finish(self.copier, tables, self.definition, metadata, int(now.timestamp()))

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
        remove(self.place.scratch / "steps")


def _make(directory: Path) -> Path:
    directory.mkdir()
    return directory
