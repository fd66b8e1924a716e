"""Building in layers: a base that is packed once, and for each step what it changed, kept for the next build.

Only the steps from the first changed one on run again; the image is put together from the base and the layers without packing any of them
again: ``images/squashfs`` says how, and why not otherwise. Where a machine does not let a user mount overlays, its images are built flat.
"""

from __future__ import annotations

import errno
import platform
import shutil
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from toolkit import shell
from toolkit.errors import NeedsInstallError, ToolkitError
from toolkit.images import host
from toolkit.images.builders import compose, identity
from toolkit.images.builders.apptainer import COMPRESSION, SYSTEM_PATH, Outcome, build_base, lend, said_version
from toolkit.images.builders.cache import BASES, LAYERS, WHEELS, Cache, Kept
from toolkit.images.builders.collect import contents
from toolkit.images.builders.follow import Follower
from toolkit.images.builders.namespaces import NotHereError as NotHereError
from toolkit.images.builders.namespaces import done, prove
from toolkit.images.builders.privilege import way
from toolkit.images.builders.remove import remove
from toolkit.images.builders.tasks import SCRIPTS, Plan, plan, takes_products
from toolkit.images.builders.work import PACKED, WHOLE, Bind, Lower, Work
from toolkit.images.builders.workspace import Workspace
from toolkit.images.chain import Chain
from toolkit.images.collect import Contents
from toolkit.images.loan import secrets
from toolkit.images.squashfs import BLOCK_SIZE, UNCOMPRESSED_TABLES
from toolkit.progress import Progress

_STEPS = "steps"  # of the scratch directory: where the sandbox writes
_PACK = ("-noappend", "-no-progress", "-quiet", *COMPRESSION, "-b", str(BLOCK_SIZE), *UNCOMPRESSED_TABLES)


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
) -> Outcome:
    """Build ``place.sif`` as ``apptainer.build`` does, and with its errors, but only what has changed.

    Args:
        chain: the recipe's steps with their keys.
        login: what Apptainer has to know besides to fetch the base; ``cwd``: where it does.
        fresh: use nothing that is kept, though it is kept anew.

    Raises:
        NotHereError: it has to be built flat; nothing has been done.
    """
    build = _Layered(name, chain, definition, place, log, progress, expected, fresh)
    try:
        with build.cache.used():
            base = build.base(login, cwd)
            build.steps(base)
            build.put_together(base)
            build.check()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            build.follower.reader.no_space = True
        raise build.follower.error(error.errno or 1) from None
    build.follower.end()
    return Outcome(build.follower.reader.results, build.builder, build.follower.seconds, tuple(build.kept), build.contents)


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
    ) -> None:
        self.way = way()
        require_programs()
        self.chain, self.definition, self.place, self.fresh = chain, definition, place, fresh
        self.cache = Cache(log.parent)
        self.loan = host.loan()
        details = {link.name: link.detail for link in (*chain.links, *chain.build)}
        details |= {"base": chain.base.detail(), "pack": "into one file", "checks": "the image proves itself"}
        secret = secrets((*self.loan.files.values(), *host.proxies().values()))
        self.follower = Follower(name, details, log, progress, expected=expected, secret=secret)
        self.builder = ""
        self._said = shell.start([self.way.program, "--version"])  # nobody waits for it until the image is put together
        self.kept: list[str] = []
        self.layers: list[Kept] = []
        self.copier: compose.Copier | None = None
        self.contents: Contents | None = None
        threading.Thread(target=_import_what_is_slow, daemon=True).start()

    def base(self, login: Mapping[str, str] | None, cwd: Path | str) -> Kept:
        """What the image begins as; what its data are begins to be copied."""
        found = None if self.fresh else self.cache.use(BASES, self.chain.base_key)
        if found:
            self._keep("base")
        else:
            self.follower.begin("base")
            done(Work(directory=str(self._directory("probe"))), self.place, self.follower)  # before it takes long
            made = self.place.output / "base.sif"
            build_base(self.chain.base, self.place, made, self.follower, environment=login, cwd=cwd)
            said = compose.labels_of(str(made))
            found = self.cache.keep(BASES, self.chain.base_key, made, about=self.chain.base.detail(), facts=said, anew=self.fresh)
        self.copier = compose.Copier(self.place.sif)
        self.copier.append(*compose.data_of(found.path))
        return found

    def _keep(self, step: str) -> None:
        self.follower.kept(step)
        self.kept.append(step)

    def steps(self, base: Kept) -> None:
        """Every layer: those that are kept, and from the first that is not, those that have to be made."""
        links = self.chain.links
        while not self.fresh and len(self.layers) < len(links) and (found := self.cache.use(LAYERS, links[len(self.layers)].key)):
            self._keep(links[len(self.layers)].name)
            self._take(found)
        if len(self.layers) == len(links):
            return
        kept = len(self.layers)
        compiled = self._products() if takes_products(self.chain, kept) else None
        products = compiled.path if compiled else str(self._made("products"))
        todo = plan(self.chain, kept, directory=str(self._made("layers")), products=products, compiled=compiled is not None)
        work = self._work(base, todo)
        made = _Made(self, todo, Path(products))
        code = done(work, self.place, self.follower, made.take)
        made.take()
        if code != 0:
            raise self.follower.error(code)

    def _products(self) -> Kept | None:
        """What was compiled before, if it was on the very layers that are there now."""
        if self.fresh or len(self.layers) < len(self.chain.common):
            return None  # a step that runs again may bring another version of what it is compiled against
        found = self.cache.use(WHEELS, self.chain.products_key)
        if found is None or found.note.facts.get("on") != self.compiled_on():
            return None
        for link in self.chain.build:
            self._keep(link.name)
        return found

    def compiled_on(self) -> str:
        """The layer that the build stage is on."""
        return self.layers[len(self.chain.common) - 1].note.digest if self.chain.common else ""

    def _made(self, name: str) -> Path:
        path = self.place.output / name
        path.mkdir()
        return path

    def _directory(self, name: str) -> Path:
        path = self.place.scratch / name
        path.mkdir()
        return path

    def _take(self, layer: Kept) -> None:
        assert self.copier
        self.layers.append(layer)
        self.copier.append(*compose.data_of(layer.path))

    def _work(self, base: Kept, todo: Plan) -> Work:
        """What the sandbox is told."""
        lent = lend(self.loan, self.place.output / "host")
        scripts = self._made(f"host/{SCRIPTS}")
        for name, text in todo.scripts.items():
            (scripts / name).write_text(text, encoding="utf-8")
        lowers = [Lower(path=base.path, offset=compose.system_of(base.path)[0]), *(Lower(path=one.path, offset=0) for one in self.layers)]
        return Work(
            directory=str(self._directory(_STEPS)),
            lowers=tuple(lowers),
            tasks=tuple(todo.tasks),
            binds=(*_machine_binds(), *self._temporary(), *lent),
            environment={"PATH": SYSTEM_PATH, "HOME": "/root", "LC_ALL": "C.UTF-8", **host.proxies()},
            pack=("mksquashfs",),
            packing=_PACK,
        )

    def _temporary(self) -> Iterable[Bind]:
        for target in ("/tmp", "/var/tmp"):
            directory = self._directory(f"{_STEPS}{target.replace('/', '-')}")
            directory.chmod(0o1777)
            yield Bind(source=str(directory), target=target, writable=True)

    def put_together(self, base: Kept) -> None:
        """The image, whole but for its checks."""
        assert self.copier
        self.follower.begin("pack")
        tables = compose.grafted(self.cache, base, self.layers, self.place.output)
        self.builder = said_version(self._said.communicate()[0])
        now = identity.utc_now()
        said = identity.labels(self.definition, base.note.facts, self.builder, platform.machine(), now)
        directory, layer = self.place.output / "identity", self.place.output / "identity.sqfs"
        directory.mkdir(mode=0o755)
        metadata = identity.write(directory, self.definition, said, self.chain.files)
        shell.run(["mksquashfs", directory, layer, *_PACK, "-all-root"])
        compose.put_on(tables, str(layer), only_adds=True)
        self.copier.append(*compose.data_of(str(layer)))
        compose.finish(self.copier, tables, self.definition, metadata, int(now.timestamp()))

    def check(self) -> None:
        """What the image carries to prove itself, run in the finished image; beside it, what else the end of a build needs."""
        self.follower.begin("checks")
        beside = [threading.Thread(target=work, daemon=True) for work in (self._ask, self._tidy)]
        for thread in beside:
            thread.start()
        code = prove(self.way.program, self.place, self.follower)
        for thread in beside:
            thread.join()
        if code != 0:
            raise self.follower.error(code)

    def _ask(self) -> None:
        with suppress(ToolkitError):  # who needs it asks again, and says what is wrong
            self.contents = contents(str(self.place.sif), self.place.output / "config")

    def _tidy(self) -> None:
        """What the steps wrote is in the image now."""
        remove(self.place.scratch / _STEPS)


def _import_what_is_slow() -> None:
    """While the steps run, nobody needs this process."""
    for name in ("zstandard", "cyclonedx.output.json"):
        with suppress(ImportError):
            import_module(name)


@dataclass
class _Made:
    """What is being made. It is kept as soon as it is whole, so that a build that fails or is killed later has not been in vain."""

    build: _Layered
    todo: Plan
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
            self.build._take(self.build.cache.keep(LAYERS, link.key, whole, about=link.name, anew=self.build.fresh))
            self.taken += 1
        self._take_products()

    def _take_products(self) -> None:
        build, copy = self.build, self.build.place.output / "products-kept"
        if self.compiled or not self.todo.compiles or not Path(f"{self.products}{WHOLE}").exists():
            return
        if len(build.layers) < len(build.chain.common):
            return  # the layer that it was compiled on is still being packed
        shutil.copytree(self.products, copy, symlinks=True)  # the further steps see the first
        about = build.chain.build[-1].name
        build.cache.keep(WHEELS, build.chain.products_key, copy, about=about, facts={"on": build.compiled_on()}, anew=True)
        self.compiled = True


def require_programs() -> None:
    """Refuse before anything is done.

    Raises:
        NeedsInstallError: mksquashfs is not there.
    """
    if shell.which("mksquashfs") is None:
        raise NeedsInstallError("mksquashfs is not installed here", next_step="toolkit setup (package squashfs-tools)")


def _machine_binds() -> Iterable[Bind]:
    """How names are resolved, as a flat build has it from the machine."""
    return (Bind(source=file, target=file) for file in ("/etc/resolv.conf", "/etc/hosts") if Path(file).exists())
