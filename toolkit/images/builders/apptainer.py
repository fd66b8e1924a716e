"""Building by Apptainer: a definition becomes a SIF file.

This does not go through spython, whose ``build`` hides a failure, asks for sudo, cannot pass what the host lends, and can deadlock while it
streams; and none of its calls can be stopped together with all that they started. What it does well is ``inspect(path, json=True)``: labels
of an image are read by that (``labels.py``). What else has to be known of Apptainer 1.4:

- It writes every value of a build argument into the image, in the definition and in a label. So the mirror is not given to it: it is told
  to put ``{{ mirror }}`` where that is written already, and the ``debootstrap`` that it finds first is ours, which puts the mirror there.
- After a bootstrap by ``--fakeroot`` a thread of it keeps a core busy until the end (``prepareFakerootEnv``: its ``break`` leaves a select,
  not the loop). It is allowed one core only, and when the steps begin it is made to wait for everything else that wants to run.
- It shows a build the machine's own ``/tmp`` and ``/var/tmp``, where a killed build would leave its files: it is given others.
- It takes settings from ``APPTAINER_*`` of the user, keeps caches in the home, and unpacks in ``/tmp``: it gets an environment of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from toolkit import shell
from toolkit.errors import BuildError, NeedsInstallError, NoSpaceError, ToolkitError
from toolkit.images import host
from toolkit.images.bases import Debootstrap
from toolkit.images.builders.guard import descendants
from toolkit.images.builders.privilege import Way, way
from toolkit.images.builders.workspace import Workspace
from toolkit.images.buildlog import Reader, Results
from toolkit.images.definition import steps
from toolkit.images.loan import ROOT, Loan, bind_option, secrets, without
from toolkit.images.recipes import Resolved
from toolkit.progress import Progress
from toolkit.quoting import shell_words
from toolkit.units import human_time

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_COMPRESSION = "-comp zstd -Xcompression-level 3"  # packs two to three times faster than gzip, and unpacks faster
_MIRROR = "{{ mirror }}"
_PATIENCE = 60.0  # seconds for the guard to clear up after an interruption


@dataclass
class Outcome:
    """Of a build that worked: what the checks said, and how long each step took, in seconds."""

    results: Results
    builder: str
    seconds: dict[str, float] = field(default_factory=dict)


def build(resolved: Resolved, definition: str, place: Workspace, log: Path, progress: Progress, expected: Mapping[str, float]) -> Outcome:
    """Build ``place.sif``; everything that is said on the way goes to ``log``.

    Args:
        resolved: the recipe.
        definition: its text.
        place: where to work.
        log: the file that gets the whole log.
        progress: is told the steps.
        expected: seconds that each step is likely to take, by name.

    Raises:
        BuildError: a step or a check failed; names it, its command, and the end of the log.
        NoSpaceError: a disk was full.
        NeedsInstallError, ForbiddenError: this machine or user cannot build.
    """
    chosen = way()
    loan = host.loan()
    secret = secrets((*loan.files.values(), *host.proxies().values()))
    (place.output / "image.def").write_text(definition, encoding="utf-8")
    arguments = [*_base_arguments(resolved, place), *_loan_arguments(loan, place), *_temporary_arguments(place)]
    command = [*chosen.prefix, chosen.program, "build", *chosen.options, "--mksquashfs-args", _COMPRESSION, *arguments]
    command += [str(place.sif), str(place.output / "image.def")]
    run = _Run(resolved, log, progress, expected, secret)
    return run.outcome(_version(chosen), run.follow(command, _environment(place, chosen), place))


def _version(chosen: Way) -> str:
    """``apptainer 1.4.5``."""
    said = shell.run([chosen.program, "--version"], check=False, timeout=30).stdout
    return said.replace(" version ", " ").strip()


def _base_arguments(resolved: Resolved, place: Workspace) -> list[str]:
    """What only a base by debootstrap needs: the mirror, which must not get into the image."""
    if not isinstance(resolved.base, Debootstrap):
        return []
    real = shell.which("debootstrap")
    if real is None:
        raise NeedsInstallError("debootstrap is not installed here", next_step="toolkit setup")
    mirror = host.debian_mirror(resolved.base.release)
    directory = place.output / "bin"
    directory.mkdir()
    script = directory / "debootstrap"
    # The mirror is the last of its arguments: the others are moved behind it one by one, and it is dropped.
    script.write_text(
        "#!/bin/sh\ncount=$#\n"
        'while [ "$count" -gt 1 ]; do set -- "$@" "$1"; shift; count=$((count - 1)); done\n'
        f'shift\nexec {shell_words([real])} "$@" {shell_words([mirror])}\n',
        encoding="utf-8",
    )
    script.chmod(0o700)
    (place.output / "arguments").write_text(f"mirror={_MIRROR}\n", encoding="utf-8")
    return ["--build-arg-file", str(place.output / "arguments")]


def _loan_arguments(loan: Loan, place: Workspace) -> list[str]:
    """Put what the host lends into a directory, and bind it. The directory is open, but within one that only its owner can enter."""
    directory = place.output / "host"
    directory.mkdir()
    for name, text in loan.files.items():
        (directory / name).write_text(text, encoding="utf-8")
    options = ["--mount", bind_option(str(directory), ROOT)]
    for bind in loan.binds:
        target = directory / bind.target
        if Path(bind.source).is_dir():
            target.mkdir(parents=True)
        elif Path(bind.source).is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        else:
            continue  # pip would complain of it on the host as well, and go on
        options += ["--mount", bind_option(bind.source, f"{ROOT}/{bind.target}")]
    directory.chmod(0o755)
    return options


def _temporary_arguments(place: Workspace) -> list[str]:
    """Directories for temporary files that go with the build."""
    options: list[str] = []
    for target in ("/tmp", "/var/tmp"):
        directory = place.scratch / f"within{target.replace('/', '-')}"
        directory.mkdir()
        directory.chmod(0o1777)
        options += ["--mount", bind_option(str(directory), target, writable=True)]
    return options


def _environment(place: Workspace, chosen: Way) -> dict[str, str]:
    """Everything that Apptainer sees of our environment."""
    path = [str(place.output / "bin"), *_SYSTEM_PATH.split(":"), *os.environ.get("PATH", "").split(":"), str(Path(chosen.program).parent)]
    environment = {
        "HOME": str(Path.home()),
        "PATH": ":".join(dict.fromkeys(part for part in path if part)),
        "LC_ALL": "C.UTF-8",
        "GOMAXPROCS": "1",
        "PYTHONPATH": str(Path(__file__).resolve().parents[3]),  # for the guard, which does not hand it on
        **host.proxies(),
    }
    directories = {"TMPDIR": place.scratch / "tmp", "CACHEDIR": place.scratch / "cache", "CONFIGDIR": place.output / "config"}
    for name, directory in directories.items():
        directory.mkdir()
        environment |= {f"APPTAINER_{name}": str(directory), f"SINGULARITY_{name}": str(directory)}
    return environment


class _Run:
    """One run of Apptainer: its output becomes a log, progress, and in the end an outcome or an error."""

    def __init__(self, resolved: Resolved, log: Path, progress: Progress, expected: Mapping[str, float], secret: tuple[str, ...]) -> None:
        self._resolved, self._log, self._progress, self._expected, self._secret = resolved, log, progress, expected, secret
        self._details = {
            "base": resolved.base.detail(),
            "checks": "the image proves itself",
            "pack": "into one file",
            **dict(steps(resolved)),
        }
        self._reader = Reader([name for name, _ in steps(resolved)])
        self._seconds: dict[str, float] = {}
        self._began = time.monotonic()

    def follow(self, command: list[str], environment: Mapping[str, str], place: Workspace) -> int:
        """Run it under the guard to its end; its exit code."""
        directories = [str(directory) for directory in place.directories]
        process = shell.start(
            [sys.executable, "-m", "toolkit.images.builders.guard", *directories, "--", *command],
            env=environment,
            cwd="/",
            stdin=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            new_session=True,
            pass_fds=place.locks,
        )
        self._begin("base")
        try:
            with self._log.open("w", buffering=1, encoding="utf-8") as stream:  # line by line, for who watches it
                for line in process.stdout or ():
                    self._take(without(self._secret, line), stream.write, process.pid)
            return process.wait()
        finally:
            # Whatever happened here: with the end of this pipe, the guard ends everything.
            if process.stdin:
                process.stdin.close()
            process.wait(_PATIENCE)

    def _take(self, line: str, write: Callable[[str], object], guard: int) -> None:
        write(line)
        event = self._reader.feed(line.rstrip("\n"))
        if event == "step":
            if list(self._seconds) == ["base"]:
                _calm(guard)
            self._begin(self._reader.step)
        elif event == "check":
            check = self._reader.results.checks[-1]
            self._progress.say("check", f"{check.name} {'passed' if check.passed else 'failed'}: {check.detail}")

    def _begin(self, step: str) -> None:
        self._clock(step)
        self._progress.begin(step, self._details.get(step, ""), self._expected.get(step))

    def _clock(self, step: str) -> None:
        """The step before has ended now, and ``step`` begins."""
        now = time.monotonic()
        if self._seconds:
            last = next(reversed(self._seconds))
            self._seconds[last] = round(now - self._began, 1)
        self._began = now
        self._seconds[step] = 0.0

    def outcome(self, builder: str, code: int) -> Outcome:
        """What came of it.

        Raises:
            BuildError, NoSpaceError: it failed.
        """
        if code == 0:
            self._clock("end")
            del self._seconds["end"]
            self._progress.end()
            return Outcome(self._reader.results, builder, self._seconds)
        self._progress.end("failed")
        raise self._error(code)

    def _error(self, code: int) -> ToolkitError:
        reader, name = self._reader, self._resolved.name
        if reader.no_space:
            return NoSpaceError(
                f"a disk was full in the step {reader.step} of {name}", details=tuple(reader.tail), next_step=f"the log: {self._log}"
            )
        if reader.step == "checks" and reader.results.failed:
            failed = reader.results.failed
            details = [f"{check.name}: {check.detail}" for check in failed]
            cause = f"{name} was built but did not pass {len(failed)} of {len(reader.results.checks)} checks; it is not kept"
            return BuildError(cause, place=", ".join(check.name for check in failed), details=details, next_step=f"the log: {self._log}")
        place = f"step {reader.step}" + (f", command: {reader.command}" if reader.command else "")
        after = human_time(time.monotonic() - self._began)
        cause = f"{name} could not be built: the step {reader.step} failed after {after} (exit code {code})"
        return BuildError(cause, place=place, details=tuple(reader.tail), next_step=f"the log: {self._log}")


def _calm(guard: int) -> None:
    """Let the thread of Apptainer that keeps a core busy run only when nothing else wants to."""
    for pid in descendants(guard):
        process = Path(f"/proc/{pid}")
        try:
            if b"\0build\0" in (process / "cmdline").read_bytes() and (process / "comm").read_text().startswith(
                ("apptainer", "singularity")
            ):
                for thread in (process / "task").iterdir():
                    os.setpriority(os.PRIO_PROCESS, int(thread.name), 19)
        except OSError:
            continue
