"""The programs that each part of the toolkit needs from the machine: data only.

Needs are found by looking for programs, not for packages: a site may have them from anywhere.
"""

from __future__ import annotations

from pathlib import Path

from toolkit.model.base import Model

# There for as long as an installation takes; only root can write beside it. Left over by one that
# was killed.
WORKPLACE = Path("/var/cache/toolkit-setup")

RUNTIMES = ("apptainer", "singularity")


class Need(Model, frozen=True, kw_only=True):
    """A program, and the Debian package that has it.

    Attributes:
        program: its name, or the absolute path of a file or directory, which may have ``*``.
        package: that has it.
        releases: of Debian in which there is such a package, by codename; empty: all.
    """

    program: str
    package: str
    releases: tuple[str, ...] = ()

    def is_of(self, codename: str) -> bool:
        """Return whether a release has the package."""
        return not self.releases or codename in self.releases


class Part(Model, frozen=True, kw_only=True):
    """Programs that one use of the toolkit needs."""

    purpose: str
    needs: tuple[Need, ...]


_SINCE_TRIXIE = ("trixie", "forky", "duke", "sid")

# Apptainer and what it looks for when it runs: without squashfuse and fusermount3 every start by a
# user unpacks the whole image. Installed together with Apptainer only; elsewhere these are the
# business of the administrator who installed it (its own packages bundle them).
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
    purpose="build images from a Debian base",
    needs=(
        # Steps of a build are confined by bubblewrap, and registries are asked by skopeo.
        Need(program="bwrap", package="bubblewrap"),
        Need(program="skopeo", package="skopeo"),
        Need(program="debootstrap", package="debootstrap"),
        # Without Debian's keys, a Debian base cannot be verified. Since Debian 13 the file has
        # another ending.
        Need(
            program="/usr/share/keyrings/debian-archive-keyring.*", package="debian-archive-keyring"
        ),
        Need(program="fakeroot", package="fakeroot"),
        Need(program="mksquashfs", package="squashfs-tools"),
        Need(program="newuidmap", package="uidmap"),
    ),
)

# Nodes of the local cluster are this machine.
SESSIONS = Part(
    purpose="toolkit ssh, forward and notebook on a Slurm of this machine",
    needs=(
        Need(program="sshd", package="openssh-server"),
        Need(program="ssh", package="openssh-client"),
    ),
)

# Directories of the host that exercises bind, and the Debian package that has each.
DATASETS = {"/usr/share/datasets/fashion-mnist": "dataset-fashion-mnist"}

TESTS = Part(
    purpose="run the test-suite, with a Docker engine, a podman and a registry of its own",
    needs=(
        Need(program="dockerd", package="docker.io"),
        # Until Debian 12 the client is in the package of the engine, and builds by itself.
        Need(program="/usr/bin/docker", package="docker-cli", releases=_SINCE_TRIXIE),
        Need(
            program="/usr/libexec/docker/cli-plugins/docker-buildx",
            package="docker-buildx",
            releases=_SINCE_TRIXIE,
        ),
        # Pages are read in a real browser, Korean ones with a font that has the letters.
        Need(program="chromium", package="chromium"),
        Need(program="/usr/share/fonts/truetype/nanum", package="fonts-nanum"),
        # podman takes the runtime that comes with the engine; for `--init` it needs a program of
        # its own.
        Need(program="podman", package="podman"),
        Need(program="catatonit", package="catatonit"),
        Need(program="docker-registry", package="docker-registry"),
        *(Need(program=path, package=package) for path, package in DATASETS.items()),
        # A program of MPI is compiled on the host, and started by the host's mpirun around the
        # image.
        Need(program="gcc", package="gcc"),
        Need(program="/usr/include/stdio.h", package="libc6-dev"),
        Need(program="/usr/share/doc/libopenmpi-dev", package="libopenmpi-dev"),
        Need(program="mpirun", package="openmpi-bin"),
        # A stand-in for Slurm's plugin Pyxis is compiled, and modules are loaded by the program
        # that sites have for it.
        Need(program="/usr/include/slurm/spank.h", package="libslurm-dev"),
        Need(program="/etc/profile.d/modules.sh", package="environment-modules"),
        Need(program="git", package="git"),
        Need(program="make", package="make"),
        # A port between nodes is closed, for the doctor to find.
        Need(program="iptables", package="iptables"),
        # Images are copied to a site by ssh: an sshd of the tests' own, on the loopback address.
        Need(program="/usr/sbin/sshd", package="openssh-server"),
        Need(program="ssh", package="openssh-client"),
        Need(program="rsync", package="rsync"),
        Need(program="runuser", package="util-linux"),
        Need(program="setpriv", package="util-linux"),
        Need(program="shellcheck", package="shellcheck"),
        Need(program="useradd", package="passwd"),
    ),
)

RUNTIME_PURPOSE = "run and build containers"
SLURM_PURPOSE = "a real Slurm on this machine"

# The same packages by the names of other distributions, for messages to administrators. Debian's
# name where it is the same.
RHEL_NAMES: dict[str, tuple[str, ...]] = {
    "catatonit": (),
    "debian-archive-keyring": ("debian-keyring",),
    "docker-registry": ("docker-distribution",),
    "docker-buildx": ("docker-buildx-plugin",),
    "docker-cli": ("docker-ce-cli",),
    "docker.io": ("docker-ce", "docker-buildx-plugin"),
    "libc6-dev": ("glibc-devel",),
    "libopenmpi-dev": ("openmpi-devel",),
    "libslurm-dev": ("slurm-devel",),
    "libpmix-dev": ("pmix-devel",),
    "openmpi-bin": ("openmpi",),
    "openssh-client": ("openssh-clients",),
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
    "docker-registry": ("distribution-registry",),
    "docker-cli": ("docker",),
    "docker.io": ("docker", "docker-buildx"),
    "libc6-dev": ("glibc-devel",),
    "libopenmpi-dev": ("openmpi4-devel",),
    "environment-modules": ("Modules",),
    "libslurm-dev": ("slurm-devel",),
    "openmpi-bin": ("openmpi4",),
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
