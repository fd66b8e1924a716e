"""Find what a local cluster takes of this machine: packages, which it may lack, and GPUs.

Programs and files count, so that a Slurm that was installed another way is accepted.
"""

from __future__ import annotations

import re
from pathlib import Path

from toolkit.errors import NeedsInstallError
from toolkit.localcluster.shape import Shape, all_nodes
from toolkit.shell import which

# package of Debian -> programs of it that are used here
_PROGRAMS = {
    "slurmctld": ("slurmctld",),
    "slurmd": ("slurmd",),
    "slurm-client": ("sbatch", "srun", "sinfo", "squeue", "scontrol", "scancel", "salloc"),
    "munge": ("munged", "munge"),
    "iproute2": ("ip",),
    "procps": ("ps",),
    "util-linux": ("unshare", "nsenter", "setpriv"),
    "mount": ("mount",),
    "hostname": ("hostname",),
    "bash": ("bash",),
}
_ACCOUNTING = {
    "slurmdbd": ("slurmdbd",),
    "mariadb-server": ("mariadbd", "mariadb-install-db"),
    "mariadb-client": ("mariadb",),
}
_PLUGINS_OF = {"slurm-wlm-basic-plugins": "select_cons_tres.so"}
_ACCOUNTING_PLUGINS = {"slurm-wlm-mysql-plugin": "accounting_storage_mysql.so"}
_LIBRARIES = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64", "/opt")
_PLUGINS = (
    "slurm-wlm",
    "slurm",
    "*/slurm-wlm",
    "*/slurm",
    "slurm/lib/slurm",
    "slurm/lib64/slurm",
    "slurm/*/lib/slurm",
    "slurm/*/lib64/slurm",
)
# Slurm's plugin opens libpmix.so by exactly this name, which only Debian's -dev package has.
_PMIX = (
    "libpmix.so",
    "*/libpmix.so",
    "*/pmix2/lib/libpmix.so",
    "*/lib/libpmix.so",
    "*/*/lib/libpmix.so",
    "*/lib64/libpmix.so",
)


def needed(accounting: bool = False) -> tuple[str, ...]:
    """Return the Debian packages that are missing, sorted; () if a cluster can be brought up."""
    programs = _PROGRAMS | (_ACCOUNTING if accounting else {})
    missing = {
        package for package, names in programs.items() if not all(which(name) for name in names)
    }
    plugins = _PLUGINS_OF | (_ACCOUNTING_PLUGINS if accounting else {})
    missing |= {package for package, file in plugins.items() if not _has_plugin(file)}
    return tuple(sorted(missing | (set() if _any(_PMIX) else {"libpmix-dev"})))


def _has_plugin(file: str) -> bool:
    return _any(tuple(f"{place}/{file}" for place in _PLUGINS))


def _any(patterns: tuple[str, ...]) -> bool:
    return any(
        next(Path(directory).glob(pattern), None)
        for directory in _LIBRARIES
        for pattern in patterns
    )


def require(accounting: bool = False) -> None:
    """Check that no package is missing.

    Raises:
        NeedsInstallError: packages are missing; it names them.
    """
    missing = needed(accounting)
    if missing:
        raise NeedsInstallError(
            f"the local cluster needs packages that are not installed: {', '.join(missing)}",
            next_step=f"toolkit setup{' --with accounting' if accounting else ''}",
        )


def gpus_of(shape: Shape, directory: Path = Path("/dev")) -> tuple[int, ...]:
    """Return the number N of /dev/nvidiaN of each GPU of all nodes, in the order of the nodes.

    Empty if the machine has fewer than the nodes shall have: then all are simulated, since a job
    could not know which of its GPUs it can use.
    """
    wanted = sum(node.group.gpus for node in all_nodes(shape))
    paths = [path for path in directory.glob("nvidia*") if path.is_char_device()]
    names = (re.fullmatch(r"nvidia(\d+)", path.name) for path in paths)
    numbers = sorted(int(name[1]) for name in names if name)
    return tuple(numbers[:wanted]) if len(numbers) >= wanted else ()
