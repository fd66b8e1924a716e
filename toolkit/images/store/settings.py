"""Calls of Apptainer that leave no settings in the user's home directory."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from toolkit import shell
from toolkit.errors import ToolkitError
from toolkit.images.sif.header import JSON, METADATA
from toolkit.images.store.sif_files import read_object

# Apptainer creates a directory of settings, in the user's home unless it is named; it works without
# one that cannot be created. A file in its place, such as /dev/null, would get other permissions.
NO_SETTINGS = dict.fromkeys(("APPTAINER_CONFIGDIR", "SINGULARITY_CONFIGDIR"), "/proc/apptainer")
# Of the kernel's files, root may write to these without any capability.
_PROC = ("bus", "fs", "irq", "sys", "sysrq-trigger")
_SYS = ("block", "bus", "class", "dev", "devices", "module")  # what programs read of the hardware


def image_command(
    image: str | Path,
    command: Sequence[str],
    *,
    action: str = "exec",
    options: Sequence[str] = (),
) -> tuple[list[str], dict[str, str]]:
    """Return a command that runs a program in an image without this machine, and its environment.

    It gets no home, variables or ``/tmp``. Root gets no capability, and no file of the kernel that
    it could write to: otherwise what the image holds, which steps made that were confined, would do
    as it likes with this machine.

    Args:
        image: The SIF file.
        command: The program and its arguments, as the image knows them.
        action: ``exec`` or ``run``.
        options: Further options of Apptainer's.

    Raises:
        NeedsInstallError: Apptainer is not installed.
    """
    words = [shell.require_apptainer(), "--silent", action, "--cleanenv", "--containall"]
    if os.geteuid() == 0:
        words += ["--no-privs", "--no-mount", "sys"]
        paths = (*(f"/proc/{name}" for name in _PROC), *(f"/sys/{name}" for name in _SYS))
        for path in paths:
            words += ["--bind", f"{path}:{path}:ro"] if Path(path).exists() else []
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(Path.home()),
        "LC_ALL": "C.UTF-8",
    }
    return [*words, *options, str(image), *command], environment | NO_SETTINGS


def run_in_image(image: str | Path, command: Sequence[str], *, timeout: float) -> shell.Result:
    """Run a program in an image without the help of this machine; a failure is in the result.

    Raises:
        NeedsInstallError: Apptainer is not installed.
        CommandFailedError: The program did not end in time.
    """
    argv, env = image_command(image, command)
    return shell.run(argv, env=env, cwd="/", timeout=timeout, check=False)


def user_options() -> tuple[str, ...]:
    """Return the options that have root start an image as an ordinary user does."""
    return ("--security", "uid:65534,gid:65534") if os.geteuid() == 0 else ()


def inspect(path: str | Path) -> dict[str, dict[str, str]]:
    """Return the ``labels`` of an image and its scripts of ``environment`` variables, by name.

    Both are empty if the image has none or cannot be read, for which Apptainer has several shapes.
    spython's own ``inspect`` passes no environment on: Apptainer would create a directory in the
    user's home.

    Raises:
        NeedsInstallError: Apptainer is not installed.
    """
    with contextlib.suppress(ToolkitError):  # Apptainer writes what it shows into what it builds
        if text := read_object(Path(path), JSON, METADATA):
            return parse_inspection(text)
    from spython.utils import run_command

    command = [shell.require_apptainer(), "inspect", "--json", "--labels", "--environment", path]
    with contextlib.suppress(UnicodeDecodeError):
        answer = run_command(
            [os.fspath(part) for part in command],
            quiet=True,
            environ={**os.environ, **NO_SETTINGS},
        )
        return parse_inspection("".join(answer["message"][:1]))
    return parse_inspection("")


def parse_inspection(answer: str | bytes) -> dict[str, dict[str, str]]:
    """Parse what ``apptainer inspect --json`` prints, and what a SIF holds of it beside."""
    try:
        attributes = json.loads(answer)["data"]["attributes"]
        return {
            kind: {str(name): str(value) for name, value in (attributes.get(kind) or {}).items()}
            for kind in ("labels", "environment")
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {"labels": {}, "environment": {}}


def add_object(path: Path, text: str, name: str, *options: str) -> None:
    """Add a text to an unsigned SIF, in the group of its file system, which is signed as one.

    Args:
        path: the SIF; a file of the object's name is made beside it.
        text: the text.
        name: of the object.
        options: of ``apptainer sif add``, which say its type.

    Raises:
        CommandFailedError, NeedsInstallError: Apptainer cannot do it.
    """
    file = path.with_name(name)
    file.write_text(text, encoding="utf-8")
    words = ["sif", "add", *options, "--groupid", "1", "--filename", name]
    environment = {**os.environ, **NO_SETTINGS}
    shell.run([shell.require_apptainer(), *words, path, file], env=environment)
    file.unlink()
