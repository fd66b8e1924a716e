"""What each part of the toolkit needs from the machine: data only.

Needs are found by looking for programs, not for packages: a site may have them from anywhere.
"""

from __future__ import annotations

from pathlib import Path

from toolkit.model.base import Model

# There for as long as an installation takes; only root can write beside it. Left over by one that was killed.
WORKPLACE = Path("/var/cache/toolkit-setup")

RUNTIMES = ("apptainer", "singularity")


class Need(Model, frozen=True, kw_only=True):
    """A program, and the Debian package that has it."""

    program: str
    package: str


class Part(Model, frozen=True, kw_only=True):
    """Programs that one use of the toolkit needs."""

    name: str
    purpose: str
    needs: tuple[Need, ...]


# Apptainer and what it looks for when it runs: without squashfuse and fusermount3 every start by a user unpacks the whole image.
# Installed together with Apptainer only; elsewhere these are the business of whoever installed it (its own packages bundle them).
RUNTIME_PACKAGES = (
    "ca-certificates",
    "containernetworking-plugins",
    "e2fsprogs",
    "fuse-overlayfs",
    "fuse2fs",
    "fuse3",
    "squashfs-tools",
    "squashfuse",
    "uidmap",
)

BUILD = Part(
    name="image builds",
    purpose="build images from a Debian base",
    needs=(
        Need(program="debootstrap", package="debootstrap"),
        Need(program="fakeroot", package="fakeroot"),
        Need(program="mksquashfs", package="squashfs-tools"),
        Need(program="newuidmap", package="uidmap"),
    ),
)

TESTS = Part(
    name="tests",
    purpose="run the test-suite",
    needs=(
        Need(program="git", package="git"),
        Need(program="make", package="make"),
        Need(program="runuser", package="util-linux"),
        Need(program="setpriv", package="util-linux"),
        Need(program="shellcheck", package="shellcheck"),
        Need(program="useradd", package="passwd"),
    ),
)

RUNTIME_PURPOSE = "run and build containers"
SLURM_PURPOSE = "a real Slurm on this machine"

# The same things by the names of other distributions, for what we tell administrators. Debian's name where it is the same.
RHEL_NAMES: dict[str, tuple[str, ...]] = {
    "libpmix-dev": ("pmix-devel",),
    "iproute2": ("iproute",),
    "mariadb-client": ("mariadb",),
    "procps": ("procps-ng",),
    "shellcheck": ("ShellCheck",),
    "slurm-client": ("slurm",),
    "slurm-wlm-basic-plugins": (),
    "slurm-wlm-mysql-plugin": (),
    "slurmctld": ("slurm-slurmctld",),
    "slurmd": ("slurm-slurmd",),
    "slurmdbd": ("slurm-slurmdbd",),
    "uidmap": ("shadow-utils",),
}
SUSE_NAMES: dict[str, tuple[str, ...]] = {
    "libpmix-dev": ("pmix-devel",),
    "mariadb-client": ("mariadb-client",),
    "mariadb-server": ("mariadb",),
    "shellcheck": ("ShellCheck",),
    "slurm-client": ("slurm",),
    "slurm-wlm-basic-plugins": ("slurm-plugins",),
    "slurm-wlm-mysql-plugin": ("slurm-sql",),
    "slurmctld": ("slurm",),
    "slurmd": ("slurm-node",),
    "slurmdbd": ("slurm-slurmdbd",),
    "squashfs-tools": ("squashfs",),
    "uidmap": ("shadow",),
}
