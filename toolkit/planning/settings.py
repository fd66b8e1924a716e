"""Merge layers of settings, record the origin of each value, and find the cluster they name.

The precedence is default < site < user < project < job < environment < flag.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from toolkit import shell, sites
from toolkit.config import settings_files
from toolkit.errors import ClusterError, SlurmUnreachableError, ToolkitError, UsageError, nearest
from toolkit.files import open_regular, read_toml
from toolkit.localcluster.access import access as local_access
from toolkit.localcluster.access import default_name
from toolkit.model.base import BadDataError, convert, field_names
from toolkit.model.job import Job, Project, SlurmValue
from toolkit.model.site import Access, Site
from toolkit.model.slurm_options import OPTIONS
from toolkit.slurm.client import Client

if TYPE_CHECKING:
    from toolkit.images.verify.case import SiteOffer

SENT = ".toolkit-sent"  # in a tree on a login node: its toolkit.toml names the way to itself
VARIABLE = "TOOLKIT_"
SLURM_VARIABLE = "TOOLKIT_SLURM_"  # TOOLKIT_SLURM_MAIL_USER is --slurm mail-user
# Settings of one run alone; variables to pass on are among the words of TOOLKIT_ENV.
_NO_VARIABLE = ("summary", "script", "arguments", "pass_env", "rerun_of", "python_module")
# Variables that are no settings of jobs: of users, of our scripts and studies, and of developers.
_OTHERS = """
BUILD_TMP CLUSTER CLUSTER_DIR DEBIAN_MIRROR ETC IMAGES ON REGISTRIES TRUST VERBOSE
FIRST HOP MEMORY NOTEBOOK ON_NAMED POINT SCALE SCALE_BYTES TALK TOKEN
KEEP_SCREENSHOTS UPDATE_GOLDEN
"""
_PREFIXES = ("TOOLKIT_SLURM_", "TOOLKIT_TEST_")
_MOST_URL = 4096  # bytes
_JOINED = ("arguments", "pass_env", "secret", "bind", "modules")
_GPUS = ("gpus", "gpus_per_node")  # names of the same value
# Settings that a site may require of every job.
_DEMANDS = ("require_signed", "signature_key")
_WHOLE = re.compile(r"-?\d+\Z")
_SWITCH = {
    **dict.fromkeys(("1", "on", "true", "yes"), True),
    **dict.fromkeys(("0", "off", "false", "no"), False),
}

DEFAULTS = Job(
    site="auto",
    image=None,
    runtime="apptainer",
    launcher="auto",
    gpus_per_node=0,
    runs="runs",
)


class Layer(NamedTuple):
    """Settings from one origin, named as users know it, such as ``job.toml`` or ``--nodes``."""

    origin: str
    values: Mapping[str, Any]


class Settings(NamedTuple):
    """Merged settings, and for each key the origin of its value."""

    job: Job
    origins: dict[str, str]


def layer(origin: str, job: Job) -> Layer:
    """Return the settings of ``job`` as a layer, without those that are unset."""
    values = ((name, getattr(job, name)) for name in field_names(Job))
    return Layer(origin, {name: value for name, value in values if value not in (None, (), {})})


def merge(layers: Sequence[Layer]) -> Settings:
    """Put layers on top of each other, the first at the bottom.

    A later layer's value replaces an earlier value; ``arguments``, ``bind`` and ``modules`` are
    joined, ``env`` and ``slurm`` are joined key by key. A layer with a number of GPUs for each node
    also decides how many ranks each node starts, and replaces an earlier ``ntasks_per_node``.

    Raises:
        UsageError: a value is not valid, or a layer gives an option of sbatch twice.
    """
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, values in layers:
        values, slurm = _split_slurm(origin, values)
        gpus = [str(values[key]) for key in _GPUS if key in values]
        is_by_node = any("," in text for text in gpus)
        for key in (*(_GPUS if gpus else ()), *(("ntasks_per_node",) if is_by_node else ())):
            merged.pop(key, None)
            origins.pop(key, None)
        for key, value in values.items():
            if key in _JOINED:
                joined = (*merged.get(key, ()), *value)
                merged[key] = joined if key == "arguments" else tuple(dict.fromkeys(joined))
            elif key == "env":
                merged[key] = {**merged.get(key, {}), **value}
            else:
                merged[key] = value
            origins[key] = f"--{key.replace('_', '-')}" if origin == "flag" else origin
        options = {**merged.get("slurm", {}), **slurm}
        merged["slurm"] = {name: value for name, value in options.items() if value is not False}
        for name in slurm:
            origins[f"slurm {name}"] = "--slurm" if origin == "flag" else origin
    try:
        return Settings(convert(merged, Job), origins)
    except BadDataError as error:
        raise UsageError(f"a setting is not valid: {error}", place=error.key) from None


def _split_slurm(
    origin: str, values: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, SlurmValue]]:
    """Return a layer's settings, and its further options of sbatch.

    An option that has a setting becomes that setting: ``--slurm partition=long`` is
    ``--partition long``, so that all decisions that depend on the partition are made.

    Raises:
        UsageError: both are given, and they differ.
    """
    settings, slurm = dict(values), dict(values.get("slurm", {}))
    settings.pop("slurm", None)
    for name, value in list(slurm.items()):
        option = OPTIONS.get(name)
        if option is None or not option.kind or option.refusal:
            continue
        if value is True and option.takes == "value":
            continue  # The plan refuses it.
        if settings.get(option.field, value) != value:
            raise UsageError(
                f"--slurm {name}={value} contradicts --{name} {settings[option.field]}",
                place=origin if origin != "flag" else f"--{name}",
                next_step="leave one of them out",
            )
        settings[option.field] = slurm.pop(name)
    return settings, slurm


def demands(site: Layer) -> Layer:
    """Return the demands of a site, merged last: no setting, variable or flag relaxes them."""
    keys = _DEMANDS if site.values.get("require_signed") else ()
    return Layer(site.origin, {key: site.values[key] for key in keys if key in site.values})


def variables() -> dict[str, str]:
    """Return the key of a job's settings that each variable sets: that of its option."""
    keys = [key for key in field_names(Job) if key not in _NO_VARIABLE]
    return {VARIABLE + ("MODULE" if key == "modules" else key.upper()): key for key in keys}


def unknown_variables(environment: Iterable[str]) -> list[str]:
    """Return a warning for each variable with our prefix that means nothing to us."""
    named = [name for name in environment if name.startswith(VARIABLE)]
    if not named:
        return []
    known = {*variables(), *(VARIABLE + name for name in _OTHERS.split())}
    return [
        f"the variable {name} means nothing to toolkit"
        + (f"; did you mean {close}?" if (close := nearest(name, known)) else "")
        for name in sorted(named)
        if name not in known and not name.startswith(_PREFIXES)
    ]


def from_environment(environment: Mapping[str, str]) -> Layer:
    """Return the layer of ``TOOLKIT_NODES``, ``TOOLKIT_SLURM_LICENSES`` and the like.

    The value of an option that can be repeated is words, quoted as in a shell.

    Raises:
        UsageError: a value is not valid.
    """
    given: dict[str, Any] = {}
    for name, key in variables().items():
        if text := environment.get(name):
            given |= _setting(name, key, text)
    slurm = {
        name.removeprefix(SLURM_VARIABLE).lower().replace("_", "-"): text
        for name, text in environment.items()
        if name.startswith(SLURM_VARIABLE) and text
    }
    if slurm:
        values = {name: _slurm_value(name, text) for name, text in slurm.items()}
        given["slurm"] = given.get("slurm", {}) | values
    return Layer("environment", given)


def _setting(name: str, key: str, text: str) -> dict[str, Any]:
    """Return what a variable sets: words, or a number, a switch or a text, as its field takes it.

    Raises:
        UsageError: its value is not valid; the place is the variable.
    """
    try:
        if isinstance(getattr(DEFAULTS, key), tuple | dict):
            return named_values({key: tuple(shlex.split(text))})
    except UsageError as error:
        error.place = name
        raise
    except ValueError as error:  # quotes that are not closed
        raise UsageError(f"{text!r} is not valid: {error}", place=name) from None
    switches = [value for word, value in _SWITCH.items() if word == text.strip().lower()]
    cause = ""
    for value in (*([int(text)] if _WHOLE.match(text) else ()), *switches, text):
        try:
            convert({key: value}, Job)
        except BadDataError as error:
            cause = f"{text!r} is not valid: {error}"
        else:
            return {key: value}
    step = f"{name}=on, or {name}=off" if "got str" in cause and "bool" in cause else None
    raise UsageError(cause, place=name, next_step=step)


def _slurm_value(name: str, text: str) -> SlurmValue:
    option = OPTIONS.get(name)
    is_switch = option is not None and (option.takes == "flag" or option.kind == "switch")
    return _SWITCH.get(text.lower(), text) if is_switch else text


def named_values(options: dict[str, Any]) -> dict[str, Any]:
    """Return options with the words of ``--env`` and ``--slurm`` in place as settings by name.

    The words of ``--slurm`` are ``NAME=VALUE``, or ``NAME`` for an option without a value.

    Raises:
        UsageError: an ``--env`` names no variable, or an option of sbatch is given twice.
    """
    texts = options.get("env", ())
    wrong = next((text for text in texts if not text.partition("=")[0]), None)
    if wrong is not None:
        raise UsageError(
            f"--env expects NAME=VALUE, or NAME for a variable that is set here, got {wrong!r}",
            place="--env",
            next_step="--env NAME=VALUE",
        )
    slurm: dict[str, SlurmValue] = {}
    for text in options.get("slurm", ()):
        name, equals, value = text.removeprefix("--").partition("=")
        given: SlurmValue = value if equals else True
        if slurm.setdefault(name, given) != given:
            raise UsageError(
                f"{name} is given twice, with different values",
                place=f"--slurm {name}",
                next_step="leave one of them out",
            )
    named = {
        "env": dict(text.split("=", 1) for text in texts if "=" in text),
        "pass_env": tuple(text for text in texts if "=" not in text),
        "slurm": slurm,
    }
    others = {key: value for key, value in options.items() if key not in named}
    return others | {key: value for key, value in named.items() if value}


def project_layers(cwd: Path) -> list[Layer]:
    """Return the settings of the machine, of the user, and of the project around ``cwd``."""
    return [layer(file.origin, read_toml(file.path, Project)) for file in settings_files(cwd)]


def chosen_login(cwd: Path) -> str:
    """Return the login node that the settings of a directory name; "" is this machine."""
    paths = [file.path for file in settings_files(cwd)]
    own = [read_toml(path, Project).on for path in paths if not (path.parent / SENT).exists()]
    return next((login for login in reversed(own) if login is not None), "")


def chosen(cwd: Path) -> Job:
    """Return what the settings of a directory choose, such as the site and the place of runs."""
    layers = [layer("default", DEFAULTS), *project_layers(cwd), from_environment(os.environ)]
    return merge(layers).job


def with_variables(job: Job) -> tuple[Job, list[ToolkitError]]:
    """Return settings with the values of secret variables and of those that are passed on.

    The findings are of variables that are not set. A repeated run has the values already. For a
    runtime that has named environments, the first name that is not a variable of this shell is that
    of the environment.
    """
    from toolkit.runtimes import DEFAULT, RUNTIMES

    names, environment = job.pass_env, job.conda_env
    runtime = RUNTIMES.get(job.runtime or DEFAULT)
    if runtime is not None and runtime.environments:
        others = (name for name in names if name not in os.environ and name not in job.env)
        environment = next(others, environment)
        names = tuple(name for name in names if name != environment)
    values = {name: os.environ.get(name, job.env.get(name)) for name in (*names, *job.secret)}
    unset = list[ToolkitError]()
    for name in (name for name, value in values.items() if value is None):
        place, conda = "--env", f"--runtime conda --env {name}"
        step = f"--env {name}=VALUE; an environment of conda: {conda}"
        if name in job.secret:
            place, step = "--secret", f"read -rs {name}; export {name}"
        cause = f"the variable {name} is not set in this shell"
        unset.append(UsageError(cause, place=place, next_step=step))
    env = {**job.env, **{name: value for name, value in values.items() if value is not None}}
    notify = job.notify
    try:
        notify = _address(notify) if notify and notify.startswith(("@", "http")) else notify
    except ToolkitError as error:
        unset.append(error)
    return replace(job, env=env, pass_env=names, conda_env=environment, notify=notify), unset


def _address(notify: str) -> str:
    """Return the URL of ``--notify``, from a file that no other user can read if it is ``@FILE``.

    Raises:
        UsageError: there is no such file, others can read it, or it is no URL.
    """
    path, text = Path(notify[1:]).expanduser(), notify
    place, step = "--notify", "--notify https://..., or @FILE with such a line"
    try:
        if notify.startswith("@"):
            with open_regular(path) as file:
                status = os.fstat(file.fileno())
                text = file.read(_MOST_URL).decode("ascii").strip()
            if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                cause = f"{path} may hold a token, and other users can read it"
                raise UsageError(
                    cause, place=place, next_step=f"chmod 600 {shlex.quote(str(path))}"
                )
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}", place=place, next_step=step) from None
    # A run keeps it as a line of curl's configuration.
    match = re.fullmatch(r'(?:url = ")?(https?://[!#-\[\]-~]+?)"?', text)
    if match is None:
        raise UsageError("it names no URL", place=place, next_step=step)
    return match[1]


# The cluster that jobs are planned for: a local one, the Slurm on PATH, or that of a site's file.

# A home whose path is too long for a local cluster, or has a blank in it, has none that is up.
_NOT_UP = (SlurmUnreachableError, ClusterError)


class Cluster(NamedTuple):
    """A cluster that jobs are planned for.

    Attributes:
        site: the cluster as its file describes it.
        client: of its Slurm.
        origin: why it is this cluster.
        is_reachable: its Slurm can be called from this machine.
    """

    site: Site
    client: Client
    origin: str
    is_reachable: bool = True


def find_cluster(name: str | None, *, dry_run: bool = False) -> Cluster:
    """Return the cluster of a site.

    Args:
        name: of the site; ``auto``, or None, is the local cluster if it is up, else the Slurm on
            PATH.
        dry_run: a named site need not be reachable.

    Raises:
        UnknownSiteError: no site has this name.
        SlurmUnreachableError: its Slurm cannot be reached.
    """
    if name is None or name == "auto":
        try:
            return _local(
                sites.load("local"), local_access(default_name()), "the local cluster is up"
            )
        except _NOT_UP as error:
            if _has_slurm() and not os.environ.get("TOOLKIT_CLUSTER"):
                return Cluster(sites.load("generic"), Client(Access()), "the Slurm on PATH")
            lacks, other = "", "unset TOOLKIT_CLUSTER for the Slurm on PATH"
            if not _has_slurm():
                lacks = "this machine has no Slurm, and "
                other = "or log in to a cluster; toolkit run --site NAME --dry-run plans for one"
            raise SlurmUnreachableError(
                lacks + error.cause,
                place="--site auto",
                next_step=f"{error.next_step or 'toolkit cluster up'}; {other}",
            ) from None
    site = sites.load(name)
    try:
        return cluster_of(site)
    except SlurmUnreachableError:
        if not dry_run or site.access == "local-cluster":
            raise
        return Cluster(site, Client(Access()), site.name, is_reachable=False)


def cluster_of(site: Site) -> Cluster:
    """Return the cluster of a site that was read.

    Raises:
        SlurmUnreachableError: the local cluster is not up, or no Slurm is on PATH.
    """
    if site.access == "local-cluster":
        return _local(site, local_access(default_name()), site.name)
    if _has_slurm():
        return Cluster(site, Client(Access()), site.name)
    with suppress(*_NOT_UP):
        access = local_access(default_name())
        if access.like == site.name:
            return _local(site, access, site.name)
    raise SlurmUnreachableError(
        f"this machine has no Slurm, and site {site.name} can only be reached from its own "
        "machines",
        place=f"--site {site.name}",
        next_step="log in to its login node; or write the script on this machine: "
        "toolkit run --dry-run",
    )


def _local(site: Site, access: Access, origin: str) -> Cluster:
    """Return the local cluster: as its file describes it, or as the site that it imitates."""
    if not access.like or site.name not in ("local", access.like):
        return Cluster(site, Client(access), origin)
    from toolkit.localcluster.imitation import adapt_site

    site = adapt_site(sites.load(access.like), sites.load("local"), os.path.expandvars)
    return Cluster(site, Client(access), f"{origin}, like {access.like}")


def _has_slurm() -> bool:
    """Return whether Slurm's commands are on PATH and may have a configuration.

    Debian's commands read /etc/slurm; those of a site's own build read another directory.
    """
    sbatch = shell.which("sbatch")
    return sbatch is not None and (
        sbatch != "/usr/bin/sbatch"
        or "SLURM_CONF" in os.environ
        or Path("/etc/slurm/slurm.conf").exists()
        or Path("/run/slurm/conf").exists()
    )


def find_site(name: str = "auto", *, required: bool = False) -> tuple[SiteOffer | None, str]:
    """Return what a site offers to images, or None and why that is not known.

    Args:
        name: of the site.
        required: the user asked for it.

    Raises:
        ToolkitError: the site is required and cannot be reached.
    """
    from toolkit.images.verify.case import SiteOffer  # a run verifies no image

    try:
        place = find_cluster(name)
        return SiteOffer(name=place.site.name, mpi=place.client.mpi_types()), ""
    except ToolkitError as error:
        if required:
            raise
        return None, f"no cluster: {error.cause}"
