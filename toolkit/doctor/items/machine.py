"""Items about this machine: its container command, namespaces, directories and their space."""

from __future__ import annotations

import tempfile
from pathlib import Path

from toolkit import shell
from toolkit.checks import Result, check, failed, passed, warned
from toolkit.doctor.case import DoctorCase
from toolkit.hostsetup.facts import read_facts
from toolkit.hostsetup.model import Facts, SetupOptions
from toolkit.images.host import space
from toolkit.images.host.space import Room, file_system
from toolkit.units import human_size

_PATIENCE = 20.0  # seconds for a container command
_SAMPLE = 1 << 20  # bytes that are written to a directory
# Bytes below which work soon stops: images of NVIDIA's are 5 to 10 GB, runs hold scripts and logs.
_LITTLE = {"images": 10 * 10**9, "runs": 10**9, "caches": 2 * 10**9}
_NONE = 10 * 10**6


@check("container", "a command that starts containers is installed and runs")
def check_container(case: DoctorCase) -> Result:
    """Check the command that starts containers."""
    names = case.site.containers if case.site else ("apptainer", "singularity")
    program = next((path for path in map(shell.which, names) if path), None)
    if program is None and case.site and case.site.modules:
        modules = ", ".join(case.site.modules)
        missing = f"{' and '.join(names)} are not on PATH here"
        return warned(f"{missing}; in jobs the modules {modules} bring them")
    if program is None:
        step = "toolkit setup, or load its module"
        return failed(f"neither {' nor '.join(names)} is on PATH", step)
    answer = shell.run([program, "--version"], check=False, timeout=_PATIENCE)
    if not answer.ok:
        return failed(f"{program} does not run: {' '.join(answer.tail(1))}", "toolkit setup")
    return passed(f"{answer.stdout.strip()} ({program})")


@check("namespaces", "this machine has what building images takes")
def check_namespaces(_: DoctorCase) -> Result:
    """Check user namespaces, subordinate ids and FUSE. Jobs need less of it than builds."""
    return judge_namespaces(read_facts(SetupOptions()))


def judge_namespaces(facts: Facts) -> Result:
    """Judge what a machine has for building images."""
    wrong = []
    if not facts.namespaces:
        wrong.append("users may not make user namespaces")
    if not facts.ids:
        wrong.append(f"{facts.user} has no subordinate ids (/etc/subuid, /etc/subgid): no fakeroot")
    if facts.fuse != "ready":
        wrong.append(f"/dev/fuse is {facts.fuse}: users cannot mount images")
    if facts.root_exec == "fails":
        wrong.append("root cannot start a container: it lacks capabilities")
    if wrong:
        return warned(
            "; ".join(wrong),
            "toolkit setup says what an administrator has to do; images can be built elsewhere "
            "and copied",
        )
    return passed("user namespaces, subordinate ids for fakeroot and FUSE are available")


@check("directories", "directories of images, runs and caches can be written to")
def check_directories(case: DoctorCase) -> Result:
    """Write to the directories of images, runs and caches: only so a full one is noticed."""
    wrong, fine, memory = [], [], []
    for name, directory in case.directories.items():
        kind = file_system(existing(directory))
        reason = write_error(existing(directory))
        if reason:
            wrong.append(f"{name} {directory} ({kind}): {reason}")
        elif kind in ("tmpfs", "ramfs"):
            memory.append(f"{name} {directory} is in memory ({kind})")
        fine.append(f"{name} {directory} ({kind})")
    if wrong:
        return failed(
            "; ".join(wrong),
            "make room, or choose another: TOOLKIT_IMAGES for images; runs go below the current "
            "directory",
        )
    if memory:
        return warned("; ".join(memory), "use a directory on a disk")
    return passed("; ".join(fine))


def existing(directory: Path) -> Path:
    """Return the directory, or the nearest parent that exists."""
    return next(path for path in (directory, *directory.parents) if path.is_dir())


def write_error(directory: Path) -> str:
    """Return why a directory cannot be written to; empty if it can."""
    try:
        with tempfile.TemporaryFile(dir=directory) as stream:
            stream.write(bytes(_SAMPLE))
            stream.flush()
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


@check("space", "images, runs and caches have free space and quota")
def check_space(case: DoctorCase) -> Result:
    """Check free space and quotas of the directories."""
    return judge_space(
        {name: space.read_room(existing(directory)) for name, directory in case.directories.items()}
    )


def judge_space(rooms: dict[str, Room]) -> Result:
    """Judge the space that is left in each directory."""
    texts = {
        name: f"{name} {human_size(room.free)} free{_quota(room)}" for name, room in rooms.items()
    }
    full = [texts[name] for name, room in rooms.items() if room.available < _NONE]
    low = [texts[name] for name, room in rooms.items() if room.available < _LITTLE.get(name, _NONE)]
    prune = "toolkit image prune --unused-for 60d"
    if full:
        return failed(f"full: {'; '.join(full)}", f"{prune}; toolkit image cache")
    if low:
        return warned(f"little room: {'; '.join(low)}", f"{prune}, or TOOLKIT_IMAGES on scratch")
    return passed("; ".join(texts.values()))


def _quota(room: Room) -> str:
    return "" if room.quota is None else f", {human_size(room.quota)} of the quota"
