"""Calls of Apptainer that leave no settings in the user's home directory."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolkit import shell
from toolkit.errors import BuildError

_PATIENCE = 120.0  # seconds
VARIABLES = ("APPTAINER_CONFIGDIR", "SINGULARITY_CONFIGDIR")


# Apptainer creates a directory of settings, in the user's home unless it is named; it works without
# one that cannot be created. A file in its place, such as /dev/null, would get other permissions.
NO_SETTINGS = dict.fromkeys(VARIABLES, "/proc/apptainer")
# Of the kernel's files, root may write to these without any capability.
_PROC = ("bus", "fs", "irq", "sys", "sysrq-trigger")
_SYS = ("block", "bus", "class", "dev", "devices", "module")  # what programs read of the hardware


def image_command(program: str, action: str = "exec") -> tuple[str, ...]:
    """Return the words before an image and a command that runs in it without this machine.

    Root gets no capability, and no file of the kernel that it could write to: otherwise what the
    image holds, which steps made that were confined, would do as it likes with this machine.
    """
    words = (program, "--silent", action, "--cleanenv", "--containall")
    if os.geteuid() != 0:
        return words
    paths = [*(f"/proc/{name}" for name in _PROC), *(f"/sys/{name}" for name in _SYS)]
    binds = (
        word for path in paths if Path(path).exists() for word in ("--bind", f"{path}:{path}:ro")
    )
    return (*words, "--no-privs", "--no-mount", "sys", *binds)


def run_in_image(
    image: str | Path,
    command: Sequence[str],
    *,
    timeout: float,
    action: str = "exec",
    options: Sequence[str] = (),
    variables: Mapping[str, str] = {},  # never changed
) -> shell.Result:
    """Run a program in an image without the help of this machine: no home, variables or ``/tmp``.

    Args:
        image: The SIF file.
        command: The program and its arguments, as the image knows them.
        timeout: Seconds after which it is killed.
        action: ``exec`` or ``run``.
        options: Further options of Apptainer's.
        variables: Further variables that Apptainer itself sees.

    Raises:
        NeedsInstallError: Apptainer is not installed.
        CommandFailedError: The program did not end in time.
    """
    program = shell.require_apptainer()
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(Path.home()),
        "LC_ALL": "C.UTF-8",
        **variables,
    }
    return shell.run(
        [*image_command(program, action), *options, image, *command],
        env=environment | NO_SETTINGS,
        cwd="/",
        timeout=timeout,
        check=False,
    )


def user_options() -> tuple[str, ...]:
    """Return the options that have root start an image as an ordinary user does."""
    return ("--security", "uid:65534,gid:65534") if os.geteuid() == 0 else ()


def read_variables(image: str | Path, options: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables that a program has in an image, with further options of Apptainer's.

    Raises:
        BuildError: The image does not run.
        NeedsInstallError: Apptainer is not installed.
    """
    # Before the first zero is what the image prints when it is started.
    script = "printf '\\000'; cat /proc/self/environ"
    words = ["/bin/sh", "-c", script]
    result = run_in_image(image, words, timeout=_PATIENCE, options=options)
    if not result.ok:
        raise BuildError(
            "the image could not list its variables", place=str(image), details=result.tail()
        )
    pairs = (entry.partition("=") for entry in result.stdout.split("\0")[1:])
    return {name: value for name, _, value in pairs if name}


def inspect(path: str | Path) -> dict[str, dict[str, str]]:
    """Return the ``labels`` of an image and its scripts of ``environment`` variables, by name.

    Both are empty if the image has none or cannot be read, for which Apptainer has several shapes.
    spython's own ``inspect`` passes no environment on: Apptainer would create a directory in the
    user's home.

    Raises:
        NeedsInstallError: Apptainer is not installed.
    """
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
