"""Run our sandbox, and prepare what Apptainer and the sandbox's steps see of this machine."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import msgspec

from toolkit import shell
from toolkit.errors import ForbiddenError, NeedsInstallError
from toolkit.images.builder.apptainer.protocol import (
    PACKED,
    STEP_BEGINS,
    Fence,
    Lower,
    SandboxTasks,
)
from toolkit.images.builder.apptainer.seeds import COMPILEALL
from toolkit.images.builder.apptainer.tasks import SCRIPTS
from toolkit.images.builder.follow import Follower
from toolkit.images.host.host_config import write_host_config
from toolkit.images.host.host_mounts import ROOT, Bind, HostConfig
from toolkit.images.host.privilege import may_mount, namespace_ids
from toolkit.images.host.workspace import Workspace
from toolkit.images.recipe.block import CHECKS
from toolkit.images.recipe.chain import Chain
from toolkit.images.recipe.reproducible import BYTE_CODE, EPOCH
from toolkit.images.sif.squashfs import BLOCK_SIZE, UNCOMPRESSED_TABLES
from toolkit.images.store import provenance
from toolkit.images.store.settings import VARIABLES, image_command
from toolkit.model.base import to_json

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Packs two to three times faster than gzip, and unpacks faster.
COMPRESSION = ("-comp", "zstd", "-Xcompression-level", "3")
LAYER_PACKING = (
    *("-noappend", "-no-progress", "-quiet", *COMPRESSION, "-b", str(BLOCK_SIZE)),
    *("-mkfs-time", str(EPOCH), *UNCOMPRESSED_TABLES),
)
STEPS = "steps"  # begins the names of the steps' scratch directories
STEP_SCRIPTS = f"{ROOT}/{SCRIPTS}"  # where steps see their scripts
PASSING, SKIPPED = "passing", "passing/skipped"  # below it: as of ``SandboxTasks``
_BYTE_CODE = (
    "if command -v python3 >/dev/null 2>&1; then"
    f" exec python3 -I -S -B {STEP_SCRIPTS}/byte-code.py {STEP_SCRIPTS}/changed; fi"
)
_REPLACED = ("/tmp", "/dev/shm")  # every user may write there
SOURCE = Path(__file__).resolve().parents[4]  # the directory of our own package


def why_no_layers(place: Workspace, follower: Follower) -> str:
    """Return why steps cannot be confined to layers here, found out before any runs; else empty.

    Raises:
        ForbiddenError: This user has no subordinate ids.
        NeedsInstallError: ``mksquashfs`` is not installed.
    """
    if shell.which("mksquashfs") is None:
        raise NeedsInstallError(
            "mksquashfs is not installed here",
            next_step="toolkit setup (package squashfs-tools)",
        )
    directory, layer = place.scratch / "probe", place.output / "probe.sqfs"
    directory.mkdir()
    shell.run(["mksquashfs", directory, layer, *LAYER_PACKING])
    tasks = SandboxTasks(directory=str(directory), lowers=(Lower(path=str(layer), offset=0),))
    code = run_sandbox(tasks, place, follower)
    lines = (line.removeprefix("toolkit: ") for line in follower.reader.tail)
    return "; ".join(lines) or f"the test of it ended with {code}" if code else ""


def run_sandbox(
    tasks: SandboxTasks,
    place: Workspace,
    follower: Follower,
    on_packed: Callable[[], object] | None = None,
) -> int:
    """Run tasks in the sandbox under the guard; return the first failed step's exit code, or 0.

    Raises:
        ForbiddenError: This user has no subordinate ids.
    """
    file = place.output / "tasks.json"
    users, groups = ((), ()) if may_mount() else namespace_ids()
    token = secrets.token_hex()
    tasks = msgspec.structs.replace(tasks, users=users, groups=groups, token=token)
    file.write_text(to_json(tasks), encoding="utf-8")
    command = [
        "env",
        f"PYTHONPATH={SOURCE}",
        sys.executable,
        "-m",
        "toolkit.images.builder.apptainer.sandbox",
        str(file),
    ]

    def hear(message: str) -> None:
        if message.startswith(STEP_BEGINS):
            follower.announce(message.removeprefix(STEP_BEGINS))
        elif message == PACKED and on_packed:
            on_packed()

    return follower.follow(command, clean_environment(), place, token=token, on_message=hear)


def fence_command(
    place: Workspace, follower: Follower, readable: Iterable[str], cwd: Path | str
) -> tuple[str, ...]:
    """Return the words before Apptainer that let it write to the directories of this build only.

    None if this machine does not let this user have a fence: that is found out before Apptainer
    starts, and shown.

    Args:
        place: The directories of this build.
        follower: Shows that there is no fence.
        readable: What Apptainer reads, wherever it is.
        cwd: Its current directory.

    Raises:
        ForbiddenError: Root has no fence, and could write to every file of this machine.
    """
    readable = (str(cwd), *readable)
    words = [*_fence_words(place, readable), "true"]
    probe = shell.run(words, env=clean_environment(), cwd=cwd, check=False)
    if probe.ok:
        return _fence_words(place, readable)
    reason = " ".join(probe.tail(1))
    if may_mount():
        raise ForbiddenError(
            f"Apptainer cannot be kept from writing to this machine's files here: {reason}",
            next_step="build as an ordinary user, or on another machine",
        )
    follower.say(
        "warning",
        f"Apptainer may write to all files that you may write to, not only to the image: {reason}",
    )
    return ()


def _fence_words(place: Workspace, readable: Iterable[str]) -> tuple[str, ...]:
    try:
        users, groups = ((), ()) if may_mount() else namespace_ids()
    except ForbiddenError:
        users, groups = (), ()
    directory = Path(tempfile.mkdtemp(prefix="fence-", dir=place.scratch))
    replaced = {name: directory / name.strip("/").replace("/", "-") for name in _REPLACED}
    for empty in replaced.values():
        empty.mkdir()
        empty.chmod(0o777)
    fence = Fence(
        users=users,
        groups=groups,
        replaced={name: str(empty) for name, empty in replaced.items()},
        readable=tuple(readable),
        writable=tuple(map(str, place.directories)),
    )
    file = directory / "fence.json"
    file.write_text(to_json(fence), encoding="utf-8")
    module = "toolkit.images.builder.apptainer.fence"
    return ("env", f"PYTHONPATH={SOURCE}", sys.executable, "-m", module, str(file), "--")


def run_image_checks(program: str, place: Workspace, follower: Follower) -> int:
    """Run the checks of ``place.sif`` without help of this machine; return their exit code."""
    command = [*image_command(program), str(place.sif), "/bin/sh", f"{CHECKS}/run"]
    settings = dict.fromkeys(VARIABLES, str(place.output / "config"))
    return follower.follow(command, clean_environment() | settings, place)


def clean_environment() -> dict[str, str]:
    """Return the environment for our own programs and Apptainer, without the user's variables."""
    path = dict.fromkeys((*SYSTEM_PATH.split(":"), *os.environ.get("PATH", "").split(":")))
    return {
        "HOME": str(Path.home()),
        "PATH": ":".join(part for part in path if part),
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": str(SOURCE),
    }


def prepare_end() -> None:
    """Do what the end of a build takes, but for the image, while its steps run."""
    provenance.helper_versions()
    for name in ("zstandard", "cyclonedx.output.json"):
        with suppress(ImportError):
            import_module(name)


def program_version(program: str) -> str:
    """Return ``apptainer 1.4.5``."""
    output = shell.run([program, "--version"], check=False, timeout=30).stdout
    return output.replace(" version ", " ").strip()


def write_step_config(config: HostConfig, place: Workspace, chain: Chain) -> tuple[Bind, ...]:
    """Write what the sandbox's steps see of the host; return the mounts.

    These are name resolution, directories for temporary files, the host configuration, and an empty
    directory for the steps' scripts.
    """
    files = ("/etc/resolv.conf", "/etc/hosts")  # as in a flat build
    binds = [Bind(source=file, target=file) for file in files if Path(file).exists()]
    targets = () if chain.keeps_temporary else ("/tmp", "/var/tmp")
    binds += [place.temporary_bind(target, STEPS) for target in targets]
    binds += write_host_config(config, place.output / "host")
    scripts = place.output / f"host/{SCRIPTS}"
    (scripts / PASSING).mkdir(parents=True)
    byte_code = "\n".join((*chain.prelude, _BYTE_CODE)) + "\n"
    for name, text in (
        ("byte-code", byte_code),
        ("byte-code.py", BYTE_CODE),
        ("changed", ""),
        (f"{PASSING}/compileall.py", COMPILEALL),
        (SKIPPED, ""),
    ):
        (scripts / name).write_text(text, encoding="utf-8")
    return tuple(binds)
