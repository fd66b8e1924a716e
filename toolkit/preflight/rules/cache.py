"""Caches of tens of gigabytes do not go where the user's quota is small."""

from __future__ import annotations

from pathlib import PurePosixPath

from toolkit.errors import NoSpaceError
from toolkit.preflight.model import Case, Finding
from toolkit.units import human_size

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
_SMALL = 5 * 10**9  # bytes left of a quota below which caches that nobody moved are worth a word


def look(case: Case) -> list[Finding]:
    home, scratch = case.seen.home, case.site.scratch
    if scratch:
        said = {
            **case.seen.caches,
            **{name: value for name, value in case.job.env.items() if name in VARIABLES},
        }
        inside = [
            name
            for name, value in said.items()
            if home and PurePosixPath(value).is_relative_to(home)
        ]
        return [
            _finding(
                case, f"{name} is in your home ({said[name]}), whose quota it fills", name, scratch
            )
            for name in inside
        ]
    left = case.seen.home_quota
    if left is None or left > _SMALL:
        return []
    cause = f"caches of programs go to your home, where your quota leaves {human_size(left)}"
    error = NoSpaceError(
        cause,
        place="cache",
        next_step="set scratch in the site's file, or --env XDG_CACHE_HOME=DIRECTORY",
    )
    return [Finding(error, "quota", stops=False)]


def _finding(case: Case, cause: str, name: str, scratch: str) -> Finding:
    return Finding(
        NoSpaceError(cause, place=name, next_step=f"{name}={scratch}/cache"),
        case.source,
        stops=False,
    )
