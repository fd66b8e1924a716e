"""Gather the case of a run: settings, cluster, image, script and host.

This is planning's edge: what decides, ``plan``, reads a case and nothing else. Errors on the way
are findings of the case, so that the user sees all of them at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from toolkit import launchers, rules, shell, source
from toolkit.errors import (
    CommandFailedError,
    NeedsInstallError,
    ToolkitError,
    UnknownImageError,
    UsageError,
)
from toolkit.images.store import store as images
from toolkit.launchers import INTERPRETERS, LAUNCHERS
from toolkit.model.case import Case, Image, Target
from toolkit.model.job import Job
from toolkit.model.run import Tree
from toolkit.model.site import Facts
from toolkit.planning.settings import (
    DEFAULTS,
    Cluster,
    Layer,
    Settings,
    demands,
    find_cluster,
    from_environment,
    layer,
    merge,
    project_layers,
    with_variables,
)
from toolkit.planning.target import understand
from toolkit.runtimes import DEFAULT, RUNTIMES
from toolkit.runtimes.base import parse_binds
from toolkit.sites import comment_example

_NUMBERED = re.compile(r"(?P<name>.+)-(?P<number>\d{4,})\Z")
_UNSAFE = re.compile(r"[^A-Za-z0-9._+=@-]+")
_RANKS = {"nodes", "ntasks_per_node", "gpus", "gpus_per_node"}


def gather(
    target_name: str,
    flags: Layer,
    cwd: Path,
    *,
    dry_run: bool = False,
    is_command: bool = False,
) -> Case:
    """Gather the case of one run.

    Args:
        target_name: a script, a job's folder or a run.
        flags: the options of the command line.
        cwd: the current working directory.
        dry_run: nothing will be submitted, so a named site can be planned for whose Slurm cannot be
            called from this machine.
        is_command: what is neither a file nor a job is a program of the image.

    Raises:
        ToolkitError: there is nothing to plan from: no script, no cluster, a broken file. All other
            errors are findings of the case.
    """
    files, variables = project_layers(cwd), from_environment(os.environ)
    known = merge([*files, variables, flags]).job
    target, own, flags, note = understand(target_name, flags, cwd, known, is_command=is_command)
    layers = [*files, own, variables, flags]
    recorded = target.repeats.plan if target.repeats else None
    if recorded:  # its settings are those of the files and variables of its day
        layers = [own, flags]
        was_chosen = recorded.origins.get("launcher", "").startswith(f"{target.name} ")
        if was_chosen and _RANKS.intersection(flags.values):  # on which the choice depends
            layers.insert(1, Layer("default", {"launcher": "auto"}))
    cluster, settings = _merge_settings(layers, is_recorded=bool(recorded), dry_run=dry_run)
    case = _settled(target, note, cluster, settings, cwd)
    case = _with_source(_with_image(case))
    case = _with_facts(_with_launcher(case))
    case = _with_host(case, cwd)
    # Another site has other values.
    if recorded and recorded.site == case.site.name and not flags.values:
        case = case._replace(repeats=recorded)
    if case.job.after:
        from toolkit.localcluster.access import local_name
        from toolkit.runs.status import dependencies

        name = local_name(case.site)
        after, findings = dependencies(case.job.after, Path(case.run).parent, name)
        case = case._replace(after=after).with_findings(*findings)
    return _warned(case, *_unchecked(case))


def _warned(case: Case, *texts: str) -> Case:
    return case.with_findings(*(ToolkitError(text, is_warning=True) for text in texts))


def _merge_settings(
    layers: Sequence[Layer], *, is_recorded: bool, dry_run: bool
) -> tuple[Cluster, Settings]:
    """Return the cluster that the settings choose, and the settings with those of its site.

    Recorded settings have those of the site of their day.
    """
    default = layer("default", DEFAULTS)
    cluster = find_cluster(merge([default, *layers]).job.site, dry_run=dry_run)
    settings = {**cluster.site.defaults, "slurm": cluster.site.slurm}
    site = Layer(f"site {cluster.site.name}", settings)
    below, rule = [site], cluster.site.comment
    if rule and rule.required and not cluster.is_reachable:
        example = {"comment": comment_example(rule)}
        below.insert(0, Layer(f"the example of site {cluster.site.name}", example))
    return cluster, merge([default, *(() if is_recorded else below), *layers, demands(site)])


def _settled(target: Target, note: str, cluster: Cluster, settings: Settings, cwd: Path) -> Case:
    (job, unset), origins = with_variables(settings.job), dict(settings.origins)
    if job.site == "auto" or "site" not in origins:
        origins["site"] = cluster.origin if job.site == "auto" else "default"
    case = Case(
        job=job,
        site=cluster.site,
        directory=str(cwd),
        origins=origins,
        target=target._replace(interpreter=INTERPRETERS.get(Path(target.script).suffix, "")),
        runtime=RUNTIMES.get(job.runtime or DEFAULT),
        cluster=cluster.client if cluster.is_reachable else None,
        findings=tuple(unset),
        notes=(note,) if note else (),
    )
    case = case._replace(run=str(next_directory(cwd / (job.runs or "runs"), case.name)))
    binds, wrong = parse_binds(job.bind, str(cwd))
    return case._replace(binds=binds).with_findings(*(wrong if case.noun == "image" else ()))


def next_directory(runs: Path, name: str) -> Path:
    """Return the directory that the next run of this name will have."""
    safe = _UNSAFE.sub("-", name).strip("-.") or "run"
    numbers = [
        int(match["number"])
        for path in (runs.iterdir() if runs.is_dir() else ())
        if (match := _NUMBERED.match(path.name)) and match["name"] == safe
    ]
    return runs / f"{safe}-{max(numbers, default=0) + 1:04d}"


def _with_image(case: Case) -> Case:
    if case.runtime is None:
        return case  # The plan refuses the runtime.
    try:
        image = _image(case) if case.runtime.image else Image()
        if case.job.stage_image and image.is_here:
            header = images.whole_header(Path(image.path))
            size = Path(image.path).stat().st_size
            image = image._replace(version=f"{header.sif_id}-{size}")
        return case.runtime.discover(case._replace(image=image))
    except ToolkitError as error:
        error.place = error.place or ("--image" if case.runtime.image else "--runtime")
        return case.with_findings(error)


def _image(case: Case) -> Image:
    """Return the image that a job names, where the ranks will have it.

    Raises:
        UsageError: no image is named.
        ToolkitError: there is no such image.
    """
    name, kind = case.job.image, case.runtime.image if case.runtime else ""
    if not name:
        step = "--image NAME, such as pytorch_cpu; toolkit image list shows the names"
        if kind != "sif":
            step = f"--runtime {case.job.runtime} --image REGISTRY/NAME:TAG"
        raise UsageError("no image is named", place="--image", next_step=step)
    if kind != "sif":
        return Image(name, is_recipe=name in images.list_recipes())
    if "://" in name:
        from toolkit.images.registry import foreign

        if foreign.is_reference(name):
            stored = foreign.find_stored(name)
            if stored is None:
                return Image(str(foreign.locate(name)), to_fetch=name)
            return Image(stored.path, stored.manifest, is_here=True)
    # A cluster that is not reached has the image where this machine has it, or would.
    is_far = case.cluster is None
    is_path = name.startswith(("/", "./", "../", "~"))
    if is_far and is_path and not os.path.lexists(os.path.expanduser(name)):  # noqa: PTH111
        return Image(name)
    is_recipe = is_far and name in images.list_recipes()
    shared = () if is_far else [Path(os.path.expandvars(path)) for path in case.site.images]
    try:
        stored = images.find(name, shared)
    except ToolkitError as error:
        if not is_far:
            raise
        if not isinstance(error, UnknownImageError):
            path = images.images_directory() / f"{name.removesuffix('.sif')}.sif"
            return Image(str(path), is_recipe=is_recipe)
        error.next_step = "toolkit image list; or give the path that the image has on the cluster"
        raise
    return Image(stored.path, stored.manifest, is_recipe=is_recipe, is_here=not is_far)


def _with_source(case: Case) -> Case:
    target = case.target
    read = source.read(case)
    if case.cluster is None:
        read = read._replace(needed=())  # What a cluster's directories hold is not known here.
    shown = source.work_trees(Path(target.folder), Path(target.cwd)) | read.directories
    case = case._replace(source=read, shown=shown)
    if target.is_program or target.repeats is None or target.is_copy:
        return case
    from toolkit.runs.code import change_since

    change = change_since(target.repeats, case.script_file)
    return _warned(case, change) if change else case


def _with_launcher(case: Case) -> Case:
    """Return the case with its launcher; for ``auto``, with the reason as its origin."""
    name, reason = case.job.launcher or "", ""
    if is_auto := name == "auto":
        name, reason = launchers.choose(case)
    # Their ranks are there to meet; by srun and none, copies are started on purpose.
    meets = name in ("torchrun", "spawn") and case.source.imports_any("torch")
    if (is_auto or meets) and (alone := launchers.copies(case, name, is_auto=is_auto)):
        case = case.with_findings(alone)
    if not is_auto:
        return case._replace(launcher=LAUNCHERS.get(name))
    return case._replace(
        launcher=LAUNCHERS[name],
        job=replace(case.job, launcher=name),
        origins={**case.origins, "launcher": reason},
    )


def _with_facts(case: Case) -> Case:
    """Return the case with what Slurm says of the cluster, or its file if it is not reached.

    Slurm is asked for what a job like this one depends on.
    """
    site, job, client = case.site, case.job, case.cluster
    container = next((command for command in site.containers if shell.which(command)), None)
    if client is None or (container is None and site.modules):  # a module brings it, in the job
        container = site.container_command
    facts = Facts(mpi=site.mpi or None, container=container, mpirun="")
    wanted = case.launcher.facts if case.launcher else ()
    if client is not None:
        from toolkit.slurm.cluster import ask_limits, ask_usage

        partitions = client.partitions()
        name = job.partition or next((entry.name for entry in partitions if entry.default), "")
        counts = name and (job.most_gpus or job.array is not None or job.sweep)
        limits = ask_limits(client, name, site) if counts else {}
        facts = Facts(
            partitions=partitions,
            container=container,
            # The user's jobs count only where there are limits.
            mine=ask_usage(client) if site.partitions or limits else {},
            limits=limits,
            sbatch_options=client.sbatch_options() if job.slurm else (),
            mpi=client.mpi_types() if "mpi" in wanted else None,
        )
    if client is not None and "mpirun" in wanted:
        with suppress(CommandFailedError, NeedsInstallError):
            answer = shell.run(["mpirun", "--version"], timeout=20, check=False).stdout
            lines = (line.strip() for line in answer.splitlines())
            facts = replace(facts, mpirun=next(filter(None, lines), None))
    if case.environment is not None:
        facts = replace(facts, mpirun=case.environment.mpirun)
    return case._replace(facts=facts)


def _with_host(case: Case, cwd: Path) -> Case:
    image, job = case.image, case.job
    if case.cluster and image.is_here and job.require_signed and case.is_sif:
        from toolkit.images.store.signatures import signature

        origin, folder = case.origins.get("signature_key", ""), Path(case.target.folder)
        case = case.with_findings(*signature(job, image.path, cwd, folder, origin))
    case = rules.check_host(case)
    try:
        return case._replace(tree=_tree(case.target, job, cwd))
    except ToolkitError as error:
        error.place = error.place or "--image"
        return case.with_findings(error)


def _tree(target: Target, job: Job, cwd: Path) -> Tree | None:
    """Return the tree that a snapshot is taken of: that of an earlier run, or git's.

    Raises:
        ToolkitError: a snapshot is asked for, and there is no such tree.
    """
    if target.repeats and target.is_copy:
        return Tree(root=str(target.repeats.directory / "code"), cwd=str(cwd), is_copy=True)
    if not job.snapshot:
        return None
    from toolkit import git
    from toolkit.config import is_shipped
    from toolkit.runs.code import tree_of

    folder = Path(target.folder)
    if is_shipped(folder) and git.top(folder) is None:
        return None  # Installed files do not change.
    return tree_of(folder, cwd)


def _unchecked(case: Case) -> tuple[str, ...]:
    """Return the warning that lists what was not checked, and what the script assumes."""
    image, job = case.image, case.job
    if case.cluster is not None:
        text = f"{image.to_fetch} has not been fetched: its content was not checked"
        return (text,) if image.to_fetch else ()
    unknown = {
        "its partitions and limits as they are now": True,
        "your jobs there": True,
        f"the image ({image.path})": image.path and image.manifest is None,
        "the image's signature": job.require_signed,
        "the paths of --bind": job.bind,
        "the paths of datasets": job.datasets,
        "directories, which the script has as they are on this machine": True,
    }
    listed = "; ".join(what for what, is_unknown in unknown.items() if is_unknown)
    origin = case.origins.get("comment", "")
    comment = f"; the job's comment is {origin}" if origin.startswith("the example") else ""
    return (
        f"planned without the cluster, from the file of {case.site.cited}. "
        f"Not checked: {listed}{comment}",
    )
