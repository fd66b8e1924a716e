"""Run steps in the sandbox, and prepare what Apptainer and the steps see of this machine."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from toolkit import shell
from toolkit.errors import ForbiddenError, NeedsInstallError
from toolkit.images.builder.apptainer.sandbox import Lower, SandboxStep
from toolkit.images.builder.follow import Follower, Reader
from toolkit.images.host.host_config import ROOT, HostConfig, write_host_config
from toolkit.images.host.kernel import Bind, module_command, namespace_command
from toolkit.images.host.privilege import may_mount, namespace_ids
from toolkit.images.host.workspace import Workspace
from toolkit.images.recipe.block import SOURCES
from toolkit.images.recipe.plan import Plan
from toolkit.images.recipe.reproducible import BYTE_CODE, EPOCH
from toolkit.images.sif import BLOCK_SIZE, UNCOMPRESSED_TABLES

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Packs two to three times faster than gzip, and unpacks faster.
COMPRESSION = ("-comp", "zstd", "-Xcompression-level", "3")
LAYER_PACKING = (
    *("-noappend", "-no-progress", "-quiet", *COMPRESSION, "-b", str(BLOCK_SIZE)),
    *("-mkfs-time", str(EPOCH), *UNCOMPRESSED_TABLES),
)
STEP_SCRIPTS = f"{ROOT}/steps"  # where steps see their scripts
SHELL = ("/bin/sh", "-e")
_BYTE_CODE = (
    "if command -v python3 >/dev/null 2>&1; then"
    f" exec python3 -I -S -B {STEP_SCRIPTS}/byte-code.py {STEP_SCRIPTS}/changed; fi"
)
_REPLACED = ("/tmp", "/dev/shm")  # every user may write there
_PROBED = ("/bin", "/lib", "/lib64", "/usr")  # what a shell of this machine needs
_NO_BUBBLEWRAP = "bubblewrap is not installed (toolkit setup installs it)"
_OWN_PROC = "mount -t proc proc /proc; "
# Root could change the modes of the host's devices.
_READ_ONLY_DEVICES = "mount --rbind /dev /dev; mount -o remount,bind,ro /dev; "


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
    bubblewrap = shell.which("bwrap")
    if bubblewrap is None:
        return _NO_BUBBLEWRAP
    directory, layer = place.scratch / "probe", place.output / "probe.sqfs"
    directory.mkdir()
    shell.run(["mksquashfs", directory, layer, *LAYER_PACKING])
    step = SandboxStep(
        bubblewrap=bubblewrap,
        directory=str(directory),
        lowers=(Lower(path=str(layer), offset=0),),
        upper="u",
        command=("/bin/sh", "-c", ":"),
        binds=tuple(Bind(source=path, target=path) for path in _PROBED if Path(path).exists()),
    )
    code = run_step(step, place, follower)
    lines = [line.removeprefix("toolkit: ") for line in follower.reader.tail]
    follower.reader = Reader()  # what a test prints is no part of the build
    return ("; ".join(lines) or f"the test of it ended with {code}") if code != 0 else ""


def run_step(step: SandboxStep, place: Workspace, follower: Follower) -> int:
    """Run a step in the sandbox, as the user who builds; return its exit code.

    Raises:
        ForbiddenError: This user has no subordinate ids.
    """
    users, groups = namespace_ids()
    file = place.output / "step.json"
    fields = step._replace(users=users, groups=groups)._asdict()
    file.write_text(json.dumps(fields), encoding="utf-8")
    command = module_command("toolkit.images.builder.apptainer.sandbox", str(file))
    return follower.follow(command, clean_environment(), locks=place.locks)


def fence_command(
    place: Workspace, follower: Follower, readable: Iterable[str], cwd: Path | str
) -> tuple[str, ...]:
    """Return the words before Apptainer that let it write to the directories of this build only.

    Apptainer follows the symbolic links of a base. If ``/etc/hosts`` of a base leads to a file of
    the host, Apptainer makes that file, or gives it the mode 0644 (seen with 1.4.5, ``Bootstrap:
    localimage``). So everything else is read-only. It insists on writing to ``/tmp``, and its
    programs to ``/dev/shm``, where semaphores are: it gets other directories in their place.

    Args:
        place: The directories of this build.
        follower: Shows that there is no fence.
        readable: What Apptainer reads, wherever it is.
        cwd: Its current directory.

    Raises:
        ForbiddenError: Root has no fence, and could write to every file of this machine.
    """
    bubblewrap, reason = shell.which("bwrap"), _NO_BUBBLEWRAP
    if bubblewrap:
        words = _fence_words(bubblewrap, place, (str(cwd), *readable), cwd)
        probe = shell.run([*words, "true"], env=clean_environment(), cwd="/", check=False)
        if probe.ok:
            return words
        reason = " ".join(probe.tail(1))
    if may_mount():
        raise ForbiddenError(
            f"Apptainer cannot be kept from writing to this machine's files here: {reason}",
            next_step="toolkit setup; or build as an ordinary user",
        )
    follower.say("warning", f"Apptainer may write to all files that you may write to: {reason}")
    return ()


def _fence_words(
    bubblewrap: str, place: Workspace, readable: Iterable[str], cwd: Path | str
) -> tuple[str, ...]:
    before: tuple[str, ...] = ()
    with suppress(ForbiddenError):  # bubblewrap itself makes a namespace with one user
        prepare = _OWN_PROC + (_READ_ONLY_DEVICES if may_mount() else "") + 'exec "$@"'
        before = (*namespace_command(namespace_ids()), "sh", "-ec", prepare, "sh")
    directory = Path(tempfile.mkdtemp(prefix="fence-", dir=place.scratch))
    words = ["--die-with-parent", "--new-session", "--ro-bind", "/", "/"]
    # bubblewrap covers parts of its own /proc; then the kernel lets Apptainer mount no further one.
    words += ["--dev-bind", "/dev", "/dev", "--bind", "/proc", "/proc"]
    replaced = [os.path.realpath(name) for name in _REPLACED]
    for number, name in enumerate(replaced):
        empty = directory / str(number)
        empty.mkdir()
        empty.chmod(0o777)
        words += ["--bind", str(empty), name]
    # By the path that is written and by where its links lead.
    for path in dict.fromkeys(path for name in readable for path in (name, os.path.realpath(name))):
        if any(path.startswith(f"{name}/") for name in replaced):
            words += ["--ro-bind", path, path]
    for path in map(os.path.realpath, place.directories):
        words += ["--bind", path, path]
    return (*before, bubblewrap, *words, "--chdir", str(cwd), "--")


def clean_environment() -> dict[str, str]:
    """Return the environment for our own programs and Apptainer, without the user's variables."""
    path = dict.fromkeys((*SYSTEM_PATH.split(":"), *os.environ.get("PATH", "").split(":")))
    return {
        "HOME": str(Path.home()),
        "PATH": ":".join(part for part in path if part),
        "LC_ALL": "C.UTF-8",
    }


def program_version() -> str:
    """Return ``apptainer 1.4.5``."""
    output = shell.run([shell.require_apptainer(), "--version"], check=False, timeout=30).stdout
    return output.replace(" version ", " ").strip()


def with_sources(config: HostConfig, plan: Plan) -> HostConfig:
    """Return a host configuration with the files that steps copy, each where its step finds it."""
    binds = (
        Bind(source=step.source.path, target=f"{SOURCES}/{step.name}".removeprefix(f"{ROOT}/"))
        for step in plan.steps
        if step.source
    )
    return replace(config, binds=(*config.binds, *binds))


def write_step_config(config: HostConfig, place: Workspace, plan: Plan) -> tuple[Bind, ...]:
    """Write what the sandbox's steps see of the host; return the mounts.

    These are name resolution, directories for temporary files, the host configuration, and a
    directory for the steps' scripts.
    """
    files = ("/etc/resolv.conf", "/etc/hosts")  # as in a flat build
    binds = [Bind(source=file, target=file) for file in files if Path(file).exists()]
    targets = () if plan.keeps_temporary else ("/tmp", "/var/tmp")
    binds += [place.temporary_bind(target, "steps") for target in targets]
    binds += write_host_config(with_sources(config, plan), place.output / "host")
    scripts = place.output / "host/steps"
    scripts.mkdir()
    (place.output / "host/wheels").mkdir()  # HOST_WHEELS, which a step may see
    byte_code = "\n".join((*plan.prelude, _BYTE_CODE)) + "\n"
    for name, text in (("byte-code", byte_code), ("byte-code.py", BYTE_CODE), ("changed", "")):
        (scripts / name).write_text(text, encoding="utf-8")
    return tuple(binds)
