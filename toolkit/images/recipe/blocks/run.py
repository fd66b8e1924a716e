"""Commands of the recipe itself, for what no block does."""

from __future__ import annotations

from toolkit.images.recipe.block import Block, BlockOutput, CheckCall, require_step_name
from toolkit.images.recipe.words import word


class Run(Block, frozen=True, kw_only=True):
    """``block = "run"``.

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
        require_step_name(self.name)
        for name in self.checks:
            require_step_name(name)
        for command in self.commands:
            if "{{" in command or "}}" in command:
                raise ValueError(
                    "a command cannot hold two braces in a row: "
                    "Apptainer would take them for an argument of the build"
                )
            if command.endswith("\\"):
                raise ValueError("a command is one line: it cannot end with a backslash")

    def output(self, holds: frozenset[str] = frozenset()) -> BlockOutput:
        """Return what the definition gets from this step."""
        del holds
        return BlockOutput(
            name=self.name,
            detail="1 command" if len(self.commands) == 1 else f"{len(self.commands)} commands",
            packages=self.packages,
            build_packages=self.build_packages,
            lines=self.commands,
            checks=tuple(
                CheckCall(name=name, command=f"sh -c {word(command)}")
                for name, command in sorted(self.checks.items())
            ),
        )
