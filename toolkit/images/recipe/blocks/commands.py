"""Blocks of variables and of commands of the recipe itself, for what no other block does."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.images.recipe.block import (
    DOCKER_VARIABLES,
    Block,
    BlockOutput,
    require_step_names,
    shell_checks,
)
from toolkit.images.recipe.quoting import (
    format_exports,
    list_references,
    quote_for_shell,
    quote_word,
    quote_words,
    require_variables,
    separate_variables,
)


class Env(Block, frozen=True, kw_only=True):
    """``block = "env"``: variables of the image.

    Attributes:
        variables: name -> value, for every program that runs in the image.
        expand: those of them whose values hold ``${NAME}``, a variable of the base image; ``$$`` is
            a dollar sign.
    """

    variables: dict[str, str]
    expand: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_variables(self.variables, self.expand)

    def output(self) -> BlockOutput:
        """Return what the definition gets from this step."""
        literals, expanding = separate_variables(self.variables, self.expand)
        return BlockOutput(
            name="env", detail=", ".join(self.variables), environment=literals, expanding=expanding
        )


class Run(Block, frozen=True, kw_only=True):
    """``block = "run"``: commands of the recipe itself.

    Attributes:
        commands: lines for the image's ``sh``, which stops at the first that fails.
        name: of the step.
        checks: by name, commands that must exit with 0 in the finished image.
        packages: Debian packages that the commands leave in the image.
        build_packages: Debian packages that only the commands need.
    """

    commands: tuple[str, ...]
    name: str = "run"
    checks: dict[str, str] = {}
    packages: tuple[str, ...] = ()
    build_packages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_step_names(self.name, *self.checks)
        for command in self.commands:
            if "{{" in command or "}}" in command:
                raise ValueError(
                    "a command cannot hold two braces in a row: "
                    "Apptainer would take them for an argument of the build"
                )
            if command.endswith("\\"):
                raise ValueError("a command is one line: it cannot end with a backslash")

    def output(self) -> BlockOutput:
        """Return what the definition gets from this step."""
        return BlockOutput(
            name=self.name,
            detail="1 command" if len(self.commands) == 1 else f"{len(self.commands)} commands",
            packages=self.packages,
            build_packages=self.build_packages,
            lines=self.commands,
            checks=shell_checks(self.checks),
        )


# Variables that the shells of our steps set (``stages``), and a command of another file does not
# expect.
_OURS = (
    "LC_ALL DEBIAN_FRONTEND PIP_NO_CACHE_DIR PIP_DISABLE_PIP_VERSION_CHECK "
    "PIP_ROOT_USER_ACTION PIP_NO_INPUT"
)


class Shell(Block, frozen=True, kw_only=True):
    r"""``block = "shell"``: a command in its own shell, directory, environment and user.

    A Dockerfile's RUN becomes such a step.

    Attributes:
        command: the last argument of ``program``; empty: it has no such argument.
        encoded: the command is text for ``printf %b``, such as ``echo a\012echo b`` for two lines.
        program: the program and its options that run the command.
        directory: its working directory.
        variables: those of its environment beside the base's.
        expand: those whose values hold ``${NAME}``, as in the block ``env``; ``directory`` may,
            too.
        user: that it runs as: a name or a number, and perhaps ``:`` and a group.
        name: of the step.
        checks: by name, commands that must exit with 0 in the finished image.
    """

    command: str = ""
    encoded: bool = False
    program: tuple[str, ...] = ("/bin/sh", "-c")
    directory: str = "/"
    variables: dict[str, str] = {}
    expand: tuple[str, ...] = ()
    user: str = ""
    name: str = "shell"
    checks: dict[str, str] = {}

    def __post_init__(self) -> None:
        require_step_names(self.name, *self.checks)
        require_variables(self.variables, self.expand)
        list_references(self.directory)
        if not self.program:
            raise ValueError("a command needs a program that runs it")

    def output(self) -> BlockOutput:
        """Return what the definition gets from this step."""
        text = " ".join((self.command or " ".join(self.program)).split())
        return BlockOutput(
            name=self.name,
            detail=text if len(text) <= 60 else f"{text[:57]}...",
            lines=(f"( {'; '.join(self._lines())} )",),
            keeps_temporary=True,
            checks=shell_checks(self.checks),
        )

    def _lines(self) -> Iterator[str]:
        yield f"unset {_OURS}"
        yield "export HOME=/root"
        user, become = _become(self.user)
        yield from user
        yield DOCKER_VARIABLES
        settings = " ".join(format_exports(*separate_variables(self.variables, self.expand)))
        if settings:
            yield f"export {settings}"
        yield f"cd {quote_for_shell(self.directory)}"
        argument = (
            f' "$(printf %b {quote_word(self.command)})"'
            if self.encoded
            else f" {quote_word(self.command)}"
            if self.command
            else ""
        )
        yield f"exec {become}{quote_words(self.program)}{argument}"


def _become(user: str) -> tuple[tuple[str, ...], str]:
    """Return commands that find a user's numbers and home, and the prefix of what it runs."""
    name, _, group = user.partition(":")
    if not name or (name in ("root", "0") and not group):
        return (), ""
    known = f"getent passwd {quote_word(name)}"
    uid = name if name.isdecimal() else f"$({known} | cut -d: -f3)"
    gid = (
        f"$(getent group {quote_word(group)} | cut -d: -f3)"
        if group
        else f"$({known} | cut -d: -f4)"
    )
    lines = (
        f"uid={uid}",
        f"gid={group if group.isdecimal() else gid}",
        'home=$(getent passwd "$uid" | cut -d: -f6)',
        'export HOME="${home:-/}"',
    )
    groups = "--clear-groups" if group or name.isdecimal() else "--init-groups"
    return lines, f'setpriv --reuid="$uid" --regid="${{gid:-0}}" {groups} -- '
