"""The instructions of a Dockerfile as the base and the steps of a recipe."""

from __future__ import annotations

import platform
import posixpath
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolkit.errors import ConfigError
from toolkit.images.recipe.importers import shell_words
from toolkit.images.recipe.importers.copies import copy_files
from toolkit.images.recipe.importers.dockerfile_reader import Instruction, read_instructions
from toolkit.images.recipe.importers.state import ImportState
from toolkit.images.recipe.importers.steps import (
    ALTERNATIVES,
    UnsupportedLine,
    encode_command,
    encode_variables,
    make_base,
    refuse_stages,
)
from toolkit.images.recipe.quoting import quote_for_shell

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le", "s390x": "s390x"}
# Images that begin in / as root, by repository.
_PLAIN_BASES = (
    *(
        "debian",
        "ubuntu",
        "alpine",
        "python",
        "fedora",
        "centos",
        "rockylinux",
        "almalinux",
        "busybox",
        "gcc",
        "buildpack-deps",
    ),
    *(
        "continuumio/miniconda3",
        "condaforge/miniforge3",
        "nvidia/cuda",
        "nvcr.io/nvidia/cuda",
        "amazonlinux",
        "archlinux",
        "r-base",
    ),
)


def import_dockerfile(
    text: str, path: Path
) -> tuple[dict[str, Any], list[dict[str, Any]], list[UnsupportedLine]]:
    """Return the base, the steps, and the lines that are not supported.

    Raises:
        ConfigError: A step needs what no recipe carries.
        UsageError: The file has several stages.
    """
    return _Import(path).run(read_instructions(text, path.name))


class _Import(ImportState):
    """An import, which handles each instruction by the method of its name."""

    _user_line: Instruction | None = None

    def run(
        self, instructions: tuple[Instruction, ...]
    ) -> tuple[dict[str, Any], list[dict[str, Any]], list[UnsupportedLine]]:
        """Import everything."""
        for instruction in instructions:
            if not self.base and instruction.name not in ("FROM", "ARG"):
                raise self.refuse(instruction, "it is before FROM")
            if instruction.name in ALTERNATIVES:
                self.report(instruction, ALTERNATIVES[instruction.name])
                continue
            handle: Callable[[Instruction], None] | None = (
                getattr(self, f"_{instruction.name.lower()}", None)
                if instruction.name in _HANDLED
                else None
            )
            if handle is None:
                raise self.refuse(
                    instruction, f"{instruction.name} is no instruction that is known here"
                )
            handle(instruction)
        if not self.base:
            raise ConfigError("the file has no FROM", place=str(self.path))
        if self.environment:
            self.steps.append({"block": "env", **encode_variables(self.environment)})
        if self._user_line is not None and self.user.partition(":")[0] not in ("", "root", "0"):
            self.report(
                self._user_line,
                "nothing: its commands ran as this user, and a job runs as the user who started it",
            )
        return self.base, self.steps, self.unsupported

    def _from(self, instruction: Instruction) -> None:
        if self.base:
            raise refuse_stages(self.place(instruction))
        words = list(shell_words.split_words(instruction.text))
        reference = (
            self.expand(instruction, words[0], dict(self.globals)).replace("$$", "$")
            if words
            else ""
        )
        if reference in ("", "scratch") or "${" in reference:
            raise self.refuse(
                instruction,
                "a recipe begins with an image that has a shell",
                "FROM debian:bookworm, or another image",
            )
        if "platform" in instruction.flags and self._machine() not in instruction.flags["platform"]:
            raise self.refuse(instruction, f"images are built for this machine, {self._machine()}")
        self.base = make_base(reference)
        if self.base["kind"] == "ngc":
            self.directory, self.is_plain = "/workspace", True  # where NVIDIA's images begin
            return
        repository = reference.partition("@")[0].rpartition(":")[0] or reference
        self.is_plain = (
            repository.removeprefix("docker.io/").removeprefix("library/") in _PLAIN_BASES
        )

    @staticmethod
    def _machine() -> str:
        return _MACHINES.get(platform.machine(), platform.machine())

    def _arg(self, instruction: Instruction) -> None:
        for word in shell_words.split_words(instruction.text):
            name, equals, value = word.partition("=")
            if not self.base:
                if equals:
                    self.globals[name] = self.expand(instruction, value, dict(self.globals))
            elif equals:
                self.arguments[name] = self.expand(instruction, value)
            elif name in self.globals or name in self._platform():
                self.arguments[name] = self.globals.get(name) or self._platform()[name]
            else:
                self.unset.append(name)
                self.report(
                    instruction,
                    f"it has no value here: write ARG {name}=VALUE if the build needs one",
                )

    def _platform(self) -> dict[str, str]:
        machine = self._machine()
        known = {"ARCH": machine, "OS": "linux", "PLATFORM": f"linux/{machine}", "VARIANT": ""}
        return {
            f"{side}{key}": value for side in ("TARGET", "BUILD") for key, value in known.items()
        }

    def _env(self, instruction: Instruction) -> None:
        words = list(shell_words.split_words(instruction.text))
        if words and "=" not in words[0]:
            name, _, value = instruction.text.partition(" ")
            pairs = [(name, value.strip())]
        else:
            pairs = [(name, value) for name, _, value in (word.partition("=") for word in words)]
        # All values of a line are expanded with the variables of earlier lines.
        self.environment |= {name: self.expand(instruction, value) for name, value in pairs}

    def _workdir(self, instruction: Instruction) -> None:
        target = self.expand(instruction, instruction.text)
        if target.startswith("${"):
            raise self.refuse(
                instruction, "it depends on the base image's variables", "write the path"
            )
        if not target.startswith("/"):
            self.report_assumed_base(instruction)
        self.directory = posixpath.normpath(posixpath.join(self.directory, target)).replace(
            "//", "/"
        )
        made = f"mkdir -p {quote_for_shell(self.directory)}"
        self.steps.append(
            {"block": "shell", "name": f"line-{instruction.line}", **encode_command(made)}
        )
        self.is_plain = True  # from here on the directory is the file's own

    def _user(self, instruction: Instruction) -> None:
        self.user = self.expand_plain(instruction, instruction.text.strip())
        self._user_line = instruction

    def _shell(self, instruction: Instruction) -> None:
        if not instruction.words:
            raise self.refuse(instruction, "SHELL wants a list in JSON")
        self.shell = instruction.words

    def _run(self, instruction: Instruction) -> None:
        for flag, value in instruction.flags.items():
            if (flag, value) not in (("network", "default"), ("security", "sandbox")):
                raise self.refuse(
                    instruction, f"a recipe has no --{flag}", "write the RUN without it"
                )
        if self.directory == "/":
            self.report_assumed_base(instruction)
        self.steps.append(
            {
                "block": "shell",
                "name": f"line-{instruction.line}",
                **self._called(instruction),
                **({"directory": self.directory} if self.directory != "/" else {}),
                **({"user": self.user} if self.user else {}),
                **encode_variables({**self.arguments, **self.environment}),
            }
        )

    def _called(self, instruction: Instruction) -> dict[str, Any]:
        """Return the program and its command."""
        program = {} if self.shell == ("/bin/sh", "-c") else {"program": list(self.shell)}
        if instruction.words:
            return {"program": list(instruction.words)}
        text = instruction.text
        if instruction.heredocs:
            only = (
                instruction.text.split()[0].startswith("<<") and len(instruction.text.split()) == 1
            )
            text = (
                instruction.heredocs[0].text
                if only
                else "\n".join((text, *(f"{doc.text}{doc.name}" for doc in instruction.heredocs)))
            )
            if only and text.startswith("#!"):
                raise self.refuse(
                    instruction,
                    "a heredoc with a line #! is a program of its own",
                    "write it by COPY, and run it",
                )
        if "\t" in text and not set(text) & set("'\"\\\n"):
            text = text.replace("\t", " ")
        return {**encode_command(text), **program}

    _copy = copy_files

    def _add(self, instruction: Instruction) -> None:
        words = instruction.words or tuple(shell_words.split_words(instruction.text))
        for word in words[:-1]:
            if "://" in word or word.startswith("git@"):
                raise self.refuse(
                    instruction,
                    "a recipe fetches nothing by ADD",
                    "fetch it by RUN, with curl or wget",
                )
            if any(
                word.endswith(ending)
                for ending in (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".txz")
            ):
                raise self.refuse(
                    instruction, "ADD would unpack the archive", "COPY it, and unpack it by RUN"
                )
        copy_files(self, instruction)


_HANDLED = ("FROM", "ARG", "ENV", "WORKDIR", "USER", "SHELL", "RUN", "COPY", "ADD")
