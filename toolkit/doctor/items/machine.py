"""Items about this machine and the cluster: Slurm, containers, directories, the image here."""

from __future__ import annotations

import shutil
import tempfile

from toolkit import shell
from toolkit.checks import Result, check, failed, passed, unchecked, warned
from toolkit.doctor.case import DoctorCase
from toolkit.hostsetup.facts import read_facts
from toolkit.images.store.settings import run_in_image
from toolkit.slurm.client import TESTED
from toolkit.units import counted, human_size

_USABLE = ("idle", "alloc", "mix", "comp", "plan", "reserved", "unk", "pow")
_PATIENCE = 20.0  # seconds for a container command
_LITTLE = 10**9  # bytes: an image of NVIDIA's is 5 to 10 GB
_SAMPLE = 1 << 20  # bytes that are written to a directory


@check("slurm", "Slurm's controller answers, and its version is tested")
def _slurm(case: DoctorCase) -> Result:
    if case.client is None or case.site is None:
        return failed(case.no_site, "log in to a login node of a cluster, or: toolkit cluster up")
    names = ", ".join(partition.name for partition in case.client.partitions()) or "none"
    version = case.client.version()
    detail = f"Slurm {version} answers; partitions: {names}; site {case.site.name}"
    if how := TESTED.get(".".join(version.split(".")[:2])):
        return passed(f"{detail}; {how}")
    return warned(
        f"{detail}; not tested; tested are {', '.join(sorted(TESTED))}",
        "try it with short jobs: toolkit doctor --nodes 2",
    )


@check("node-states", "enough nodes take jobs")
def _node_states(case: DoctorCase) -> Result:
    if case.client is None:
        return unchecked(f"no cluster: {case.no_site}")
    default = next((each.name for each in case.client.partitions() if each.default), None)
    partition = case.settings.get("partition") or default
    states = [state for state, _ in case.client.node_states(partition).values()]
    # A state with ``*`` is that of a node which does not answer.
    usable = [
        state
        for state in states
        if state.startswith(_USABLE) and "*" not in state and "drain" not in state
    ]
    detail = f"{len(usable)} of {counted(len(states), 'node')} take jobs"
    step = "sinfo -R tells who took the others out, and why"
    if len(usable) < max(case.nodes, 1):
        return failed(f"{detail}, {max(case.nodes, 1)} needed", step)
    return warned(detail, step) if len(usable) < len(states) else passed(detail)


@check("container", "a command that starts containers is installed and runs")
def _container(case: DoctorCase) -> Result:
    names = case.site.containers if case.site else ("apptainer", "singularity")
    program = next((path for path in map(shell.which, names) if path), None)
    if program is None and case.site and case.site.modules:
        return warned(
            f"{' and '.join(names)} are not on PATH here; in jobs the modules "
            f"{', '.join(case.site.modules)} bring them"
        )
    if program is None:
        return failed(
            f"neither {' nor '.join(names)} is on PATH", "toolkit setup, or load its module"
        )
    version = shell.run([program, "--version"], timeout=_PATIENCE).stdout.strip()
    return passed(f"{version} ({program})")


@check("ssh", "OpenSSH is installed, for sessions in jobs, servers of jobs and notebooks")
def _ssh(_: DoctorCase) -> Result:
    missing = [program for program in ("ssh", "ssh-keygen", "sshd") if shell.which(program) is None]
    if missing:
        return warned(
            f"there is no {', '.join(missing)}: no toolkit ssh, forward and notebook",
            "toolkit setup, or ask the administrator for OpenSSH, with its server on the nodes",
        )
    return passed("ssh and sshd are here; a session says where a node has no sshd")


@check("namespaces", "this machine has what building images takes")
def _namespaces(_: DoctorCase) -> Result:
    facts = read_facts()
    needed = (
        (facts.namespaces, "users may not make user namespaces"),
        (
            facts.ids,
            f"{facts.user} has no subordinate ids (/etc/subuid, /etc/subgid): no fakeroot",
        ),
        (facts.fuse, "/dev/fuse is missing, or for root only: users cannot mount images"),
        (facts.root_exec, "root cannot start a container: it lacks capabilities"),
    )
    if wrong := [reason for is_there, reason in needed if not is_there]:
        return warned(
            "; ".join(wrong),
            "toolkit setup says what an administrator has to do; images can be built elsewhere "
            "and copied",
        )
    return passed("user namespaces, subordinate ids for fakeroot and FUSE are available")


@check("directories", "directories of images, runs and caches can be written to")
def _directories(case: DoctorCase) -> Result:
    wrong, scarce, fine = [], [], []
    for name, directory in case.directories.items():
        existing = next(path for path in (directory, *directory.parents) if path.is_dir())
        free = shutil.disk_usage(existing).free
        fine.append(f"{name} {directory} ({human_size(free)} free)")
        if free < _LITTLE:
            scarce.append(fine[-1])
        try:
            with tempfile.TemporaryFile(dir=existing) as stream:
                stream.write(bytes(_SAMPLE))
                stream.flush()
        except OSError as error:
            wrong.append(f"{fine[-1]}: {(error.strerror or str(error)).lower()}")
    step = "toolkit image prune, or another place: TOOLKIT_IMAGES for images"
    if wrong:
        return failed("; ".join(wrong), step)
    return warned("; ".join(scarce), step) if scarce else passed("; ".join(fine))


@check("image", "the image can be read, and a program starts in it")
def _image(case: DoctorCase) -> Result:
    if case.image_case is None or case.image is None:
        return (failed if case.nodes else unchecked)(case.no_image)
    result = run_in_image(case.image.path, ["true"], timeout=60)
    if not result.ok:
        return failed(
            f"nothing starts in {case.image.path}: {' '.join(result.tail(1))}",
            f"toolkit image verify {case.image.path}",
        )
    return passed(f"a program starts in {case.image.path}")


ITEMS = (
    _slurm,
    _node_states,
    _container,
    _ssh,
    _namespaces,
    _directories,
    _image,
)
