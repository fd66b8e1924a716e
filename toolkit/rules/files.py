"""Rules about this machine: its directories and files, their space, and what of them nodes see.

They read it, so they are asked where a case is gathered; all other rules are pure.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePosixPath

from toolkit import shell
from toolkit.config import shipped
from toolkit.errors import (
    BindMissingError,
    ImageMissingError,
    NoSpaceError,
    ShapeError,
    ToolkitError,
)
from toolkit.files import hash_file, open_regular
from toolkit.model.case import Case
from toolkit.units import human_size

_LEAST = 100 * 10**6  # bytes: logs of a short run
_LITTLE = 10**9  # bytes: one checkpoint of a small model
_PATIENCE = 10.0  # seconds for a program that knows of quotas
_QUOTA = re.compile(
    r"^[ \t]*\S+\s+(?P<used>\d+)\*?\s+(?P<soft>\d+)\s+(?P<hard>\d+)\b", re.MULTILINE
)
_DAY = 86400.0  # seconds
_QUEUE = 1.0  # days that a job may wait: not known
CONDEMNED = "ToBeDelete_"  # what such files are called at Neuron before they go
# Where programs put what they download, compile or unpack.
_CACHES = (
    *("APPTAINER_CACHEDIR", "SINGULARITY_CACHEDIR", "APPTAINER_TMPDIR", "SINGULARITY_TMPDIR"),
    *("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH"),
    "PIP_CACHE_DIR",
)


def directory(case: Case) -> Iterator[ToolkitError]:
    """Require a directory that the site takes jobs from, and that can hold run directories."""
    cwd = Path(case.directory)
    only = case.site.submit_directory and Path(os.path.expandvars(case.site.submit_directory))
    if only and not cwd.is_relative_to(only.resolve()):
        yield BindMissingError(
            f"site {case.site.name} takes jobs from {only} only",
            place="directory",
            next_step=f"cd {only}",
            source=case.site.cited,
        )
    if not os.access(cwd, os.W_OK):
        yield BindMissingError(
            f"{cwd} cannot be written to, and the run's directory goes there",
            place="directory",
            next_step="change to a directory of yours",
            source="looked here",
        )


def hidden(case: Case) -> Iterator[ToolkitError]:
    """Require paths that nodes see: each may have a directory of its own in that place."""
    named = {"directory": [case.directory, case.target.folder]}
    if case.image.is_here:
        named["--image"] = [case.image.path]
    if case.environment and case.runtime:
        option = "--env" if case.runtime.environments else "--runtime"
        named[option] = [case.environment.prefix]
    named["imports"] = [*case.source.directories]
    for option, paths in named.items():
        findings = (finding for path in paths for finding in unseen(case, option, path))
        yield from islice(findings, 1)


def unseen(case: Case, option: str, path: str) -> Iterator[ToolkitError]:
    """Yield the error of a path in a directory that each node has for itself."""
    access, place = case.client.access, PurePosixPath(path)
    if any(place.is_relative_to(shared) for shared in access.shared_directories):
        return
    known = access.private_directories
    for owner in case.site.private_directories if known is None else known:
        if place.is_relative_to(owner):
            yield BindMissingError(
                f"{path} cannot be seen by the nodes: each has a {owner} of its own",
                place=option,
                next_step="use a directory that all nodes share, such as your home",
                source=case.site.cited,
            )
            return


def script(case: Case) -> Iterator[ToolkitError]:
    """Require a script that can be read."""
    path = case.script_path
    if path and not os.access(path, os.R_OK):
        yield BindMissingError(
            f"you may not read {path}, and the ranks are you",
            place="SCRIPT",
            next_step=f"chmod u+r {path}, or ask its owner",
            source="looked here",
        )


def binds(case: Case) -> Iterator[ToolkitError]:
    """Require the sources of ``--bind``."""
    missing = [bind.source for bind in case.binds if not Path(bind.source).exists()]
    if not missing:
        return
    from toolkit.hostsetup.parts import DATASETS

    for path in missing:
        package = f"apt-get install {DATASETS.get(path)} (Debian's package of it)"
        beside: list[str] = []
        with suppress(OSError):  # of a directory that cannot be listed
            beside += map(str, Path(path).parent.iterdir())
        yield BindMissingError(
            f"{path} is not there",
            place="--bind",
            choices=beside,
            value=path,
            next_step=f"{package}, or --bind a copy of yours" if path in DATASETS else None,
            source="looked here",
        )


def datasets(case: Case) -> Iterator[ToolkitError]:
    """Require the data sets that the site keeps, but for those that the user binds."""
    bound = {bind.target for bind in case.binds}
    for name in case.job.datasets:
        path = os.path.expandvars(case.site.datasets.get(name, "/"))
        if f"/data/{name}" not in bound and not Path(path).exists():
            yield BindMissingError(
                f"{name} should be in {path}, and is not there",
                place="datasets",
                next_step=f"--bind YOUR-COPY:/data/{name}:ro, "
                f"or correct [datasets] of site {case.site.name}",
                source=case.site.cited,
            )


def purge(case: Case) -> Iterator[ToolkitError]:
    """Find files that the site may delete while the job waits or runs, unread for too long."""
    site, keeps = case.site, case.site.purge_days
    if keeps is None:
        return
    texts = filter(None, (site.scratch, site.submit_directory))
    places = [Path(os.path.expandvars(text)).resolve() for text in texts]
    minutes = case.minutes or site.max_minutes
    needed = (minutes * 60 / _DAY if minutes else 1.0) + _QUEUE
    files = {"--image": case.image.path if case.image.is_here else "", "SCRIPT": case.script_path}
    for option, text in files.items():
        path = Path(text)
        if not text or not any(map(path.resolve().is_relative_to, places)):
            continue
        try:
            status = path.stat()
        except OSError:
            continue
        # If the file system notes that we read the image's head, its time starts again.
        days = (time.time() - max(status.st_atime, status.st_mtime)) / _DAY
        if path.name.startswith(CONDEMNED):
            yield BindMissingError(
                f"{path} is about to be deleted",
                place=option,
                next_step="rename it, and keep a copy elsewhere",
                source=site.cited,
            )
        elif keeps - days < needed:
            yield BindMissingError(
                f"{path} was not read for {days:.0f} days; after {keeps} the site deletes it, "
                "maybe before this job ends",
                place=option,
                next_step=f"touch {path}",
                source=site.cited,
                is_warning=True,
            )


def space(case: Case) -> Iterator[ToolkitError]:
    """Require space for what a run writes: its logs and its outcome."""
    cwd = Path(case.directory)
    rooms = {
        "the file system has": shutil.disk_usage(cwd).free,
        "your quota leaves": read_quota(cwd),
    }
    for what, left in rooms.items():
        if left is not None and left < _LITTLE:
            yield NoSpaceError(
                f"in {cwd} {what} {human_size(left)}",
                place="directory",
                next_step="remove old runs, or change to a directory with more room",
                source="looked here",
                is_warning=left >= _LEAST,
            )
            break


def read_quota(directory: Path) -> int | None:
    """Return the bytes that this user may still write; None if no quota is known."""
    mount = directory.resolve()
    while not mount.is_mount() and mount != mount.parent:
        mount = mount.parent
    for words in (
        ("lfs", "quota", "-q", "-u", str(os.getuid()), str(directory)),
        ("quota", "--no-wrap", "--raw-grace", "-f", str(mount)),
    ):
        if shell.which(words[0]) is None:
            continue
        # An absent file server must not hold a run up, and of other file systems Lustre's says
        # nothing.
        with suppress(ToolkitError):
            left = parse_quota(shell.run(words, check=False, timeout=_PATIENCE).stdout)
            if left is not None:
                return left
    return None


def parse_quota(output: str) -> int | None:
    """Return the bytes left by the output of ``quota`` or ``lfs quota -q``; None without a limit.

    Both print a file system, the usage, and the soft and hard limits, in KiB; 0 is no limit.
    """
    row = _QUOTA.search(output)
    if not row:
        return None
    limits = [int(row[name]) for name in ("soft", "hard") if int(row[name])]
    return max(0, min(limits) - int(row["used"])) * 1024 if limits else None


def cache(case: Case) -> Iterator[ToolkitError]:
    """Warn of caches of tens of gigabytes that would fill a small quota."""
    home, scratch = Path.home(), case.site.scratch
    places = {name: case.job.env.get(name) or os.environ.get(name) for name in _CACHES}
    for name, place in places.items() if scratch else ():
        if place and PurePosixPath(place).is_relative_to(home):
            yield NoSpaceError(
                f"{name} is in your home ({place}), whose quota it fills",
                place=name,
                next_step=f"{name}={scratch}/cache",
                source=case.site.cited,
                is_warning=True,
            )


def architecture(case: Case) -> Iterator[ToolkitError]:
    """Require an image and nodes of one architecture: others fail with `Exec format error`."""
    nodes, source = platform.machine(), "guessed: as this machine's"
    if case.written is not None:
        nodes, source = case.written.arch, case.site.cited
    elif case.site.access == "local-cluster":
        source = "the nodes are this machine"
    image = _architecture(case)
    if image in ("", nodes):
        return
    yield ShapeError(
        f"the image is for {image}, "
        f"the nodes of {case.partition_name or case.site.name} are {nodes}",
        place="--image",
        next_step=f"an image for {nodes}, or a partition for {image}",
        source=source,
        is_warning=source.startswith("guessed"),
    )


def _architecture(case: Case) -> str:
    """Return the architecture of the image as ``uname -m`` prints it; empty: not known."""
    if not case.is_sif or not case.image.is_here:
        return ""
    from toolkit.images.sif import SifError
    from toolkit.images.sif import header as sif

    try:
        with open_regular(Path(case.image.path)) as stream:
            return sif.parse_architecture(stream.read(sif.HEADER_SIZE))
    except (OSError, SifError):
        return ""


def locked(case: Case) -> Iterator[ToolkitError]:
    """Warn of an image whose recipe's lock is newer."""
    manifest = case.manifest if case.is_sif and case.image.is_here else None
    if manifest and manifest.locked and _lock(case, manifest.name) not in ("", manifest.locked):
        name = manifest.name
        yield ImageMissingError(
            f"{name} was built from another lock than recipes/{name}.lock is today",
            place="--image",
            next_step=f"toolkit image build {name} --locked",
            source="its manifest",
            is_warning=True,
        )


def _lock(case: Case, name: str) -> str:
    for place in (Path(case.directory) / "recipes", shipped("recipes")):
        with suppress(OSError):
            return hash_file(place / f"{name}.lock")
    return ""
