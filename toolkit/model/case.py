"""A case: the job, the cluster, the image, the script and the host before a decision. Pure.

Rules, launchers and runtimes decide from it and from nothing else. ``planning.case`` gathers it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from toolkit.model.image import Engine, Environment, Manifest, Python
from toolkit.model.job import Job
from toolkit.model.run import Bind, Plan, ScriptFile, Tree
from toolkit.model.site import Facts, Limits, Partition, Site, SitePartition
from toolkit.units import megabytes, minutes

if TYPE_CHECKING:
    from toolkit.errors import ToolkitError
    from toolkit.launchers.base import Launcher
    from toolkit.runs.run import Run
    from toolkit.runtimes.base import Runtime
    from toolkit.slurm.client import Client


# Programs whose arguments say what they start: that is the user's, and is not spread over ranks.
SHELLS = ("bash", "sh")


class Target(NamedTuple):
    """The program of a run.

    Attributes:
        script: as the ranks are given it: relative to the working directory if it is below it, else
            absolute; a program of the image if ``is_program``.
        folder: directory of the script, absolute.
        cwd: the working directory of the ranks, absolute.
        is_program: there is no script.
        interpreter: the program that runs the script; empty: the script is a program itself.
        repeats: the run that is repeated; None: there is none.
        is_copy: all of this is in that run's snapshot.
    """

    script: str = ""
    folder: str = ""
    cwd: str = ""
    is_program: bool = False
    interpreter: str = ""
    repeats: Run | None = None
    is_copy: bool = False

    @property
    def name(self) -> str:
        """The file name of the script."""
        return PurePosixPath(self.script).name

    @property
    def is_python(self) -> bool:
        """True if the script is a file of Python by its name."""
        return self.script.endswith(".py")


class Image(NamedTuple):
    """The image that ranks run in.

    Attributes:
        path: of the SIF, absolute; the reference of an image that another program keeps; empty:
            there is no image.
        manifest: what is in it; None: it is not known.
        to_fetch: the reference of an image that must be fetched before the job is submitted.
        is_recipe: it is built from one of our recipes.
        is_here: it is a file of this machine.
        version: names the content of that file: another file, or a later one, has another.
    """

    path: str = ""
    manifest: Manifest | None = None
    to_fetch: str = ""
    is_recipe: bool = False
    is_here: bool = False
    version: str = ""


class Construction(NamedTuple):
    """A call of a class with keyword arguments, or with no arguments.

    Attributes:
        name: full name of the class: ``lightning.pytorch.Trainer``.
        line: of the call.
        keywords: keyword arguments; None: the value is not a number or a text.
        is_whole: these are all arguments: none is positional, and there is no ``**options``.
    """

    name: str
    line: int
    keywords: dict[str, int | str | None] = {}
    is_whole: bool = True


class Import(NamedTuple):
    """A top-level module that every run imports and none of the searched directories has.

    Attributes:
        name: of the module: ``cv2``.
        file: the file with the import, as messages show it.
        line: of the import.
        within: the import in full, since several packages share ``google``: ``google.protobuf``.
    """

    name: str
    file: str
    line: int
    within: str = ""


def has_any(names: Iterable[str], modules: Iterable[str]) -> bool:
    """Return whether one of the modules, or a submodule of one, is among the names."""
    starts = tuple(f"{module}." for module in modules)
    return any(f"{name}.".startswith(starts) for name in names)


class Source(NamedTuple):
    """A script and the modules of the user that it imports.

    Attributes:
        python: the script could be parsed as Python.
        imports: imported modules and their members: ``torch.distributed``,
            ``torch.nn.parallel.DistributedDataParallel``; ``libmpi`` of a program that is linked
            with it.
        calls: every function or class that is called, by its full name:
            ``torch.multiprocessing.spawn``, also if the script writes ``mp.spawn``.
        options: of its argparse, as they are typed: ``--dist-url`` -> a value follows; else it is a
            switch.
        constructions: the objects of imported classes that it makes.
        certain: imports by statements of the modules themselves, which every run executes.
        packages: imported packages that are not Python's own, but for files of the user that were
            read.
        texts: texts in it that name a rank's variable, and ``MASTER_ADDR=localhost`` if it sets
            that.
        where: module or member -> the file that imports it, if the script itself does not.
        needed: modules that the Python of the ranks must have.
        directories: those of local modules that the ranks would not see -> why they are needed.
        doubt: why a module that is missing may be available all the same; empty: no reason.
        sha256: of the script; empty: it cannot be read, or is too large for a script.
    """

    python: bool = False
    imports: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    options: dict[str, bool] = {}
    constructions: tuple[Construction, ...] = ()
    certain: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    where: dict[str, str] = {}
    needed: tuple[Import, ...] = ()
    directories: dict[str, str] = {}
    doubt: str = ""
    sha256: str = ""

    def imports_any(self, *modules: str) -> bool:
        """Return whether one of the modules, or a submodule of one, is imported."""
        return has_any(self.imports, modules)

    def calls_any(self, *names: str) -> bool:
        """Return whether a function or class of one of these names is called.

        A name may be qualified: ``DataParallel``, or more exactly ``multiprocessing.spawn``.
        """
        return any(
            call == name or call.endswith("." + name) for call in self.calls for name in names
        )

    def option(self, *names: str) -> str:
        """Return the option of one of these names, in which ``-`` and ``_`` are equal, or empty."""
        flags = (flag for flag in self.options if flag.lstrip("-").replace("_", "-") in names)
        return next(flags, "")


class Case(NamedTuple):
    """The facts that a run is decided from.

    Attributes:
        job: the merged settings.
        site: the cluster as its file describes it.
        origins: the source of each setting.
        target: what is run.
        runtime: what the ranks run in; None: no runtime has the name that the job gives.
        launcher: what starts them; None, too, if no launcher has the name.
        cluster: the client of its Slurm; None: this machine does not reach it.
        facts: the cluster as Slurm describes it.
        image: that the ranks run in.
        environment: the Python of the host, ``engine``: the container engine, for ranks that run
            in no SIF.
        source: imports, calls and options of the script.
        host: what the rules about this machine found.
        binds: what the user names to be shown in the container.
        shown: further directories that the ranks must see, such as the git work tree -> why.
        run: the directory of the run's files, absolute.
        directory: where the command is called, absolute.
        tree: the tree that a snapshot is taken of; None: the job runs in the work tree itself.
        findings: the errors of what was gathered, and the warnings.
        notes: how the command was understood.
        force: the reason to submit a job that the rules refuse; None: the rules decide.
        after: dependencies of the job as Slurm writes them: ``afterok:7``.
        repeats: the recorded plan of the run that is repeated without a change; else None.
    """

    job: Job
    site: Site
    origins: dict[str, str] = {}
    target: Target = Target()
    runtime: Runtime | None = None
    launcher: Launcher | None = None
    cluster: Client | None = None
    facts: Facts = Facts()
    image: Image = Image()
    environment: Environment | None = None
    engine: Engine | None = None
    source: Source = Source()
    host: tuple[ToolkitError, ...] = ()
    binds: tuple[Bind, ...] = ()
    shown: dict[str, str] = {}
    run: str = ""
    directory: str = ""
    tree: Tree | None = None
    findings: tuple[ToolkitError, ...] = ()
    notes: tuple[str, ...] = ()
    force: str | None = None
    after: tuple[str, ...] = ()
    repeats: Plan | None = None

    def with_findings(self, *findings: ToolkitError) -> Case:
        """Return the case with further findings."""
        return self._replace(findings=(*self.findings, *findings))

    @property
    def client(self) -> Client:
        """The client of the cluster, for a job that is submitted to it."""
        assert self.cluster is not None
        return self.cluster

    @property
    def manifest(self) -> Manifest | None:
        """The contents of the image or the environment; None: not known."""
        return self.environment.manifest if self.environment else self.image.manifest

    @property
    def python(self) -> Python | None:
        """The Python of the ranks: the one that their command names, or the first on PATH."""
        pythons = self.manifest.pythons if self.manifest else ()
        named = (python for python in pythons if python.path == self.target.script)
        return next(named, pythons[0] if pythons else None)

    @property
    def script_path(self) -> str:
        """The path of the script on this machine; empty: it is a program."""
        path = PurePosixPath(self.target.folder) / self.target.name
        return "" if self.target.is_program else str(path)

    @property
    def script_file(self) -> ScriptFile | None:
        """The script and its hash; None: it is a program, cannot be read, or will be copied."""
        sha256 = self.source.sha256
        return ScriptFile(path=self.script_path, sha256=sha256) if sha256 else None

    @property
    def name(self) -> str:
        """The name of the job."""
        return self.job.job_name or PurePosixPath(self.target.script).stem

    @property
    def partition(self) -> Partition | None:
        """The partition of the job as Slurm describes it; None: not known."""
        name, known = self.job.partition, self.facts.partitions
        return next(
            (each for each in known if each.name == name or (not name and each.default)), None
        )

    @property
    def partition_name(self) -> str:
        """The name of the partition; empty: not known."""
        return self.job.partition or (self.partition.name if self.partition else "")

    @property
    def written(self) -> SitePartition | None:
        """The partition as the site's documents describe it."""
        return self.site.partitions.get(self.partition_name)

    @property
    def limits(self) -> Limits:
        """The limits of one user: Slurm's own, and where it sets none those in the site's file."""
        live = self.facts.limits.get(self.partition_name)
        return live or self.site.limits(self.partition_name)

    @property
    def nodes(self) -> int:
        """The most nodes; ``job.node_range`` also has the least."""
        return self.job.node_range[1]

    @property
    def ranks_per_node(self) -> int:
        """The ranks on each node; on the largest one if nodes differ."""
        takes_node = self.launcher is not None and self.launcher.takes_node
        return self.job.ntasks_per_node or (1 if takes_node else self.job.most_gpus) or 1

    @property
    def ranks(self) -> int:
        """The ranks of all nodes."""
        return sum(self.job.gpus_by_node) or self.nodes * self.ranks_per_node

    @property
    def cpus_per_rank(self) -> int:
        """The CPUs of a rank: as set, else its GPUs' share of the node's CPUs."""
        node, gpus = self.partition or self.written, self.job.most_gpus
        share = (node.cpus or 0) // node.gpus * gpus if node and node.gpus else 0
        return self.job.cpus_per_task or max(share // self.ranks_per_node, self.site.cpus_per_task)

    @property
    def minutes(self) -> int | None:
        """The requested time; None: unset, unlimited, or not a time."""
        try:
            return None if self.job.time is None else minutes(str(self.job.time))
        except ValueError:
            return None

    @property
    def memory(self) -> int | None:
        """The requested memory on each node, in MB; None: unset, or not a size."""
        try:
            return None if self.job.mem is None else megabytes(str(self.job.mem))
        except ValueError:
            return None

    @property
    def noun(self) -> str:
        """``image`` or ``environment``, as messages call what ranks run in."""
        return "image" if self.runtime is None or self.runtime.image else "environment"

    @property
    def is_sif(self) -> bool:
        """True if the image is a SIF."""
        return self.runtime is not None and self.runtime.image == "sif"

    @property
    def interface(self) -> str | None:
        """The network interface between ranks; None leaves it to the libraries."""
        own = self.runtime.interface if self.runtime else None
        return own or self.site.interface

    @property
    def command(self) -> tuple[str, ...]:
        """The command of one rank, without the user's arguments.

        The image's Python runs ``train.py``. Anything else is a program of its own: one of the
        image, or a file, which is not host for on PATH.
        """
        script = self.target.script
        if self.target.is_program:
            return (script,)
        if self.job.python_module:
            return ("python3", "-m", self.job.python_module)
        if self.target.interpreter:
            return (self.target.interpreter, script)
        return (script if "/" in script else f"./{script}",)

    @property
    def in_snapshot(self) -> Case:
        """The case in the snapshot of the run's directory; the same if there will be none."""
        if self.tree is None:
            return self
        code, root = PurePosixPath(self.run) / "code", PurePosixPath(self.tree.root)
        target = self.target

        def moved(path: str) -> str:
            place = PurePosixPath(path)
            return str(code / place.relative_to(root)) if place.is_relative_to(root) else path

        script = target.script
        is_inside = PurePosixPath(target.cwd).is_relative_to(root)
        if not target.is_program and (script.startswith("/") or not is_inside):
            script = moved(str(PurePosixPath(target.folder) / PurePosixPath(script).name))
        target = target._replace(script=script, folder=moved(target.folder), cwd=moved(target.cwd))
        return self._replace(target=target, source=self.source._replace(sha256=""))
