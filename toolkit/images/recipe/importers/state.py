"""The state of a Dockerfile's import: the values that the engine would know at an instruction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolkit.errors import ConfigError
from toolkit.images.recipe.importers import shell_words
from toolkit.images.recipe.importers.context import Context
from toolkit.images.recipe.importers.dockerfile_reader import Instruction
from toolkit.images.recipe.importers.steps import UnsupportedLine
from toolkit.images.recipe.quoting import list_references

# No base image sets these, so that a Dockerfile finds them empty.
_UNSET = ("HOME", "USER", "PWD", "HOSTNAME", "SHLVL", "OLDPWD")


class ImportState:
    """The variables, directory, user and shell at an instruction, and the steps so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.context = Context(path.parent)
        self.base: dict[str, Any] = {}
        self.steps: list[dict[str, Any]] = []
        self.unsupported: list[UnsupportedLine] = []
        self.globals: dict[str, str] = {}
        self.environment: dict[str, str] = {}
        self.arguments: dict[str, str] = {}
        self.unset = list(_UNSET)
        self.directory, self.user = "/", ""
        self.shell: tuple[str, ...] = ("/bin/sh", "-c")
        self.is_plain = False  # the base is known to begin in / as root

    def place(self, instruction: Instruction) -> str:
        """Return the file and line of an instruction."""
        return f"{self.path}:{instruction.line}"

    def refuse(self, instruction: Instruction, cause: str, step: str | None = None) -> ConfigError:
        """Return the error for an instruction that cannot be imported."""
        return ConfigError(
            f"{instruction.shown}: {cause}", place=self.place(instruction), next_step=step
        )

    def report(self, instruction: Instruction, instead: str) -> None:
        """Add an instruction to those that are not supported."""
        self.unsupported.append(
            UnsupportedLine(line=instruction.line, text=instruction.shown, instead=instead)
        )

    def expand(
        self, instruction: Instruction, word: str, known: dict[str, str] | None = None
    ) -> str:
        """Return a word with its variables replaced.

        Raises:
            ConfigError: It cannot be read, or depends on the base image in a way that no shell has.
        """
        values = {**self.arguments, **self.environment} if known is None else known
        # Before FROM there is no base image that could set a variable.
        unset, empty = None if known is not None else self.unset, set[str]()
        try:
            text = shell_words.expand_word(word, values, unset=unset, empty=empty)
        except shell_words.UnknownValueError as error:
            raise self.refuse(
                instruction, f"its value depends on whether the base image sets {error}"
            ) from None
        except ValueError as error:
            raise self.refuse(instruction, str(error)) from None
        if not empty.isdisjoint(_UNSET):
            names = "$HOME and its like are empty in a Dockerfile, unless the base image sets them"
            self.report(instruction, f"{names}: write the path")
        return text

    def expand_plain(self, instruction: Instruction, word: str) -> str:
        """Return a word that depends on nothing in the base image."""
        text = self.expand(instruction, word)
        if list_references(text):
            raise self.refuse(
                instruction,
                f"it depends on the base image's variable {list_references(text)[0]}",
                "write its value",
            )
        return text.replace("$$", "$")

    def report_assumed_base(self, instruction: Instruction) -> None:
        """Report what is assumed of an unknown base."""
        if not self.is_plain:
            self.is_plain = True
            self.report(
                instruction,
                "the base image may begin in another directory than /, or as another user: "
                "then write WORKDIR and USER first",
            )
