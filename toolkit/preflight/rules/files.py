"""Rules about files and directories: they exist, can be read, and are seen by the nodes."""

from __future__ import annotations

from pathlib import PurePosixPath

from toolkit.checks import Result, check, from_error
from toolkit.errors import BindMissingError
from toolkit.model.case import Case


@check("directory", "where a site takes jobs from", order=100)
def check_directory(case: Case) -> list[Result]:
    """Check that the site takes jobs from here, and that run directories can be made."""
    host, results = case.host, []
    if host.submit_from:
        cause = f"site {case.site.name} takes jobs from {host.submit_from} only"
        results.append(
            from_error(
                BindMissingError(cause, place="directory", next_step=f"cd {host.submit_from}"),
                case.site.cited,
            )
        )
    if not host.writable:
        cause = f"{host.directory} cannot be written to, and the run's directory goes there"
        results.append(
            from_error(
                BindMissingError(
                    cause, place="directory", next_step="change to a directory of yours"
                ),
                "looked here",
            )
        )
    return results


@check("hidden", "what the nodes do not see", order=110)
def check_hidden(case: Case) -> list[Result]:
    """Check that nodes see the paths: each may have a directory of its own in that place."""
    return [
        from_error(
            BindMissingError(
                f"{path} cannot be seen by the nodes: each has a {owner} of its own",
                place=option,
                next_step="use a directory that all nodes share, such as your home",
            ),
            case.site.cited,
        )
        for option, (path, owner) in case.host.hidden.items()
    ]


@check("script", "a script that can be read", order=120)
def check_script(case: Case) -> list[Result]:
    """Check that the script can be read."""
    path = case.host.unreadable
    if not path:
        return []
    step = f"chmod u+r {path}, or ask its owner"
    return [
        from_error(
            BindMissingError(
                f"you may not read {path}, and the ranks are you", place="SCRIPT", next_step=step
            ),
            "looked here",
        )
    ]


@check("binds", "sources of --bind that are there", order=140)
def check_binds(case: Case) -> list[Result]:
    """Check that the sources of ``--bind`` exist."""
    results = []
    for missing in case.host.binds:
        step = (
            f"apt-get install {missing.package} (Debian's package of it), or --bind a copy of yours"
            if missing.package
            else None
        )
        error = BindMissingError(
            f"{missing.path} is not there",
            place="--bind",
            choices=missing.near,
            value=missing.path,
            next_step=step,
        )
        results.append(from_error(error, "looked here"))
    return results


@check("datasets", "data sets that are there", order=150)
def check_datasets(case: Case) -> list[Result]:
    """Check that the data sets that the site keeps exist."""
    return [
        from_error(
            BindMissingError(
                f"{name} should be in {path}, and is not there",
                place="datasets",
                next_step=f"--bind YOUR-COPY:/data/{name}:ro, "
                f"or correct [datasets] of site {case.site.name}",
            ),
            case.site.cited,
        )
        for name, path in case.host.datasets.items()
    ]


_DAY = 1440  # minutes
_QUEUE = 1.0  # days that a job may wait: not known
CONDEMNED = "ToBeDelete_"  # what such files are called at Neuron before they go


@check("purge", "files that the site deletes", order=190)
def check_purge(case: Case) -> list[Result]:
    """Check for files that the site deletes because they are not read.

    They may be deleted while the job waits or runs.
    """
    keeps = case.site.purge_days
    if keeps is None:
        return []
    needed = (
        case.minutes if case.minutes is not None else case.site.max_minutes or _DAY
    ) / _DAY + _QUEUE
    results = []
    for option, path, days in case.host.unread:
        if PurePosixPath(path).name.startswith(CONDEMNED):
            error = BindMissingError(
                f"{path} is about to be deleted",
                place=option,
                next_step="rename it, and keep a copy elsewhere",
            )
            results.append(from_error(error, case.site.cited))
        elif keeps - days < needed:
            cause = (
                f"{path} was not read for {days:.0f} days; after {keeps} the site deletes it, "
                "maybe before this job ends"
            )
            results.append(
                from_error(
                    BindMissingError(cause, place=option, next_step=f"touch {path}"),
                    case.site.cited,
                    stops=False,
                )
            )
    return results
