"""Pack what a machine without a network lacks for `make test-gpu`, and unpack it there.

Made on a Debian where `toolkit setup` has installed Slurm and Apptainer::

    python -m tests.gpu.pack DIRECTORY --python 3.12

It writes the Python packages of the toolkit and of pytest for that Python to ``site-3.12``, the
source of Horovod beside them, and the files of Slurm, Apptainer and what these depend on to
``packages.tar.xz``. Unpacking replaces no file that is there: the libraries of a machine are its own.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

ARCHIVE = "packages.tar.xz"
PROGRAMS = (
    *"slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge".split(),
    *"libpmix-dev iproute2 procps hostname".split(),
    *"apptainer squashfuse squashfs-tools fuse3 uidmap".split(),
)
# Of the toolkit's own needs: those of a run. Its bill of materials and Docker are not tested on GPUs.
PYTHON = ("click", "jinja2", "msgspec", "packaging", "pytest")
HOROVOD = ("0.28.1", "cffi", "cloudpickle", "psutil", "pyyaml")  # with what it needs
# Every machine has these, or the programs above do not need them to run.
PRESENT = re.compile(
    r"libc6|libgcc-s1|libstdc\+\+6|zlib1g|perl.*|python3.*|debconf.*|adduser|ucf|lsb-base"
    r"|lib(?!pmix).*-dev|init-system-helpers|systemd.*|dpkg|tar|coreutils|bash|util-linux|mount|gcc-12-base"
)
NOT_NEEDED = re.compile(
    r"/usr/(include|lib/cni|share/(doc|man|locale|lintian|bug))/|/lib/systemd/|/etc/init\.d/|\.a$"
)
# On a system whose /bin, /sbin and /lib are links to /usr, as on every current one.
MERGED = re.compile(r"^/(bin|sbin|lib|lib64)/")


def pack(directory: Path, python: str) -> None:
    """Write a pack for a Python of this version."""
    directory.mkdir(parents=True, exist_ok=True)
    _pack_python(directory / f"site-{python}", python)
    found = set(_files(_closure(PROGRAMS)))
    files = sorted(found | set(_alternatives(found)))
    with tarfile.open(directory / ARCHIVE, "w:xz") as archive:
        for name in files:
            archive.add(name, arcname=MERGED.sub(r"/usr/\1/", name).lstrip("/"), recursive=False)
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    print(f"pack     {directory}: {len(files)} files of packages, {size >> 20} MiB in all")


def _pack_python(place: Path, python: str) -> None:
    shutil.rmtree(place, ignore_errors=True)
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", str(place))
    fit = ("--python-version", python, "--implementation", "cp", "--only-binary=:all:")
    subprocess.run([*pip, *fit, *PYTHON, *HOROVOD[1:]], check=True)
    # It has no wheel, and nothing that is compiled.
    subprocess.run([*pip, "--no-deps", "--upgrade", "spython"], check=True)
    shutil.rmtree(place / "bin", ignore_errors=True)
    source = ("--no-deps", "--no-binary=horovod", "--dest", str(place.parent))
    subprocess.run([*pip[:3], "download", "-q", *source, f"horovod=={HOROVOD[0]}"], check=True)


def _closure(names: tuple[str, ...]) -> set[str]:
    """Return the installed packages that these depend on, with themselves."""
    rows = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package}\t${Pre-Depends}, ${Depends}\t${Provides}\n"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    needs: dict[str, list[str]] = {}
    provider: dict[str, str] = {}
    for row in rows:
        name, depends, provides = row.split("\t")
        needs[name] = [re.split(r"[ (:|]", word.strip())[0] for word in depends.split(",")]
        provider |= {word.strip().split(" ")[0]: name for word in provides.split(",")}
    found: set[str] = set()
    rest = list(names)
    while rest:
        name = rest.pop()
        name = name if name in needs else provider.get(name, "")
        if name and name not in found and not PRESENT.fullmatch(name):
            found.add(name)
            rest += needs[name]
    missing = set(names) - found
    if missing:
        sys.exit(f"not installed here: {', '.join(sorted(missing))}; next: toolkit setup")
    return found


def _files(packages: set[str]) -> Iterator[str]:
    listed = subprocess.run(
        ["dpkg-query", "-L", *sorted(packages)], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    for name in listed:
        path = Path(name)
        if NOT_NEEDED.search(name) is None and (
            path.is_symlink() or path.is_file() or name.startswith("/var/lib/")
        ):
            yield name


def _alternatives(files: set[str]) -> Iterator[str]:
    """Yield the links by which alternatives name these files: /usr/sbin/slurmctld is one."""
    for link in (*Path("/usr/bin").iterdir(), *Path("/usr/sbin").iterdir()):
        chosen = link.readlink() if link.is_symlink() else Path()
        if chosen.parent == Path("/etc/alternatives") and str(link.resolve()) in files:
            yield from (str(link), str(chosen))


def unpack(archive: Path, root: Path = Path("/")) -> int:
    """Write the files of a pack that are not there, and return how many these were."""
    count = 0
    with tarfile.open(archive) as files:
        if hasattr(tarfile, "fully_trusted_filter"):  # of Python 3.12, and of some older ones
            files.extraction_filter = tarfile.fully_trusted_filter
        for member in files:
            target = root / member.name
            if not os.path.lexists(target):
                files.extract(member, root, numeric_owner=True)
                count += 1
    return count


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--python", default=f"{sys.version_info[0]}.{sys.version_info[1]}")
    given = parser.parse_args()
    pack(given.directory, given.python)
