"""Gather the inputs of a plan.

They are the settings in files and in the environment, the cluster, the image and the script. Errors
on the way are collected, so that the user sees all of them at once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from msgspec.structs import replace

from toolkit import launchers, shell
from toolkit.errors import ToolkitError
from toolkit.launchers import LAUNCHERS
from toolkit.launchers.shared.base import Script
from toolkit.model.code import ScriptFile, Tree
from toolkit.model.job import Job
from toolkit.model.site import Facts
from toolkit.model.slurm_options import Takes
from toolkit.model.source import Imports, Shown, Source
from toolkit.planning import commands, offline, script_source
from toolkit.planning.cluster import Cluster, find_cluster, node_local_paths
from toolkit.planning.image_file import ImageFinder, runtime_facts
from toolkit.planning.inputs import Inputs
from toolkit.planning.layers import merge_layers, project_layers, with_variables
from toolkit.planning.repeat import not_taken
from toolkit.planning.settings import DEFAULTS, Layer, Settings, demands, from_environment, layer
from toolkit.planning.target import Target, python_target, resolve
from toolkit.preflight.host_facts import read_host_facts
from toolkit.preflight.model import HostFacts
from toolkit.records import store
from toolkit.runtimes import compatible_launcher, noun
from toolkit.runtimes.shared.base import RuntimeFacts
from toolkit.slurm import inventory
from toolkit.slurm.client import Client


class GatheredInputs(NamedTuple):
    """The inputs of a plan, and the client of the cluster that it is for."""

    inputs: Inputs
    client: Client


class _Run(NamedTuple):
    """A run that inputs are gathered for.

    Attributes:
        target: what is run.
        cluster: that it is submitted to.
        job: the merged settings.
        origins: of the settings.
        cwd: the current working directory.
        runs: the directory of run directories.
        script: path of the script; None for a program of the image.
        runtime: what the runtime discovered.
        images: the finder of the image.
    """

    target: Target
    cluster: Cluster
    job: Job
    origins: dict[str, str]
    cwd: Path
    runs: Path
    script: Path | None
    runtime: RuntimeFacts
    images: ImageFinder


def gather_inputs(
    target_name: str,
    flags: Layer,
    cwd: Path,
    *,
    dry_run: bool = False,
    is_command: bool = False,
) -> GatheredInputs:
    """Gather the inputs of one run.

    Args:
        target_name: a script, a job's folder or a run.
        flags: the options of the command line.
        cwd: the current working directory.
        dry_run: nothing will be submitted, so a named site can be planned for whose Slurm cannot be
            called from this machine.
        is_command: what is neither a file nor a job is a program of the image.

    Raises:
        ToolkitError: there is nothing to plan from: no script, no cluster, a broken file. All other
            errors are in ``inputs.findings``.
    """
    files, variables = project_layers(cwd), from_environment(os.environ)
    known = merge_layers([*files, variables, flags]).job
    target, flags, understood = _resolve_target(
        target_name, flags, cwd, known, is_command=is_command
    )
    findings: list[ToolkitError] = []
    recorded = store.Paths(target.run).read_plan() if target.run else None
    layers = [*files, target.layer, variables, flags]
    if recorded:  # its settings are those of the files and variables of its day
        layers = [target.layer, flags]
    cluster, settings = _merge_settings(layers, is_recorded=bool(recorded), dry_run=dry_run)
    changed = ""
    if recorded:
        today = merge_layers([_site_layer(cluster), *files, variables])
        changed = not_taken(recorded, settings.job, today)
    settings = with_variables(settings, findings)
    client, images = Client(cluster.access), ImageFinder(settings.job, cluster)
    runtime = runtime_facts(settings.job, cluster, client, images, findings)
    script = None if target.program else Path(target.folder) / Path(target.script).name
    source = Source() if script is None else script_source.read(script, cwd)
    settings = _with_launcher(settings, target, source, runtime, findings)
    job, origins = settings.job, dict(settings.origins)
    if job.site == "auto" or "site" not in origins:
        origins["site"] = cluster.origin if job.site == "auto" else "default"
    runs = cwd / (job.runs or "runs")
    run = _Run(target, cluster, job, origins, cwd, runs, script, runtime, images)
    inputs = _inputs(run, client, source, findings)
    notes = (*inputs.notes, *filter(None, (changed,)))
    inputs = inputs._replace(notes=notes, understood=understood)
    # A part of an allocation is repeated as a job of its own; another site has other values.
    is_alike = recorded and recorded.site == cluster.site.name and not recorded.is_part
    if is_alike and not flags.values:
        inputs = inputs._replace(repeats=recorded)
    if not cluster.is_reachable:
        warning = offline.warning(job, cluster.site, runtime, settings.origins)
        inputs = inputs._replace(unchecked=warning, is_recipe=offline.is_recipe(job))
    elif runtime.image and images.is_to_fetch:
        warning = f"{job.image} has not been fetched: its content was not checked"
        inputs = inputs._replace(to_fetch=job.image or "", unchecked=warning)
    return GatheredInputs(inputs, client)


def _resolve_target(
    name: str, flags: Layer, cwd: Path, known: Job, *, is_command: bool
) -> tuple[Target, Layer, str]:
    """Resolve a target with the settings that are ``known`` before its own.

    The third value is what was understood of another launcher's command.
    """
    words, note = (name, *flags.values.get("arguments", ())), ""
    if "launcher" not in flags.values and not (cwd / name).exists():
        pasted = commands.translate(words, flags)
        if pasted is not None:
            name, flags, note = pasted.words[0], pasted.over(flags), pasted.note
    launcher = LAUNCHERS.get(flags.values.get("launcher") or known.launcher or "")
    if launcher is not None and launcher.has_own_program:
        return Target(name, str(cwd), Layer("program", {}), program=True), flags, note
    is_other = any(name in other.commands for other in LAUNCHERS.values())
    is_program = is_other if launcher is None else launcher.takes_programs
    # A launcher of programs runs "python -m pkg.train" as it is written, but -m asks for a module.
    if not is_program or flags.values.get("python_module"):
        name, flags = python_target(name, flags, cwd)
    is_program = is_program or is_command or commands.starts_something(name)
    is_live = flags.values.get("snapshot") is False
    runs = known.runs or "runs"
    target = resolve(name, cwd, runs=runs, program=is_program, is_live=is_live)
    return target, flags, note


def _merge_settings(
    layers: Sequence[Layer], *, is_recorded: bool, dry_run: bool
) -> tuple[Cluster, Settings]:
    """Return the cluster that the settings choose, and the settings with those of its site.

    Recorded settings have those of the site of their day.
    """
    default = layer("default", DEFAULTS)
    chosen = merge_layers([default, *layers]).job.site or "auto"
    cluster = find_cluster(chosen, dry_run=dry_run)
    site = _site_layer(cluster)
    example = [] if cluster.is_reachable else [offline.comment(cluster.site)]
    below = [] if is_recorded else [*example, site]
    return cluster, merge_layers([default, *below, *layers, demands(site)])


def _site_layer(cluster: Cluster) -> Layer:
    values = {**cluster.site.defaults, "slurm": cluster.site.slurm}
    return Layer(f"site {cluster.site.name}", values)


def _with_launcher(
    settings: Settings,
    target: Target,
    source: Source,
    facts: RuntimeFacts,
    findings: list[ToolkitError],
) -> Settings:
    """Return the settings with a launcher in place of ``auto``, and the reason as its origin."""
    if settings.job.launcher != "auto":
        return settings
    runtime = settings.job.runtime
    frameworks = facts.manifest.frameworks if facts.manifest else None
    name = PurePosixPath(target.script).name
    script = Script(name, source, frameworks, settings.job, noun(runtime), target.program)
    chosen = launchers.choose(script)
    findings += filter(None, (launchers.copies(script, chosen),))
    launcher = compatible_launcher(runtime, chosen.launcher)
    origins = {**settings.origins, "launcher": chosen.reason}
    return Settings(replace(settings.job, launcher=launcher), origins)


def _inputs(run: _Run, client: Client, source: Source, findings: list[ToolkitError]) -> Inputs:
    target, job, runtime = run.target, run.job, run.runtime
    name = job.job_name or PurePosixPath(target.script).stem
    run_directory = store.next_directory(run.runs, name)
    trees, imports = _imports(run, run_directory)
    findings += _signature_findings(run)
    script_file = None if run.script is None else script_source.script_file(run.script)
    change = _change(target, script_file)
    return Inputs(
        job=job,
        origins=run.origins,
        site=run.cluster.site,
        facts=_facts(run, client),
        image=runtime.image,
        manifest=runtime.manifest,
        environment=runtime.environment,
        engine=runtime.engine,
        script=target.script,
        folder=target.folder,
        directory=target.snapshot_cwd or str(run.cwd),
        run_directory=str(run_directory),
        host=_host_facts(run, imports),
        tree=_tree(target, job, run.cwd, findings),
        findings=findings,
        source=source,
        program=target.program,
        script_file=script_file,
        notes=(change,) if change else (),
        shown=(*trees, *imports.directories),
    )


def _change(target: Target, script_file: ScriptFile | None) -> str:
    """Return a warning if a run is repeated whose script has changed since."""
    if target.run is None or target.snapshot_cwd:
        return ""
    from toolkit.records.code import change_since

    return change_since(target.run, script_file)


def _imports(run: _Run, run_directory: Path) -> tuple[tuple[Shown, ...], Imports]:
    """Return the git work trees that ranks see, and what the program imports."""
    from toolkit.imports.gather import find_work_trees
    from toolkit.imports.gather import gather as gather_imports

    folder = Path(run.target.folder)
    trees = find_work_trees(folder, run.cwd)
    visible = (run.cwd, folder, run_directory, *(Path(tree.path) for tree in trees))
    return trees, gather_imports(
        run.job,
        run.cluster.site,
        run.runtime.manifest,
        directory=run.cwd,
        script=run.script,
        program=run.target.script,
        visible=visible,
    )


def _signature_findings(run: _Run) -> list[ToolkitError]:
    image = run.images.image
    if image is None or not run.job.require_signed or not run.cluster.is_reachable:
        return []
    from toolkit.images.store.signatures import signature

    origin = run.origins.get("signature_key", "")
    return list(signature(run.job, image.path, run.cwd, Path(run.target.folder), origin))


def _facts(run: _Run, client: Client) -> Facts:
    """Return what Slurm says of the cluster, or the site's file where Slurm cannot be called."""
    site, job = run.cluster.site, run.job
    if not run.cluster.is_reachable:
        facts = offline.facts(site)
    else:
        container = next((command for command in site.containers if shell.which(command)), None)
        if container is None and site.modules:
            container = offline.container_command(site)  # The module brings it, in the job.
        partitions = client.partitions()
        name = job.partition or next((entry.name for entry in partitions if entry.default), "")
        needs_limits = name and (job.most_gpus or job.array is not None)
        limits = inventory.limits(client, name) if needs_limits else {}
        # The user's jobs count only where there are limits.
        mine = inventory.user_usage(client) if site.partitions or limits else {}
        facts = Facts(
            partitions=partitions,
            container=container,
            mine=mine,
            nodes=client.nodes() if job.nodelist or job.exclude or job.constraint else {},
            limits=limits,
            sbatch_options=_sbatch_options(client) if job.slurm else {},
        )
        launcher = LAUNCHERS.get(job.launcher or "")
        facts = facts if launcher is None else launcher.discover(facts, client)
    if run.runtime.environment is not None:
        facts = replace(facts, mpirun=run.runtime.environment.mpirun)
    return facts


@cache
def _sbatch_options(client: Client) -> dict[str, Takes]:
    return client.sbatch_options()


def _host_facts(run: _Run, imports: Imports) -> HostFacts:
    """Return the facts of this machine that the preflight rules need."""
    if not run.cluster.is_reachable:
        return offline.host_facts(run.script)
    paths: dict[str, tuple[str, ...]] = {"directory": (str(run.cwd), run.target.folder)}
    if run.runtime.shared:
        paths[run.runtime.shared[0]] = (run.runtime.shared[1],)
    paths["imports"] = tuple(shown.path for shown in imports.directories)
    facts = read_host_facts(
        run.job,
        run.cluster.site,
        run.cwd,
        script=run.script,
        image=run.images.image,
        hidden=node_local_paths(run.cluster, paths),
    )
    return facts._replace(imports=imports)


def _tree(target: Target, job: Job, cwd: Path, findings: list[ToolkitError]) -> Tree | None:
    """Return the tree that a snapshot is taken of: that of an earlier run, or git's."""
    if target.run is not None and target.snapshot_cwd:
        return Tree(root=str(target.run / "code"), cwd=str(cwd), is_copy=True)
    if not job.snapshot:
        return None
    from toolkit import git
    from toolkit.config import is_shipped
    from toolkit.records.snapshot import tree_of

    folder = Path(target.folder)
    if is_shipped(folder) and git.top(folder) is None:
        return None  # Installed files do not change.
    try:
        return tree_of(folder, cwd)
    except ToolkitError as error:
        error.place = error.place or "--image"
        findings.append(error)
        return None
