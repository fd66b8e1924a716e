"""Rules about files, directories and space: there is enough, and the nodes see what a job needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from toolkit.errors import BindMissingError, NoSpaceError, ToolkitError
from toolkit.model.case import Case, Rule
from toolkit.units import human_size

LEAST = 100 * 10**6  # bytes: logs of a short run
LITTLE = 10**9  # bytes: one checkpoint of a small model
_SMALL = 5 * 10**9  # bytes left of a quota, below which caches in the home are worth a warning
_DAY = 1440  # minutes
_QUEUE = 1.0  # days that a job may wait: not known
CONDEMNED = "ToBeDelete_"  # what such files are called at Neuron before they go
# Where programs put what they download, compile or unpack.
VARIABLES = (
    *("APPTAINER_CACHEDIR", "SINGULARITY_CACHEDIR", "APPTAINER_TMPDIR", "SINGULARITY_TMPDIR"),
    *("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH"),
    "PIP_CACHE_DIR",
)


def directory(case: Case) -> Iterator[ToolkitError]:
    """Require a directory that the site takes jobs from, and that can hold run directories."""
    host = case.host
    if host.submit_from:
        yield BindMissingError(
            f"site {case.site.name} takes jobs from {host.submit_from} only",
            place="directory",
            next_step=f"cd {host.submit_from}",
            source=case.site.cited,
        )
    if not host.writable:
        yield BindMissingError(
            f"{host.directory} cannot be written to, and the run's directory goes there",
            place="directory",
            next_step="change to a directory of yours",
            source="looked here",
        )


def hidden(case: Case) -> Iterator[ToolkitError]:
    """Require paths that nodes see: each may have a directory of its own in that place."""
    for option, (path, owner) in case.host.hidden.items():
        yield BindMissingError(
            f"{path} cannot be seen by the nodes: each has a {owner} of its own",
            place=option,
            next_step="use a directory that all nodes share, such as your home",
            source=case.site.cited,
        )


def script(case: Case) -> Iterator[ToolkitError]:
    """Require a script that can be read."""
    if path := case.host.unreadable:
        yield BindMissingError(
            f"you may not read {path}, and the ranks are you",
            place="SCRIPT",
            next_step=f"chmod u+r {path}, or ask its owner",
            source="looked here",
        )


def binds(case: Case) -> Iterator[ToolkitError]:
    """Require the sources of ``--bind``."""
    for missing in case.host.binds:
        package = f"apt-get install {missing.package} (Debian's package of it)"
        yield BindMissingError(
            f"{missing.path} is not there",
            place="--bind",
            choices=missing.near,
            value=missing.path,
            next_step=f"{package}, or --bind a copy of yours" if missing.package else None,
            source="looked here",
        )


def datasets(case: Case) -> Iterator[ToolkitError]:
    """Require the data sets that the site keeps."""
    for name, path in case.host.datasets.items():
        yield BindMissingError(
            f"{name} should be in {path}, and is not there",
            place="datasets",
            next_step=f"--bind YOUR-COPY:/data/{name}:ro, "
            f"or correct [datasets] of site {case.site.name}",
            source=case.site.cited,
        )


def purge(case: Case) -> Iterator[ToolkitError]:
    """Find files that the site may delete while the job waits or runs, unread for too long."""
    keeps, minutes = case.site.purge_days, case.minutes
    if keeps is None:
        return
    needed = (case.site.max_minutes or _DAY if minutes is None else minutes) / _DAY + _QUEUE
    for option, path, days in case.host.unread:
        if PurePosixPath(path).name.startswith(CONDEMNED):
            yield BindMissingError(
                f"{path} is about to be deleted",
                place=option,
                next_step="rename it, and keep a copy elsewhere",
                source=case.site.cited,
            )
        elif keeps - days < needed:
            yield BindMissingError(
                f"{path} was not read for {days:.0f} days; after {keeps} the site deletes it, "
                "maybe before this job ends",
                place=option,
                next_step=f"touch {path}",
                source=case.site.cited,
                is_warning=True,
            )


def space(case: Case) -> Iterator[ToolkitError]:
    """Require space for what a run writes: at least its logs and its outcome."""
    rooms = {"the file system has": case.host.free, "your quota leaves": case.host.quota}
    for what, left in rooms.items():
        if left is not None and left < LITTLE:
            yield NoSpaceError(
                f"in {case.host.directory} {what} {human_size(left)}",
                place="directory",
                next_step="remove old runs, or change to a directory with more room",
                source="looked here",
                is_warning=left >= LEAST,
            )
            return


def cache(case: Case) -> Iterator[ToolkitError]:
    """Warn of caches of tens of gigabytes that would fill a small quota."""
    home, scratch, left = case.host.home, case.site.scratch, case.host.home_quota
    places = case.host.caches | {key: case.job.env[key] for key in VARIABLES if key in case.job.env}
    for name, place in places.items() if scratch and home else ():
        if PurePosixPath(place).is_relative_to(home):
            yield NoSpaceError(
                f"{name} is in your home ({place}), whose quota it fills",
                place=name,
                next_step=f"{name}={scratch}/cache",
                source=case.site.cited,
                is_warning=True,
            )
    if not scratch and left is not None and left <= _SMALL:
        yield NoSpaceError(
            f"caches of programs go to your home, where your quota leaves {human_size(left)}",
            place="cache",
            next_step="set scratch in the site's file, or --env XDG_CACHE_HOME=DIRECTORY",
            source="quota",
            is_warning=True,
        )


RULES = (
    Rule("directory", "where a site takes jobs from", directory),
    Rule("hidden", "what the nodes do not see", hidden),
    Rule("script", "a script that can be read", script),
    Rule("binds", "sources of --bind that are there", binds),
    Rule("datasets", "data sets that are there", datasets),
    Rule("purge", "files that the site deletes", purge),
    Rule("space", "room for the run", space),
    Rule("cache", "caches that do not fill the home", cache),
)
