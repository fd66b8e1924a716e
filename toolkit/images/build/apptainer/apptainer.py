"""Building by Apptainer: a definition becomes a SIF file.

This does not go through spython, whose ``build`` hides a failure, asks for sudo, cannot pass what
the host lends, and can deadlock while it streams; and none of its calls can be stopped together
with all that they started. What it does well is ``inspect(path, json=True)``: labels of an image
are read by that (``labels.py``). What else has to be known of Apptainer 1.4:

- It writes every value of a build argument into the image, in the definition and in a label. So the mirror is not given to it: it is told
  to put ``{{ mirror }}`` where that is written already, and the ``debootstrap`` that it finds first is ours, which puts the mirror there.
- After a bootstrap by ``--fakeroot`` a thread of it keeps a core busy until the end (``prepareFakerootEnv``: its ``break`` leaves a select,
  not the loop). It is allowed one core only, and when the steps begin it is made to wait for everything else that wants to run.
- It shows a build the machine's own ``/tmp`` and ``/var/tmp``, where a killed build would leave its files: it is given others.
- It takes settings from ``APPTAINER_*`` of the user, keeps caches in the home, and unpacks in ``/tmp``: it gets an environment of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from toolkit import shell
from toolkit.errors import ForbiddenError
from toolkit.images.build import host_config as host
from toolkit.images.build.apptainer.work import CANNOT, Bind, Fence
from toolkit.images.build.buildlog import Results
from toolkit.images.build.contents import Contents
from toolkit.images.build.follow import Follower
from toolkit.images.build.guard import descendants
from toolkit.images.build.host_mounts import ROOT, HostConfig, bind_option, find_secrets
from toolkit.images.build.privilege import BuildCommand, build_command, may_mount, namespace_ids
from toolkit.images.build.reproducible import EPOCH
from toolkit.images.build.workspace import Workspace
from toolkit.images.recipe import library
from toolkit.images.recipe.bases import Base, Debootstrap
from toolkit.images.recipe.block import LENT
from toolkit.images.recipe.definitions.apptainer import steps
from toolkit.images.recipe.resolve import Resolved
from toolkit.images.sif.squashfs import BLOCK_SIZE, UNCOMPRESSED_TABLES
from toolkit.model.base import to_json
from toolkit.model.image import Layer
from toolkit.progress import Progress
from toolkit.quoting import shell_words

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
COMPRESSION = (
    "-comp",
    "zstd",
    "-Xcompression-level",
    "3",
)  # packs two to three times faster than gzip, and unpacks faster
SOURCE = Path(__file__).resolve().parents[3]  # where our own modules are found
BUILD_DATE = "org.label-schema.build-date"
_MIRROR = "{{ mirror }}"
_REPLACED = ("/tmp", "/dev/shm")  # what everybody may write to


@dataclass
class BuildOutcome:
    """Of a build that worked.

    Attributes:
        results: what the checks said.
        seconds: that each step took.
        kept: steps that had nothing to do, since they are as they were.
        contents: what is in the image, where that has been asked already.
        layers, products: as of a manifest.
        unequal: what is not as it was locked, though it was built from what is locked.
    """

    results: Results
    builder: str
    seconds: dict[str, float] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    contents: Contents | None = None
    layers: tuple[Layer, ...] = ()
    products: str = ""
    unequal: tuple[str, ...] = ()


def build(
    resolved: Resolved,
    definition: str,
    place: Workspace,
    log: Path,
    progress: Progress,
    expected: Mapping[str, float],
    *,
    environment: Mapping[str, str] | None = None,
    cwd: Path | str = "/",
    wheels: Path | None = None,
) -> BuildOutcome:
    """Build ``place.sif``; everything that is said on the way goes to ``log``.

    Args:
        resolved: the recipe.
        definition: its text.
        place: where to work.
        log: the file that gets the whole log.
        progress: is told the steps.
        expected: seconds that each step is likely to take, by name.
        environment: what Apptainer has to know besides, such as a login.
        cwd: where it runs; a definition may name files there.
        wheels: a directory of what was compiled before, for the steps to take.

    Raises:
        BuildError: a step or a check failed; names it, its command, and the end of the log.
        NoSpaceError: a disk was full.
        NeedsInstallError, ForbiddenError: this machine or user cannot build.
    """
    chosen = build_command()
    loan = host.collect_host_config()
    found = steps(library.staged(resolved))
    names = [name for name, _ in found]
    details = {
        "base": resolved.base.detail(),
        "checks": "run the image's checks",
        "pack": "into one file",
        **dict(found),
    }
    follower = Follower(
        resolved.name,
        details,
        log,
        progress,
        expected=expected,
        secret=find_secrets((*loan.files.values(), *host.proxies().values())),
    )
    follower.begin("base")
    lent = write_host_config(loan, place.output / "host", wheels)
    mounts = [word for bind in lent for word in ("--mount", bind_option(bind.source, bind.target))]
    arguments = [*mounts, *_temporary_arguments(place)]
    task = _Task(
        chosen,
        resolved.base,
        definition,
        place.sif,
        COMPRESSION,
        tuple(arguments),
        environment or {},
        cwd,
        lent,
    )
    _build(task, place, follower, steps=names, on_step=_calm_after_base(names))
    follower.end()
    return BuildOutcome(follower.reader.results, program_version(chosen), follower.seconds)


def build_base(
    base: Base,
    place: Workspace,
    target: Path,
    follower: Follower,
    *,
    environment: Mapping[str, str] | None = None,
    cwd: Path | str = "/",
) -> None:
    """Build nothing but what an image begins as, so that layers can be put on it; arguments and errors as those of ``build``."""
    chosen = build_command()
    text = "\n".join(base.header()) + f"\n\n%labels\n    {BUILD_DATE} {EPOCH}\n"
    if base.setup():
        text += "\n%setup\n" + "\n".join(f"    {line}" for line in base.setup()) + "\n"
    packing = (*COMPRESSION, "-b", str(BLOCK_SIZE), *UNCOMPRESSED_TABLES)
    task = _Task(
        chosen,
        base,
        text,
        target,
        packing,
        tuple(_temporary_arguments(place)),
        environment or {},
        cwd,
    )
    _build(task, place, follower, hidden=("pack", "checks"))


def pack_archive(
    base: Base, definition: str, place: Workspace, follower: Follower, cwd: Path
) -> str:
    """Build ``place.sif`` of an archive in ``cwd`` as the end of another engine's build; what did it. Errors as ``build``.

    Who has no ids for a build has enough for this: no step changes an owner.
    """
    try:
        chosen = build_command()
    except ForbiddenError:
        chosen = BuildCommand(shell.find_apptainer() or "apptainer")
    task = _Task(
        chosen,
        base,
        definition,
        place.sif,
        COMPRESSION,
        tuple(_temporary_arguments(place)),
        {},
        cwd,
    )
    _build(task, place, follower)
    return program_version(chosen)


@dataclass(frozen=True)
class _Task:
    """One call of ``apptainer build``.

    Attributes:
        arguments: of it, besides those that every build gets.
        environment: what Apptainer has to know besides, such as a login.
        lent: what of the host the steps see.
    """

    way: BuildCommand
    base: Base
    definition: str
    target: Path
    packing: tuple[str, ...]
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    cwd: Path | str
    lent: tuple[Bind, ...] = ()


def _build(
    task: _Task,
    place: Workspace,
    follower: Follower,
    *,
    steps: Collection[str] = (),
    hidden: Collection[str] = (),
    on_step: Callable[[str, int], object] | None = None,
) -> None:
    """Run ``apptainer build`` where it can write nothing of the host; where a user may not have that, as it is.

    Raises:
        BuildError, NoSpaceError: it failed.
    """
    (place.output / "image.def").write_text(task.definition, encoding="utf-8")
    base = _base_arguments(task.base, place)
    environment = {**_environment(place, task.way), **task.environment}
    for fenced in (True, False):
        # Nothing is there that it could replace; but only so does it let a definition's labels
        # replace its own.
        command = [
            task.way.program,
            "build",
            "--force",
            "--mksquashfs-args",
            " ".join(task.packing),
            *base,
            *task.arguments,
        ]
        command += [
            *_privileges(task.way, fenced=fenced),
            str(task.target),
            str(place.output / "image.def"),
        ]
        command = [*_fence(task, place), *command] if fenced else command
        code = follower.follow(
            command, environment, place, steps=steps, hidden=hidden, on_step=on_step, cwd=task.cwd
        )
        if code != CANNOT or may_mount():
            break
        follower.say("toolkit: Apptainer runs with all that this user may write")
    if code != 0:
        raise follower.error(code)


def _privileges(chosen: BuildCommand, *, fenced: bool) -> tuple[str, ...]:
    """The options of a build by which it may change owners; behind the fence, a user is root already."""
    return chosen.options if may_mount() or not fenced else ()


def _fence(task: _Task, place: Workspace) -> tuple[str, ...]:
    """What is put before a command so that it can write to the directories of this build only."""
    file = place.output / "fence.json"
    try:
        users, groups = ((), ()) if may_mount() else namespace_ids()
    except ForbiddenError:
        users, groups = (), ()
    fence = Fence(
        users=users,
        groups=groups,
        replaced={directory: str(_empty(place.scratch, directory)) for directory in _REPLACED},
        readable=(str(task.cwd), *task.base.reads(), *(one.source for one in task.lent)),
        writable=tuple(str(directory) for directory in place.directories),
    )
    file.write_text(to_json(fence), encoding="utf-8")
    return (
        "env",
        f"PYTHONPATH={SOURCE}",
        sys.executable,
        "-m",
        "toolkit.images.build.apptainer.fence",
        str(file),
        "--",
    )


def _empty(scratch: Path, directory: str) -> Path:
    made = scratch / f"fenced{directory.replace('/', '-')}"
    made.mkdir(mode=0o777)
    return made


def _calm_after_base(names: list[str]) -> Callable[[str, int], None]:
    def on_step(step: str, guard: int) -> None:
        if step == names[0]:
            _calm(guard)

    return on_step


def program_version(chosen: BuildCommand) -> str:
    """``apptainer 1.4.5``."""
    return parse_version(shell.run([chosen.program, "--version"], check=False, timeout=30).stdout)


def parse_version(said: str) -> str:
    """The same, from what it says."""
    return said.replace(" version ", " ").strip()


def _base_arguments(base: Base, place: Workspace) -> list[str]:
    """What only a base by debootstrap needs: the mirror, which must not get into the image."""
    if not isinstance(base, Debootstrap):
        return []
    real = host.debootstrap_command()
    mirror = host.debian_mirror(base.release)
    directory = place.output / "bin"
    directory.mkdir()
    script = directory / "debootstrap"
    # The mirror is the last of its arguments: the others are moved behind it one by one, and it is
    # dropped.
    script.write_text(
        "#!/bin/sh\ncount=$#\n"
        'while [ "$count" -gt 1 ]; do set -- "$@" "$1"; shift; count=$((count - 1)); done\n'
        # Of base-passwd, for the day of the last change of each password. What packs must not see
        # it: it would set all times to it.
        f'shift\nexport SOURCE_DATE_EPOCH={EPOCH}\nexec {shell_words(real)} "$@" {shell_words([mirror])}\n',
        encoding="utf-8",
    )
    script.chmod(0o700)
    (place.output / "arguments").write_text(f"mirror={_MIRROR}\n", encoding="utf-8")
    return ["--build-arg-file", str(place.output / "arguments")]


def write_host_config(
    loan: HostConfig, directory: Path, wheels: Path | None = None
) -> tuple[Bind, ...]:
    """Put what the host lends into a new directory, to be seen at ``ROOT``, and what else is to be seen below that.

    The directory is open, but within one that only its owner can enter.
    """
    directory.mkdir()
    for name, text in loan.files.items():
        (directory / name).write_text(text, encoding="utf-8")
    binds: list[Bind] = []
    for bind in loan.binds:
        target = directory / bind.target
        if Path(bind.source).is_dir():
            target.mkdir(parents=True)
        elif Path(bind.source).is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        else:
            continue  # pip would complain of it on the host as well, and go on
        binds.append(Bind(source=bind.source, target=f"{ROOT}/{bind.target}"))
    if wheels:
        (directory / LENT.removeprefix(f"{ROOT}/")).mkdir()
        binds.append(Bind(source=str(wheels), target=LENT))
    directory.chmod(0o755)
    return (Bind(source=str(directory), target=ROOT), *binds)


def _temporary_arguments(place: Workspace) -> list[str]:
    """Directories for temporary files that go with the build."""
    options: list[str] = []
    for target in ("/tmp", "/var/tmp"):
        directory = place.scratch / f"within{target.replace('/', '-')}"
        directory.mkdir()
        directory.chmod(0o1777)
        options += ["--mount", bind_option(str(directory), target, writable=True)]
    return options


def _environment(place: Workspace, chosen: BuildCommand) -> dict[str, str]:
    """Everything that Apptainer sees of our environment."""
    path = [
        str(place.output / "bin"),
        *SYSTEM_PATH.split(":"),
        *os.environ.get("PATH", "").split(":"),
        str(Path(chosen.program).parent),
    ]
    environment = {
        "HOME": str(Path.home()),
        "PATH": ":".join(dict.fromkeys(part for part in path if part)),
        "LC_ALL": "C.UTF-8",
        "GOMAXPROCS": "1",
        "PYTHONPATH": str(SOURCE),  # for the guard, which does not hand it on
        "TMPDIR": str(place.scratch / "tmp"),
        **host.proxies(),
    }
    directories = {
        "TMPDIR": place.scratch / "tmp",
        "CACHEDIR": place.scratch / "cache",
        "CONFIGDIR": place.output / "config",
    }
    for name, directory in directories.items():
        directory.mkdir()
        environment |= {f"APPTAINER_{name}": str(directory), f"SINGULARITY_{name}": str(directory)}
    return environment


def _calm(guard: int) -> None:
    """Let the thread of Apptainer that keeps a core busy run only when nothing else wants to."""
    for pid in descendants(guard):
        process = Path(f"/proc/{pid}")
        try:
            if b"\0build\0" in (process / "cmdline").read_bytes() and (
                process / "comm"
            ).read_text().startswith(("apptainer", "singularity")):
                for thread in (process / "task").iterdir():
                    os.setpriority(os.PRIO_PROCESS, int(thread.name), 19)
        except OSError:
            continue
