"""Building in layers: a base that is packed once, and for each step what it changed, kept for the next build.

Only the steps from the first changed one on run again; the image is put together from the base and
the layers without packing any of them again: ``images/sif/squashfs`` says how, and why not
otherwise. Where a machine does not let a user mount overlays, its images are built flat.
"""

from __future__ import annotations

import errno
import platform
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from importlib import import_module
from pathlib import Path

from toolkit import shell
from toolkit.errors import NeedsInstallError, ToolkitError
from toolkit.images.build import host_config as host
from toolkit.images.build.apptainer import compose, identity
from toolkit.images.build.apptainer.apptainer import (
    COMPRESSION,
    SYSTEM_PATH,
    BuildOutcome,
    build_base,
    parse_version,
    write_host_config,
)
from toolkit.images.build.apptainer.cache import Cache, CacheEntry
from toolkit.images.build.apptainer.entries import Entries
from toolkit.images.build.apptainer.namespaces import (
    LayersUnavailableError as LayersUnavailableError,
)
from toolkit.images.build.apptainer.namespaces import run_image_checks, run_sandbox
from toolkit.images.build.apptainer.tasks import SCRIPTS, TaskPlan, needs_products, plan_tasks
from toolkit.images.build.apptainer.work import PACKED, WHOLE, Bind, Lower, Work
from toolkit.images.build.collect import read_contents
from toolkit.images.build.contents import Contents
from toolkit.images.build.follow import Follower
from toolkit.images.build.host_mounts import ROOT, HostConfig, find_secrets
from toolkit.images.build.privilege import build_command
from toolkit.images.build.remove import remove
from toolkit.images.build.reproducible import BYTE_CODE, ENVIRONMENT, EPOCH
from toolkit.images.build.workspace import Workspace
from toolkit.images.recipe.chain import Chain
from toolkit.images.sif.squashfs import BLOCK_SIZE, UNCOMPRESSED_TABLES
from toolkit.model.lock import Lock
from toolkit.progress import Progress

_STEPS = "steps"  # of the scratch directory: where the sandbox writes
_SCRIPTS = f"{ROOT}/{SCRIPTS}"  # where steps see their scripts
_BYTE_CODE = f"if command -v python3 >/dev/null 2>&1; then exec python3 -I -S -B {_SCRIPTS}/byte-code.py {_SCRIPTS}/changed; fi"
_PACK = (
    "-noappend",
    "-no-progress",
    "-quiet",
    *COMPRESSION,
    "-b",
    str(BLOCK_SIZE),
    "-mkfs-time",
    str(EPOCH),
    *UNCOMPRESSED_TABLES,
)


@dataclass(frozen=True)
class LockedBuild:
    """What a locked build knows besides the recipe.

    Attributes:
        bring: fetches what is locked, and says what of it to lend to the steps; called only where one has to run.
    """

    lock: Lock
    bring: Callable[[], HostConfig]


def build(
    name: str,
    chain: Chain,
    definition: str,
    place: Workspace,
    log: Path,
    progress: Progress,
    expected: Mapping[str, float],
    *,
    login: Mapping[str, str] | None = None,
    cwd: Path | str = "/",
    fresh: bool = False,
    locked: LockedBuild | None = None,
) -> BuildOutcome:
    """Build ``place.sif`` as ``apptainer.build`` does, and with its errors, but only what has changed.

    Args:
        chain: the recipe's steps with their keys.
        login: what Apptainer has to know besides to fetch the base; ``cwd``: where it does.
        fresh: run every step, and keep the results anew; only what was compiled on the very same layers is used again.
        locked: build exactly what a lock says.

    Raises:
        LayersUnavailableError: it has to be built flat; nothing has been done.
        DamagedError: something that was kept was damaged; it is gone, and the next build makes it again.
    """
    build = _Layered(name, chain, definition, place, log, progress, expected, fresh, locked)
    try:
        with build.entries.cache.used():
            build.base(login, cwd)
            build.steps()
            build.put_together()
            build.check()
    except Exception as error:
        build.entries.check()  # a damaged entry explains any failure
        if not isinstance(error, OSError):
            raise
        build.follower.reader.no_space |= error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise build.follower.error(error.errno or 1) from None
    build.follower.end()
    return build.outcome()


class _Layered:
    """One build, step by step."""

    def __init__(
        self,
        name: str,
        chain: Chain,
        definition: str,
        place: Workspace,
        log: Path,
        progress: Progress,
        expected: Mapping[str, float],
        fresh: bool,
        locked: LockedBuild | None,
    ) -> None:
        self.way = build_command()
        require_programs()
        self.chain, self.definition, self.place, self.locked = chain, definition, place, locked
        self.entries = Entries(
            Cache(log.parent), chain, locked.lock if locked else None, fresh=fresh
        )
        details = {link.name: link.detail for link in (*chain.links, *chain.build)}
        details |= {
            "base": chain.base.detail(),
            "pack": "into one file",
            "checks": "run the image's checks",
        }
        secret = find_secrets(
            (*host.collect_host_config().files.values(), *host.proxies().values())
        )
        self.follower = Follower(name, details, log, progress, expected=expected, secret=secret)
        self.builder = ""
        self._said = shell.start(
            [self.way.program, "--version"]
        )  # nobody waits for it until the image is put together
        self.kept: list[str] = []
        self.copier: compose.Copier | None = None
        self.contents: Contents | None = None
        threading.Thread(target=_import_what_is_slow, daemon=True).start()

    def outcome(self) -> BuildOutcome:
        """What has been built."""
        return BuildOutcome(
            self.follower.reader.results,
            self.builder,
            self.follower.seconds,
            tuple(self.kept),
            self.contents,
            layers=self.entries.layers,
            products=self.entries.products,
            unequal=tuple(self.entries.unequal),
        )

    def base(self, login: Mapping[str, str] | None, cwd: Path | str) -> None:
        """Have what the image begins as; its data begin to be copied."""
        found = self.entries.next_kept()
        if found:
            self._keep("base")
        else:
            self.follower.begin("base")
            run_sandbox(
                Work(directory=str(self._directory("probe"))), self.place, self.follower
            )  # before it takes long
            made, began = self.place.output / "base.sif", int(time.time()) - 1
            build_base(self.chain.base, self.place, made, self.follower, environment=login, cwd=cwd)
            compose.normalize_times(made, began, EPOCH)
            found = self.entries.keep_next(made, compose.labels_of(str(made)))
        self.copier = compose.Copier(self.place.sif)
        self.copier.append(*compose.data_range(found.path))

    def _keep(self, step: str) -> None:
        self.follower.kept(step)
        self.kept.append(step)

    def steps(self) -> None:
        """Have every layer: those that are kept, and from the first that is not, those that have to be made."""
        while len(self.layers) < len(self.chain.links):
            name = self.entries.name
            found = self.entries.next_kept()
            if found is None:
                break
            self._keep(name)
            self.copy(found)
        if needs_products(self.chain, len(self.layers)) and self.entries.may_have_products():
            self._run(
                until=len(self.chain.common)
            )  # only then it is known whether what was compiled is of use
        self._run(until=len(self.chain.links))

    @property
    def layers(self) -> list[CacheEntry]:
        """The layers that there are."""
        return self.entries.used[1:]

    def _run(self, until: int) -> None:
        """Run the steps up to one, if there are any."""
        if len(self.layers) >= until:
            return
        kept = len(self.layers)
        compiled = (
            self._products()
            if until > len(self.chain.common) and needs_products(self.chain, kept)
            else None
        )
        products = compiled.path if compiled else str(self._made(f"products-{until}"))
        made = str(self._made(f"layers-{until}"))
        todo = plan_tasks(
            self.chain,
            kept,
            directory=made,
            products=products,
            compiled=compiled is not None,
            until=until,
        )
        taker = _Made(self, todo, Path(products))
        code = run_sandbox(self._work(todo, until), self.place, self.follower, taker.take)
        taker.take()
        if code != 0:
            raise self.follower.error(code)

    def _products(self) -> CacheEntry | None:
        """What was compiled before, if it was on the very layers that are there now."""
        if len(self.layers) < len(self.chain.common):
            return None  # a step that runs again may bring another version of what it is compiled against
        found = self.entries.kept_products()
        for link in self.chain.build if found else ():
            self._keep(link.name)
        return found

    def _made(self, name: str) -> Path:
        path = self.place.output / name
        path.mkdir()
        return path

    def _directory(self, name: str) -> Path:
        path = self.place.scratch / name
        path.mkdir()
        return path

    def copy(self, layer: CacheEntry) -> None:
        """Copy the data of a layer to the image."""
        assert self.copier
        self.copier.append(*compose.data_range(layer.path))

    @cached_property
    def _lent(self) -> tuple[Bind, ...]:
        """What the host lends to steps, and their scripts."""
        lent = write_host_config(
            self.locked.bring() if self.locked else host.collect_host_config(),
            self.place.output / "host",
        )
        scripts = self._made(f"host/{SCRIPTS}")
        byte_code = "\n".join((*self.chain.prelude, _BYTE_CODE)) + "\n"
        for name, text in (("byte-code", byte_code), ("byte-code.py", BYTE_CODE), ("changed", "")):
            (scripts / name).write_text(text, encoding="utf-8")
        return (*_machine_binds(), *self._temporary(), *lent)

    def _work(self, todo: TaskPlan, until: int) -> Work:
        """What the sandbox is told."""
        binds, scripts = self._lent, self.place.output / "host" / SCRIPTS
        for name, text in todo.scripts.items():
            (scripts / name).write_text(text, encoding="utf-8")
        base, *layers = self.entries.used
        lowers = [
            Lower(path=base.path, offset=compose.open_squashfs(base.path)[0]),
            *(Lower(path=one.path, offset=0) for one in layers),
        ]
        return Work(
            directory=str(self._directory(f"{_STEPS}-{until}")),
            lowers=tuple(lowers),
            tasks=tuple(todo.tasks),
            binds=binds,
            environment={
                "PATH": SYSTEM_PATH,
                "HOME": "/root",
                "LC_ALL": "C.UTF-8",
                **ENVIRONMENT,
                **host.proxies(),
            },
            byte_code=f"{_SCRIPTS}/byte-code",
            changed=str(scripts / "changed"),
            pack=("mksquashfs",),
            packing=_PACK,
        )

    def _temporary(self) -> Iterable[Bind]:
        for target in () if self.chain.keeps_temporary else ("/tmp", "/var/tmp"):
            directory = self._directory(f"{_STEPS}{target.replace('/', '-')}")
            directory.chmod(0o1777)
            yield Bind(source=str(directory), target=target, writable=True)

    def put_together(self) -> None:
        """The image, whole but for its checks."""
        assert self.copier
        self.follower.begin("pack")
        base = self.entries.used[0]
        tables = compose.graft_layers(self.entries.cache, base, self.layers, self.place.output)
        self.builder = parse_version(self._said.communicate()[0])
        now = (
            datetime.fromtimestamp(self.locked.lock.epoch, timezone.utc)
            if self.locked
            else identity.utc_now()
        )
        said = identity.labels(
            self.definition, base.note.facts, self.builder, platform.machine(), now
        )
        directory, layer = self.place.output / "identity", self.place.output / "identity.sqfs"
        directory.mkdir(mode=0o755)
        metadata = identity.write(directory, self.definition, said, self.chain.files)
        shell.run(["mksquashfs", directory, layer, *_PACK, "-all-root"])
        compose.graft_file(tables, str(layer), only_adds=True)
        self.copier.append(*compose.data_range(str(layer)))
        compose.finish(self.copier, tables, self.definition, metadata, int(now.timestamp()))
        self.entries.check()

    def check(self) -> None:
        """What the image carries to prove itself, run in the finished image; beside it, what else the end of a build needs."""
        self.follower.begin("checks")
        beside = [threading.Thread(target=work, daemon=True) for work in (self._ask, self._tidy)]
        for thread in beside:
            thread.start()
        code = run_image_checks(self.way.program, self.place, self.follower)
        for thread in beside:
            thread.join()
        if code != 0:
            raise self.follower.error(code)

    def _ask(self) -> None:
        with suppress(ToolkitError):  # who needs it asks again, and says what is wrong
            self.contents = read_contents(str(self.place.sif))

    def _tidy(self) -> None:
        """What the steps wrote is in the image now."""
        for directory in self.place.scratch.glob(f"{_STEPS}-*"):
            remove(directory)


def _import_what_is_slow() -> None:
    """While the steps run, nobody needs this process."""
    for name in ("zstandard", "cyclonedx.output.json"):
        with suppress(ImportError):
            import_module(name)


@dataclass
class _Made:
    """What is being made. It is kept as soon as it is whole, so that a build that fails or is killed later has not been in vain."""

    build: _Layered
    todo: TaskPlan
    products: Path
    taken: int = 0
    compiled: bool = False

    def take(self, line: str = PACKED) -> None:
        """Keep what has become whole, where a line of the log says that something has."""
        if not line.startswith(PACKED):
            return
        layers = list(self.todo.layers.items())
        while self.taken < len(layers):
            path, link = layers[self.taken]
            whole = Path(f"{path}{WHOLE}")
            if not whole.exists():
                break
            if link.products:
                self._take_products()
            facts = {"products": self.build.entries.products} if link.products else None
            self.build.copy(self.build.entries.keep_next(whole, facts))
            self.taken += 1
        self._take_products()

    def _take_products(self) -> None:
        build, copy = self.build, self.build.place.output / "products-kept"
        if self.compiled or not self.todo.compiles or not Path(f"{self.products}{WHOLE}").exists():
            return
        if len(build.layers) < len(build.chain.common):
            return  # the layer that it was compiled on is still being packed
        shutil.copytree(self.products, copy, symlinks=True)  # the further steps see the first
        build.entries.keep_products(copy)
        self.compiled = True


def require_programs() -> None:
    """Refuse before anything is done.

    Raises:
        NeedsInstallError: mksquashfs is not there.
    """
    if shell.which("mksquashfs") is None:
        raise NeedsInstallError(
            "mksquashfs is not installed here", next_step="toolkit setup (package squashfs-tools)"
        )


def _machine_binds() -> Iterable[Bind]:
    """How names are resolved, as a flat build has it from the machine."""
    return (
        Bind(source=file, target=file)
        for file in ("/etc/resolv.conf", "/etc/hosts")
        if Path(file).exists()
    )
