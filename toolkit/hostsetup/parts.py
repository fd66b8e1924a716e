"""The programs that each part of the toolkit needs from the machine: data only.

Each table has programs, and the Debian package of each. Needs are found by looking for programs,
not for packages: a site may have them from anywhere. A program is a name, or the absolute path of
a file or directory, which may have ``*``.
"""

from __future__ import annotations

from pathlib import Path

# There for as long as an installation takes; only root can write beside it. Left over by one that
# was killed.
WORKPLACE = Path("/var/cache/toolkit-setup")

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

BUILD = {
    # Steps of a build are confined by bubblewrap, and registries are asked by skopeo.
    "bwrap": "bubblewrap",
    "skopeo": "skopeo",
    "debootstrap": "debootstrap",
    # Without Debian's keys, a Debian base cannot be verified. Since Debian 13 the file has another
    # ending.
    "/usr/share/keyrings/debian-archive-keyring.*": "debian-archive-keyring",
    "fakeroot": "fakeroot",
    "mksquashfs": "squashfs-tools",
    "newuidmap": "uidmap",
}

# `toolkit ssh`, `forward` and `notebook`, where nodes of the local cluster are this machine.
SESSIONS = {"sshd": "openssh-server", "ssh": "openssh-client"}

# Directories of the host that exercises bind, and the Debian package that has each.
DATASETS = {"/usr/share/datasets/fashion-mnist": "dataset-fashion-mnist"}

# With a Docker engine, a podman and a registry of its own.
TESTS = {
    "dockerd": "docker.io",
    # Pages are read in a real browser, Korean ones with a font that has the letters.
    "chromium": "chromium",
    "/usr/share/fonts/truetype/nanum": "fonts-nanum",
    # podman takes the engine's runtime; for `--init` it needs a program of its own.
    "podman": "podman",
    "catatonit": "catatonit",
    "docker-registry": "docker-registry",
    **DATASETS,
    # A program of MPI is compiled on the host, and started by the host's mpirun around the image.
    "gcc": "gcc",
    "/usr/include/stdio.h": "libc6-dev",
    "/usr/share/doc/libopenmpi-dev": "libopenmpi-dev",
    "mpirun": "openmpi-bin",
    # A stand-in for Slurm's plugin Pyxis is compiled, and modules are loaded by the program that
    # sites have for it.
    "/usr/include/slurm/spank.h": "libslurm-dev",
    "/etc/profile.d/modules.sh": "environment-modules",
    "git": "git",
    "make": "make",
    # A port between nodes is closed, for the doctor to find.
    "iptables": "iptables",
    # Images are copied to a site by ssh: an sshd of the tests' own, on the loopback address.
    "/usr/sbin/sshd": "openssh-server",
    "ssh": "openssh-client",
    "rsync": "rsync",
    "runuser": "util-linux",
    "setpriv": "util-linux",
    "shellcheck": "shellcheck",
    "strace": "strace",
    "useradd": "passwd",
}

# Until Debian 12 the client is in the package of the engine, and builds by itself.
TESTS_AFTER_BOOKWORM = {
    "/usr/bin/docker": "docker-cli",
    "/usr/libexec/docker/cli-plugins/docker-buildx": "docker-buildx",
}
