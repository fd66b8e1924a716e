"""Collect the facts of a live cluster; write its site file from them, or compare one with them.

The template of the file is ``draft.toml.j2``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from toolkit import shell
from toolkit.config import make_templates
from toolkit.errors import ToolkitError
from toolkit.model.base import Model, field_names, toml_value
from toolkit.model.job import Job
from toolkit.model.site import ClusterNode, Limits, Partition, Site, SitePartition
from toolkit.quoting import comment
from toolkit.shell import Progress
from toolkit.sites import comment_problem
from toolkit.slurm import cluster, hostlist
from toolkit.slurm.client import Client

_PATIENCE = 30  # seconds that a probe waits for a node, and `module avail` for its answer
_CONTAINERS = ("apptainer", "singularity")
_CONTAINER_MODULES = re.compile(r"(?:apptainer|singularity)(?:/|$)", re.IGNORECASE)
# Each line of output begins with its kind, since a node may lack one of the programs.
_PROBE = """\
nvidia-smi --query-gpu=driver_version,name --format=csv,noheader 2>/dev/null | sed 's/^/gpu /'
ip -o -4 addr show scope global 2>/dev/null | awk '{print "interface", $2}'
"""


class NodeProbe(Model, frozen=True, kw_only=True):
    """The facts that a short job collected on a node of a partition.

    Attributes:
        gpus: nvidia-smi's name of each GPU.
        driver: version of the NVIDIA driver; empty: there is none.
        interfaces: network interfaces, without the loopback.
        problem: why there are no facts; empty: there are.
    """

    gpus: tuple[str, ...] = ()
    driver: str = ""
    interfaces: tuple[str, ...] = ()
    problem: str = ""


class Survey(Model, frozen=True, kw_only=True):
    """The facts of a live cluster.

    Attributes:
        slurm: its version.
        cluster: its name, in Slurm's configuration.
        local: it is the cluster of `toolkit cluster up`.
        plugins: of job_submit, whose rules no command prints.
        containers: container commands on PATH.
        modules: names that ``module avail`` lists; None: there is no such command.
        scratch: directory for large files, by an environment variable or by convention; empty:
            there is none.
        limits: by partition, the limits of one user.
        probes: by partition, the facts that a job collected; empty if the user allowed no jobs.
    """

    slurm: str = ""
    cluster: str = ""
    local: bool = False
    plugins: str = ""
    partitions: tuple[Partition, ...] = ()
    nodes: tuple[ClusterNode, ...] = ()
    mpi: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()
    modules: tuple[str, ...] | None = None
    scratch: str = ""
    limits: dict[str, Limits] = {}
    probes: dict[str, NodeProbe] = {}

    def members(self, partition: Partition) -> tuple[ClusterNode, ...]:
        """Return the nodes of a partition."""
        return tuple(node for node in self.nodes if partition.name in node.partitions)


def survey(client: Client, progress: Progress, *, probe: Sequence[str] | None = None) -> Survey:
    """Query the cluster.

    Args:
        client: of the cluster.
        progress: shows the steps.
        probe: further options of srun for a short job on a node of each partition with GPUs, such
            as ``--comment``; None: no jobs.

    Raises:
        SlurmUnreachableError: no Slurm answers.
    """
    progress.begin("slurm", "partitions, nodes, limits")
    partitions, nodes = cluster.ask_partitions(client), cluster.ask_nodes(client)
    config = configuration(client.ask("scontrol", "show", "config").stdout)
    qos, own = cluster.accounts(client)
    limits = {each.name: cluster.limits(each, None, qos, own) for each in partitions}
    with_gpus = {name for node in nodes if node.gpus for name in node.partitions}
    return Survey(
        slurm=config.get("SLURM_VERSION", ""),
        cluster=config.get("ClusterName", ""),
        local=bool(client.access.prefix),
        plugins=config.get("JobSubmitPlugins", ""),
        partitions=partitions,
        nodes=nodes,
        mpi=client.mpi_types(),
        containers=tuple(name for name in _CONTAINERS if shell.which(name)),
        modules=_modules(),
        scratch=_scratch(),
        limits={name: known for name, known in limits.items() if known.source},
        probes={}
        if probe is None
        else {
            each.name: _probe(client, progress, each.name, probe)
            for each in partitions
            if each.name in with_gpus
        },
    )


def configuration(text: str) -> dict[str, str]:
    """Parse the output of ``scontrol show config``, without the values that are not set."""
    rows = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {
        name.strip(): value.strip()
        for name, _, value in rows
        if value.strip() not in ("", "(null)", "N/A")
    }


def _modules() -> tuple[str, ...] | None:
    """Return the modules that a login shell lists; None if it has no command ``module``."""
    words = ("bash", "-lc", "type module >/dev/null 2>&1 && module -t avail 2>&1")
    try:
        result = shell.run(words, check=False, timeout=_PATIENCE)
    except ToolkitError:
        return None
    return modules(result.stdout) if result.ok else None


def modules(text: str) -> tuple[str, ...]:
    """Parse the output of ``module -t avail`` into names without their marks.

    Headings end in a colon.
    """
    # A mark is written behind a name: gcc/12.2(default), gcc/13.2 <L>.
    lines = (re.sub(r"\s*[(<].*[)>]$", "", line.strip()) for line in text.splitlines())
    return tuple(
        sorted({line for line in lines if line and " " not in line and line[-1] not in ":/"})
    )


def _scratch() -> str:
    """Return ``$SCRATCH`` or ``/scratch/$USER``, the first that is a directory; else empty."""
    texts = ("$SCRATCH", "/scratch/$USER")
    places = ((text, os.path.expandvars(text)) for text in texts)
    return next((text for text, place in places if place and Path(place).is_dir()), "")


def _probe(client: Client, progress: Progress, partition: str, options: Sequence[str]) -> NodeProbe:
    progress.begin("probe", f"a job of some seconds in {partition}")
    words = ("--nodes=1", "--ntasks=1", "--gres=gpu:1", "--time=2", f"--immediate={_PATIENCE}")
    try:
        result = client.ask(
            "srun", *words, f"--partition={partition}", *options, "bash", "-c", _PROBE
        )
    except ToolkitError as error:
        return NodeProbe(problem=error.cause)
    if not result.ok:
        return NodeProbe(problem=" ".join(result.tail(2)) or "srun failed")
    return parse_probe(result.stdout)


def parse_probe(text: str) -> NodeProbe:
    """Parse the output of a probe."""
    rows = [line.split(" ", 1) for line in text.splitlines() if " " in line]
    gpus = [value.partition(", ") for kind, value in rows if kind == "gpu"]
    interfaces = tuple(
        dict.fromkeys(value.split("@")[0] for kind, value in rows if kind == "interface")
    )
    return NodeProbe(
        gpus=tuple(name for _, _, name in gpus),
        driver=gpus[0][0] if gpus else "",
        interfaces=interfaces,
    )


def draft(name: str, survey: Survey, *, date: str) -> str:
    """Return the text of the file.

    Args:
        name: of the site.
        survey: the cluster's own facts.
        date: today, as ``2026-11-21``.
    """
    environment = make_templates("sites", autoescape=False)  # not HTML: the filters quote for TOML
    environment.filters |= {"toml": toml_value, "plain": comment}
    probes = [probe for probe in survey.probes.values() if not probe.problem]
    drivers = {probe.driver for probe in probes if probe.driver}
    return environment.get_template("draft.toml.j2").render(
        name=name,
        survey=survey,
        date=date,
        loaded=[module for module in survey.modules or () if _CONTAINER_MODULES.match(module)],
        interfaces=list(dict.fromkeys(each for probe in probes for each in probe.interfaces)),
        driver=min(drivers, key=lambda text: [*map(int, re.findall(r"\d+", text))], default=""),
        partitions=[_partition(each, survey) for each in survey.partitions],
    )


def _partition(partition: Partition, survey: Survey) -> dict[str, Any]:
    members, probe = survey.members(partition), survey.probes.get(partition.name)
    is_bare = re.fullmatch(r"[A-Za-z0-9_-]+", partition.name)
    types = dict.fromkeys(node.gpu_type.upper() for node in members if node.gpu_type)
    hardware = [
        (key, sorted({getattr(node, key) for node in members}))
        for key in ("cpus", "memory", "gpus")
    ]
    return {
        "partition": partition,
        "key": partition.name if is_bare else toml_value(partition.name),
        "members": members,
        "limits": survey.limits.get(partition.name, Limits()),
        "hardware": [
            (key, values) for key, values in hardware if values and (values[-1] or key != "gpus")
        ],
        "has_gpus": any(node.gpus for node in members),
        "gpu": probe.gpus[0] if probe and probe.gpus else ", ".join(types),
        "arches": sorted({node.arch for node in members if node.arch}),
    }


class Difference(NamedTuple):
    """A value of the site file that is not correct.

    Attributes:
        key: of the file: ``partitions.cas_v100_4.gpus``.
        text: what is wrong, with both values.
        wrong: jobs are refused or accepted by mistake; else the difference does no harm.
    """

    key: str
    text: str
    wrong: bool = True


def within(site: Site) -> Iterator[Difference]:
    """Yield contradictions between values, and values that the toolkit never reads."""
    rule, options = site.comment, field_names(Job)
    if rule and rule.example and (broken := comment_problem(rule, rule.example)):
        yield Difference("comment.example", f"it breaks its own rule: {broken}")
    for option in sorted(set(site.required) & set(site.forbidden)):
        yield Difference(f"required.{option}", "it is forbidden as well")
    for name, partition in site.partitions.items():
        try:
            hostlist.count(partition.nodes)
        except ValueError as error:
            yield Difference(f"partitions.{name}.nodes", str(error))
    for name in site.defaults:
        if name not in options:
            yield Difference(f"defaults.{name}", "toolkit run has no such option")
    default = site.defaults.get("partition")
    if default is not None and site.partitions and default not in site.partitions:
        yield Difference("defaults.partition", f"there is no partition {default!r}")


def against(site: Site, survey: Survey) -> Iterator[Difference]:
    """Yield the differences between the site file and the cluster."""
    known = {partition.name for partition in survey.partitions}
    for name, written in site.partitions.items():
        if name in known and written.batch:
            yield from _differences(name, written, site, survey)
        elif name not in known and written.batch:
            yield Difference(f"partitions.{name}", "the cluster has no such partition")
    default = site.defaults.get("partition")
    if default is not None and default not in known:
        yield Difference("defaults.partition", f"the cluster has no partition {default!r}")
    for name in sorted(known - {*site.partitions} if site.partitions else ()):
        text = "the file does not have this partition"
        yield Difference(f"partitions.{name}", text, wrong=False)
    missing = [kind for kind in site.mpi if kind not in survey.mpi] if survey.mpi else []
    if missing:
        text = f"srun --mpi has no {', '.join(missing)}; it has {', '.join(survey.mpi)}"
        yield Difference("mpi", text)
    for module in dict.fromkeys((*site.modules, *site.available_modules)):
        if survey.modules is not None and module not in survey.modules:
            text = f"the cluster has no module {module}"
            yield Difference("modules", text, wrong=module in site.modules)


def _differences(
    name: str, written: SitePartition, site: Site, survey: Survey
) -> Iterator[Difference]:
    live = next(each for each in survey.partitions if each.name == name)
    members, limits = survey.members(live), survey.limits.get(name, Limits())
    rows: tuple[tuple[str, object, object], ...] = (
        ("gpus", max((node.gpus for node in members), default=0), written.gpus),
        ("cpus", max((node.cpus for node in members), default=0), written.cpus),
        (
            "max_minutes",
            "no limit" if live.max_minutes is None else live.max_minutes,
            written.max_minutes or site.max_minutes,
        ),
        ("nodes", len(members), hostlist.count(written.nodes)),
        ("jobs_submitted", limits.jobs_submitted, written.jobs_submitted),
        ("jobs_running", limits.jobs_running, written.jobs_running),
        ("gpus_per_user", limits.gpus, written.gpus_per_user),
    )
    for key, now, then in rows:
        if now is not None and then is not None and now != then:
            text = f"{now} in Slurm, {then} in the file"
            yield Difference(f"partitions.{name}.{key}", text, wrong=key != "nodes")
    arches = {node.arch for node in members if node.arch}
    if arches and written.arch not in arches:
        text = f"the nodes are {', '.join(sorted(arches))}, the file has {written.arch}"
        yield Difference(f"partitions.{name}.arch", text)
