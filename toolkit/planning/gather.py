"""Look up all that a plan is made from: settings in files and in the environment, the cluster, the image, what lies where.

Everything that is found wrong on the way is collected, so that the user sees all of it at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from toolkit import shell, sites
from toolkit.configuration import settings_files
from toolkit.errors import (
    ClusterError,
    SlurmUnreachableError,
    ToolkitError,
    UsageError,
)
from toolkit.files import read_toml
from toolkit.images.store import store
from toolkit.launchers import LAUNCHERS
from toolkit.launchers.shared import auto
from toolkit.launchers.shared.base import Script
from toolkit.localcluster.access import access as local_access
from toolkit.localcluster.access import default_name
from toolkit.model.base import BadDataError
from toolkit.model.code import ScriptFile, Tree
from toolkit.model.imports import Imports, Shown
from toolkit.model.job import Job
from toolkit.model.project import Project
from toolkit.model.site import Access, Facts, Site
from toolkit.model.slurm_options import Takes
from toolkit.model.source import Source
from toolkit.planning import offline
from toolkit.planning.inputs import Inputs
from toolkit.planning.script_source import read as read_source
from toolkit.planning.script_source import script_file as read_script_file
from toolkit.planning.settings import (
    DEFAULTS,
    Layer,
    Settings,
    demands,
    from_environment,
    layer,
    merge,
)
from toolkit.planning.target import Target, module_file, of_python, resolve
from toolkit.preflight.host_facts import read_host_facts
from toolkit.records import store as runs
from toolkit.runtimes import DEFAULT, RUNTIMES, compatible_launcher, noun
from toolkit.runtimes.shared.base import Discovery, ImageFile, RuntimeFacts
from toolkit.sites.imitation import imitation
from toolkit.slurm import inventory, usage
from toolkit.slurm.client import Client

_Found = TypeVar("_Found")
# A home whose path is too long for a local cluster, or has a blank in it, has none that is up.
_NOT_UP = (SlurmUnreachableError, ClusterError)


class Prepared(NamedTuple):
    """What the plan is made from, and the door to the cluster it is for."""

    inputs: Inputs
    client: Client


class Place(NamedTuple):
    """A cluster: what is written of it and how it is reached.

    Attributes:
        site: what is written of it.
        access: how Slurm's commands are called.
        origin: why it is this cluster.
        is_here: its Slurm can be called from this machine.
    """

    site: Site
    access: Access
    origin: str
    is_here: bool = True


def prepare(target_name: str, flags: Layer, here: Path, *, dry_run: bool = False) -> Prepared:
    """Look everything up for one run.

    Args:
        target_name: a script, a job's folder or a run.
        flags: what the command line says.
        here: where the user stands.
        dry_run: nothing will be submitted, so a site that is named can be planned for where its
            Slurm is not here.

    Raises:
        ToolkitError: there is nothing to plan from: no script, no cluster, a broken file. What else is wrong is in ``inputs.findings``.
    """
    named = LAUNCHERS.get(str(flags.values.get("launcher")))
    is_live = flags.values.get("snapshot") is False
    # A launcher of programs runs "python -m pkg.train" as it is written, but -m asks for a module.
    if named is None or not named.takes_programs or flags.values.get("python_module"):
        target_name, flags = _of_python(target_name, flags, here)
    target = resolve(
        target_name, here, program=named is not None and named.takes_programs, is_live=is_live
    )
    layers = [
        layer("default", DEFAULTS),
        *_project(here),
        target.layer,
        from_environment(os.environ),
        flags,
    ]
    place = find_place(_merged(layers).job.site or "auto", dry_run=dry_run)
    site = Layer(f"site {place.site.name}", {**place.site.defaults, "slurm": place.site.slurm})
    example = [] if place.is_here else [offline.comment(place.site)]
    settings = _merged([layers[0], *example, site, *layers[1:], demands(site)])
    findings: list[ToolkitError] = []
    settings = _with_variables(settings, findings)
    client = Client(place.access)
    images = _Images(settings.job, place)
    inner = _runtime_facts(settings.job, place, client, images, findings)
    found = images.found
    source = (
        Source() if target.program else read_source(Path(target.folder) / Path(target.script).name)
    )
    settings = _with_launcher(settings, target, source, inner)
    job = settings.job
    facts = _facts(client, place, job) if place.is_here else offline.facts(place.site)
    if inner.environment is not None:
        facts = replace(facts, mpirun=inner.environment.mpirun)
    run_directory = runs.next_directory(
        here / (job.runs or "runs"), job.job_name or PurePosixPath(target.script).stem
    )
    hidden = _hidden(
        place,
        {
            "directory": (str(here), target.folder),
            **({inner.shared[0]: (inner.shared[1],)} if inner.shared else {}),
        },
    )
    script = None if target.program else Path(target.folder) / Path(target.script).name
    trees, needed = _imports(job, place.site, inner, target, here, run_directory)
    shown = (*trees, *needed.directories)
    hidden |= _hidden(place, {"imports": tuple(one.path for one in needed.directories)})
    if found and job.require_signed and place.is_here:
        from toolkit.images.store.signature_policy import signature

        origin = settings.origins.get("signature_key", "")
        findings += signature(job, found.path, here, Path(target.folder), origin)
    script_file = read_script_file(script) if script is not None else None
    changed = _change(target, script_file)
    seen = (
        read_host_facts(job, place.site, here, script=script, image=found, hidden=hidden)
        if place.is_here
        else offline.seen(script)
    )
    inputs = Inputs(
        job=job,
        origins={
            **settings.origins,
            "site": place.origin if job.site == "auto" else settings.origins.get("site", "default"),
        },
        site=place.site,
        facts=facts,
        image=inner.image,
        manifest=inner.manifest,
        environment=inner.environment,
        engine=inner.engine,
        script=target.script,
        folder=target.folder,
        directory=target.snapshot_cwd or str(here),
        run_directory=str(run_directory),
        findings=findings,
        source=source,
        program=target.program,
        script_file=script_file,
        notes=(changed,) if changed else (),
        tree=_tree(target, job, here, findings),
        shown=shown,
        seen=seen._replace(imports=needed) if place.is_here else seen,
    )
    if not place.is_here:
        warning = offline.warning(job, place.site, inner, settings.origins)
        inputs = inputs._replace(unchecked=warning, is_recipe=offline.is_recipe(job))
    elif inner.image and images.is_to_fetch:
        warning = f"{job.image} has not been fetched: what is in it was not checked"
        inputs = inputs._replace(to_fetch=job.image or "", unchecked=warning)
    return Prepared(inputs, client)


def _change(target: Target, script_file: ScriptFile | None) -> str:
    """Return a warning if a run is repeated whose script has changed since."""
    if target.run is None or target.snapshot_cwd:
        return ""
    from toolkit.records.code import change_since

    return change_since(target.run, script_file)


def _tree(target: Target, job: Job, here: Path, findings: list[ToolkitError]) -> Tree | None:
    """Return the tree that a snapshot is taken of: that of an earlier run, or git's."""
    if target.run is not None and target.snapshot_cwd:
        return Tree(root=str(target.run / "code"), cwd=str(here), is_copy=True)
    if not job.snapshot:
        return None
    from toolkit import git
    from toolkit.records.snapshot import tree_of
    from toolkit.resources import is_shipped

    if is_shipped(Path(target.folder)) and git.top(Path(target.folder)) is None:
        return None  # what was installed does not change
    return _collect(findings, lambda: tree_of(Path(target.folder), here))


class _Images:
    """Finds the SIF that a job names.

    Attributes:
        found: the image, if it is on this machine.
        is_to_fetch: it is one of a registry that has not been fetched.
    """

    def __init__(self, job: Job, place: Place) -> None:
        self._name = job.image or ""
        self._place = place
        self.found: store.FoundImage | None = None
        self.is_to_fetch = False

    def find(self) -> ImageFile:
        """Return the image where the ranks will have it.

        Raises:
            UsageError: no image was named.
            ToolkitError: it is not there.
        """
        if not self._name:
            raise UsageError(
                "no image was named",
                place="--image",
                next_step="--image pytorch_cpu; toolkit image list shows what there is",
            )
        if "://" in self._name:
            from toolkit.images.registry import foreign

            if foreign.is_reference(self._name):
                self.found = foreign.kept(self._name)
                if self.found is None:
                    self.is_to_fetch = True
                    return ImageFile(str(foreign.path_of(self._name)), exists=False)
                return ImageFile(self.found.path, self.found.manifest)
        if not self._place.is_here:
            expected = offline.find_image(self._name)
            self.found = expected
            return ImageFile(expected.path, expected.manifest, exists=False)
        directories = [Path(os.path.expandvars(name)) for name in self._place.site.images]
        self.found = store.find(self._name, directories)
        return ImageFile(self.found.path, self.found.manifest)


def _runtime_facts(
    job: Job, place: Place, client: Client, images: _Images, findings: list[ToolkitError]
) -> RuntimeFacts:
    """Return what the job's runtime discovers; add an error to ``findings`` if it finds nothing."""
    runtime = RUNTIMES.get(job.runtime or DEFAULT)
    if runtime is None:
        return RuntimeFacts()  # the plan refuses it
    discovery = Discovery(
        job, place.site, client if place.is_here else None, images.find, offline.is_recipe(job)
    )
    try:
        return runtime.discover(discovery)
    except ToolkitError as error:
        error.place = error.place or ("--image" if runtime.image else "--runtime")
        findings.append(error)
        return RuntimeFacts()


def _of_python(target_name: str, flags: Layer, here: Path) -> tuple[str, Layer]:
    """Return a target and flags for what is run by ``-m``, or is written as a command of Python."""
    module = flags.values.get("python_module")
    if isinstance(module, str):
        values = {
            **flags.values,
            "job_name": flags.values.get("job_name", module.rpartition(".")[2]),
        }
        return module_file(module, here), flags._replace(values=values)
    words = (target_name, *tuple(flags.values.get("arguments", ())))
    found = of_python(words, here)
    if found is None:
        return target_name, flags
    script, module, arguments = found
    values = {**flags.values, "arguments": arguments}
    if module:
        values |= {
            "python_module": module,
            "job_name": flags.values.get("job_name", module.rpartition(".")[2]),
        }
    return script, flags._replace(values=values)


def _imports(
    job: Job, site: Site, inner: RuntimeFacts, target: Target, here: Path, run_directory: Path
) -> tuple[tuple[Shown, ...], Imports]:
    """Return the git work trees that ranks see, and what the program imports."""
    from toolkit.imports.gather import gather, work_trees

    folder = Path(target.folder)
    trees = work_trees(folder, here)
    visible = (here, folder, run_directory, *(Path(tree.path) for tree in trees))
    script = None if target.program else folder / Path(target.script).name
    return trees, gather(
        job,
        site,
        inner.manifest,
        directory=here,
        script=script,
        program=target.script,
        visible=visible,
    )


def _with_variables(settings: Settings, findings: list[ToolkitError]) -> Settings:
    """Return the settings with the values of secret variables and of those that are passed on.

    A run that is repeated has them already. With the runtime conda, the first name that is no
    variable here is that of the environment.
    """
    job = settings.job
    names, environment = _split(job, os.environ)
    values = {name: os.environ.get(name, job.env.get(name)) for name in (*names, *job.secret)}
    unset = [name for name, value in values.items() if value is None]
    findings += [_unset(name, is_secret=name in job.secret) for name in unset]
    env = {**job.env, **{name: value for name, value in values.items() if value is not None}}
    return Settings(replace(job, env=env, pass_env=names, conda_env=environment), settings.origins)


def _split(job: Job, environment: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    """Return the variables to pass on, and the environment of conda if ``--env`` names one."""
    runtime = RUNTIMES.get(job.runtime or DEFAULT)
    if runtime is None or not runtime.names_environment:
        return job.pass_env, job.conda_env
    others = [name for name in job.pass_env if name not in environment and name not in job.env]
    chosen = others[0] if others else job.conda_env
    return tuple(name for name in job.pass_env if name != chosen), chosen


def _unset(name: str, *, is_secret: bool) -> UsageError:
    cause = f"the variable {name} is not set here"
    if is_secret:
        return UsageError(cause, place="--secret", next_step=f"read -rs {name}; export {name}")
    return UsageError(
        cause,
        place="--env",
        next_step=f"--env {name}=VALUE; an environment of conda: --runtime conda --env {name}",
    )


def _with_launcher(
    settings: Settings, target: Target, source: Source, inner: RuntimeFacts
) -> Settings:
    """The settings with a launcher in the place of ``auto``, and why it is this one in the place of who asked for ``auto``."""
    if settings.job.launcher != "auto":
        return settings
    runtime = settings.job.runtime
    frameworks = inner.manifest.frameworks if inner.manifest else None
    name = PurePosixPath(target.script).name
    chosen = auto.choose(Script(name, source, frameworks, settings.job, noun(runtime)))
    launcher = compatible_launcher(runtime, chosen.launcher)
    origins = {**settings.origins, "launcher": chosen.reason}
    return Settings(replace(settings.job, launcher=launcher), origins)


def chosen_site(here: Path) -> str:
    """The site that somebody chose for what is done in a directory, other than by a flag; ``auto``: nobody did."""
    return (
        _merged(
            [layer("default", DEFAULTS), *_project(here), from_environment(os.environ)]
        ).job.site
        or "auto"
    )


def find_place(name: str, *, dry_run: bool = False) -> Place:
    """The site ``name`` and how it is reached; ``auto`` is the local cluster if it is up, else the Slurm on PATH.

    Args:
        name: of the site.
        dry_run: a site that is named need not be reached.

    Raises:
        UnknownSiteError: no site is called so.
        SlurmUnreachableError: it cannot be reached.
    """
    if name == "auto":
        try:
            return _local(
                sites.load("local"), local_access(default_name()), "the local cluster is up"
            )
        except _NOT_UP as error:
            _require_slurm(error)
        return Place(sites.load("generic"), Access(), "the Slurm on PATH")
    site = sites.load(name)
    try:
        return place_of(site)
    except SlurmUnreachableError:
        if not dry_run or site.access == "local-cluster":
            raise
        return Place(site, Access(), site.name, is_here=False)


def _require_slurm(error: ToolkitError) -> None:
    """Raise if there is no Slurm but the local cluster, which is not up, or if that was asked for by its name."""
    named = os.environ.get("TOOLKIT_CLUSTER")
    has_slurm = _slurm_is_here()
    if named and has_slurm:
        raise SlurmUnreachableError(
            error.cause,
            place="--cluster or TOOLKIT_CLUSTER",
            next_step=f"{error.next_step}; unset TOOLKIT_CLUSTER for the Slurm on PATH",
        )
    if not has_slurm:
        step = error.next_step or ""
        more = (
            " (a real Slurm on this machine), or log in to a cluster's login node"
            if step.startswith("toolkit")
            else ""
        )
        raise SlurmUnreachableError(
            f"there is no Slurm here, and {error.cause}",
            place="--site auto",
            next_step=f"{step}{more}; toolkit run --site NAME --dry-run plans for a cluster from its file",
        ) from None


def place_of(site: Site) -> Place:
    """A site that was read, and how it is reached.

    Raises:
        SlurmUnreachableError: it is the local cluster, and that is not up; or there is no Slurm on PATH.
    """
    if site.access == "local-cluster":
        return _local(site, local_access(default_name()), site.name)
    imitated = _imitated(site)
    if imitated is None and not _slurm_is_here():
        raise SlurmUnreachableError(
            f"there is no Slurm here, and site {site.name} can only be reached from its own machines",
            place=f"--site {site.name}",
            next_step="log in to a login node of it; toolkit run --dry-run writes the script here",
        )
    return imitated or Place(site, Access(), site.name)


def _local(site: Site, access: Access, origin: str) -> Place:
    """The local cluster: as it is written, or as the site that it imitates."""
    if not access.like or site.name not in ("local", access.like):
        return Place(site, access, origin)
    alike = imitation(sites.load(access.like), sites.load("local"), os.path.expandvars)
    return Place(alike, access, f"{origin}, like {access.like}")


def _imitated(site: Site) -> Place | None:
    """The local cluster, where it imitates the site that is asked for and there is no other Slurm here."""
    if _slurm_is_here():
        return None
    try:
        access = local_access(default_name())
    except _NOT_UP:
        return None
    return _local(site, access, site.name) if access.like == site.name else None


def _slurm_is_here() -> bool:
    """Return whether Slurm's commands are on PATH and may know a controller."""
    return shell.which("sbatch") is not None and _has_configuration()


def _has_configuration() -> bool:
    """Whether Slurm's commands may know a controller; Debian's look in /etc/slurm, a site's own build somewhere else."""
    own_build = shell.which("sbatch") != "/usr/bin/sbatch"
    return (
        own_build
        or "SLURM_CONF" in os.environ
        or Path("/etc/slurm/slurm.conf").exists()
        or Path("/run/slurm/conf").exists()
    )


def _merged(layers: Sequence[Layer]) -> Settings:
    try:
        return merge(layers)
    except BadDataError as error:
        raise UsageError(f"a setting does not fit: {error}", place=error.key) from None


def _project(here: Path) -> list[Layer]:
    """The settings of the machine, of the user, and of the nearest project from here upwards."""
    return [layer(file.origin, read_toml(file.path, Project)) for file in settings_files(here)]


def _facts(client: Client, place: Place, job: Job) -> Facts:
    container = next((command for command in place.site.containers if shell.which(command)), None)
    if container is None and place.site.modules:
        container = offline.container_command(place.site)  # the module brings it, in the job
    partitions = client.partitions()
    goes_to = job.partition or next((one.name for one in partitions if one.default), "")
    limits = (
        inventory.limits(client, goes_to)
        if goes_to and (job.most_gpus or job.array is not None)
        else {}
    )
    mine = (
        usage.mine(client) if place.site.partitions or limits else {}
    )  # only where somebody set limits
    facts = Facts(
        partitions=partitions,
        container=container,
        mine=mine,
        limits=limits,
        sbatch_options=_sbatch_options(client) if job.slurm else {},
    )
    launcher = LAUNCHERS.get(job.launcher or "")
    return facts if launcher is None else launcher.discover(facts, client)


@cache
def _sbatch_options(client: Client) -> dict[str, Takes]:
    return client.sbatch_options()


def _collect(findings: list[ToolkitError], look: Callable[[], _Found]) -> _Found | None:
    try:
        return look()
    except ToolkitError as error:
        error.place = error.place or "--image"
        findings.append(error)
        return None


def _hidden(place: Place, paths: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, str]]:
    """The first path of each option that the nodes cannot see, and the directory of each one's own that it lies in."""
    owners = {
        option: next(((path, owner) for path in some if (owner := private_part(path, place))), None)
        for option, some in paths.items()
    }
    return {option: found for option, found in owners.items() if found}


def private_part(path: str, place: Place) -> str | None:
    """The directory that each node has for itself and that ``path`` lies in; None: all nodes see it."""
    where = PurePosixPath(path)
    if any(where.is_relative_to(shared) for shared in place.access.shared_directories):
        return None
    private = place.access.private_directories
    return next(
        (
            name
            for name in (place.site.private_directories if private is None else private)
            if where.is_relative_to(name)
        ),
        None,
    )
