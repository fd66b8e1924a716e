"""Rules about space: for the run, and for caches."""

from __future__ import annotations

from pathlib import PurePosixPath

from toolkit.checks import Result, check, from_error
from toolkit.errors import NoSpaceError
from toolkit.model.case import Case
from toolkit.units import human_size

LEAST = 100 * 10**6  # bytes: logs of a short run
LITTLE = 10**9  # bytes: one checkpoint of a small model


@check("space", "room for the run", order=200)
def check_space(case: Case) -> list[Result]:
    """Check the space for what a run writes: at least its logs and its outcome."""
    results = []
    for what, left in (
        ("the file system has", case.host.free),
        ("your quota leaves", case.host.quota),
    ):
        if left is not None and left < LITTLE:
            cause = f"in {case.host.directory} {what} {human_size(left)}"
            error = NoSpaceError(
                cause,
                place="directory",
                next_step="remove old runs, or change to a directory with more room",
            )
            results.append(from_error(error, "looked here", stops=left < LEAST))
    return results[:1]


# Where programs put what they download, compile or unpack.
VARIABLES = (
    *(
        "APPTAINER_CACHEDIR",
        "SINGULARITY_CACHEDIR",
        "APPTAINER_TMPDIR",
        "SINGULARITY_TMPDIR",
        "XDG_CACHE_HOME",
    ),
    *("HF_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "PIP_CACHE_DIR"),
)
_SMALL = 5 * 10**9  # bytes left of a quota, below which caches in the home are worth a warning


@check("cache", "caches that do not fill the home", order=210)
def check_cache(case: Case) -> list[Result]:
    """Check that caches of tens of gigabytes do not fill a small quota."""
    home, scratch = case.host.home, case.site.scratch
    if scratch:
        places = {
            **case.host.caches,
            **{name: value for name, value in case.job.env.items() if name in VARIABLES},
        }
        in_home = [
            name
            for name, value in places.items()
            if home and PurePosixPath(value).is_relative_to(home)
        ]
        return [
            _finding(
                case,
                f"{name} is in your home ({places[name]}), whose quota it fills",
                name,
                scratch,
            )
            for name in in_home
        ]
    left = case.host.home_quota
    if left is None or left > _SMALL:
        return []
    cause = f"caches of programs go to your home, where your quota leaves {human_size(left)}"
    error = NoSpaceError(
        cause,
        place="cache",
        next_step="set scratch in the site's file, or --env XDG_CACHE_HOME=DIRECTORY",
    )
    return [from_error(error, "quota", stops=False)]


def _finding(case: Case, cause: str, name: str, scratch: str) -> Result:
    return from_error(
        NoSpaceError(cause, place=name, next_step=f"{name}={scratch}/cache"),
        case.site.cited,
        stops=False,
    )
