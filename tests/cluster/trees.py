"""What is in an image of Docker's and in a SIF, path by path, without what engines put there themselves."""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

from tests.cluster.engine_fixtures import TestEngine
from tests.cluster.image_fixtures import unsquashfs

# Directories and files of the engines, and what has the time or chance in it.
_OWN = re.compile(
    r"(\.singularity\.d|opt/toolkit|dev|proc|sys|run|mnt|root/\.cache|var/cache/ldconfig|var/cache/apt|var/lib/apt/lists|var/log)(/.*)?\Z"
    r"|(singularity|environment|\.dockerenv|etc/(hosts|resolv\.conf|hostname|mtab|ld\.so\.cache)|opt|\.exec|\.run|\.shell|\.test)\Z"
    r"|(.*/)?__pycache__(/.*)?\Z|var/lib/dpkg/status-old\Z"  # which dpkg wrote before it wrote the last time
)
_OF_ENGINES = re.compile(
    r"(APPTAINER|SINGULARITY)_|(PROMPT_COMMAND|PS1|HOME|HOSTNAME|PWD|SHLVL|_|TERM|OLDPWD|USER_PATH)\Z"
)
_USUAL = ":/.singularity.d/libs:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin".split(":")
Entry = tuple[str, int, int, int, str]


def _entry(member: tarfile.TarInfo, archive: tarfile.TarFile) -> Entry:
    if member.issym():
        return "link", 0o777, member.uid, member.gid, member.linkname
    # Of a hard link, the file's.
    stream = archive.extractfile(member) if not member.isdir() else None
    data = stream.read() if stream else b""
    if member.name.endswith(("etc/shadow", "etc/shadow-")):
        # The day of a password, which in our builds is that of SOURCE_DATE_EPOCH.
        data = re.sub(rb":\d+:", b"::", data)
    shown = repr(data) if len(data) < 200 else hashlib.sha256(data).hexdigest()
    kind = "dir" if member.isdir() else "file"
    return kind, member.mode & 0o7777, member.uid, member.gid, shown


def _tree(data: bytes) -> dict[str, Entry]:
    found = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            name = member.name.removeprefix("./").strip("/")
            if name not in ("", ".") and not _OWN.match(name):
                found[name] = _entry(member, archive)
    return found


def docker_tree(engine: TestEngine, image: str) -> dict[str, Entry]:
    """Everything in an image of the engine."""
    name = engine.client("create", image, "true")
    try:
        with tempfile.NamedTemporaryFile(dir="/var/tmp") as file:
            engine.client("export", "-o", file.name, name)
            return _tree(Path(file.name).read_bytes())
    finally:
        engine.client("rm", "-f", name)


def sif_tree(sif: Path) -> dict[str, Entry]:
    """Everything in the file system of a SIF."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        unsquashfs(sif, "-q", "-n", "-d", f"{place}/root")
        words = ["tar", "--numeric-owner", "-C", f"{place}/root", "-c", "."]
        return _tree(subprocess.run(words, capture_output=True, check=True).stdout)


def environment_of(sif: Path) -> dict[str, str]:
    """The environment that Apptainer gives the image's programs."""
    words = [*"apptainer --silent exec --cleanenv --containall --no-home".split(), str(sif), "env"]
    said = subprocess.run(words, capture_output=True, text=True, check=True, cwd="/").stdout
    return programs_environment(said)


def programs_environment(said: str) -> dict[str, str]:
    """What `env` said, without what engines set themselves."""
    found = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    # Apptainer puts directories behind those of every image, and names a locale if none is set.
    for name in ("PATH", "LD_LIBRARY_PATH"):
        parts = found.get(name, "").split(":")
        found[name] = ":".join(part for part in parts if part not in _USUAL)
    if found.get("LANG") == "C":
        del found["LANG"]
    return {name: value for name, value in found.items() if not _OF_ENGINES.match(name)}
