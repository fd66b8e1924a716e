"""The instructions of a Dockerfile as the base and the steps of a recipe."""

from __future__ import annotations

import platform
import posixpath
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from toolkit.errors import ConfigError, UsageError
from toolkit.images.recipe.expansion import for_shell, references
from toolkit.images.recipe.importers import dockerfile_reader as dockerfile
from toolkit.images.recipe.importers import installs
from toolkit.images.recipe.importers.context import Context, pack_text
from toolkit.images.recipe.importers.dockerfile_reader import Instruction, UnknownValueError
from toolkit.images.recipe.importing import UnsupportedLine, base_of, command_of, variables_of

# Instructions that have no use in our images, and what to do instead.
_NAMED = {
    "CMD": "name the program on the command line: our images run what they are given",
    "ENTRYPOINT": "name the program on the command line: our images run what they are given",
    "EXPOSE": "nothing: containers on a cluster use the node's network as it is",
    "HEALTHCHECK": "write a check: `checks` of a step",
    "LABEL": "write it into the recipe's summary or comments",
    "MAINTAINER": "write it into the recipe's comments",
    "ONBUILD": "write its command as a step of the recipe that extends this one",
    "STOPSIGNAL": "nothing: Slurm's signals are forwarded as they are",
    "VOLUME": "bind a directory when the job runs: --bind",
}
# No base image sets these, so that a Dockerfile finds them empty.
_UNSET = ("HOME", "USER", "PWD", "HOSTNAME", "SHLVL", "OLDPWD")
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


def recipe_of(
    text: str, path: Path
) -> tuple[dict[str, Any], list[dict[str, Any]], list[UnsupportedLine]]:
    """Return the base, the steps, and the lines that are not supported.

    Raises:
        ConfigError: A step needs what no recipe carries.
        UsageError: The file has several stages.
    """
    return _Import(path).run(dockerfile.instructions(text, path.name))


class _Asked:
    """Unset variables, and which of them a word expands: not those in single quotes."""

    def __init__(self, unset: Container[str]) -> None:
        self.unset = unset
        self.names: set[str] = set()

    def __contains__(self, name: object) -> bool:
        self.names |= {name} if isinstance(name, str) else set()
        return name in self.unset


class _Everything:
    """Holds every name: before FROM there is no base image that could set one."""

    def __contains__(self, name: object) -> bool:
        return True


class _Import:
    """Goes through the instructions, with what the engine would know at each."""

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
        self._user_line: Instruction | None = None

    def run(
        self, instructions: tuple[Instruction, ...]
    ) -> tuple[dict[str, Any], list[dict[str, Any]], list[UnsupportedLine]]:
        """Import everything."""
        for instruction in instructions:
            if not self.base and instruction.name not in ("FROM", "ARG"):
                raise self._refused(instruction, "it is before FROM")
            if instruction.name in _NAMED:
                self._name(instruction, _NAMED[instruction.name])
                continue
            handle: Callable[[Instruction], None] | None = (
                getattr(self, f"_{instruction.name.lower()}", None)
                if instruction.name in _HANDLED
                else None
            )
            if handle is None:
                raise self._refused(
                    instruction, f"{instruction.name} is no instruction that is known here"
                )
            handle(instruction)
        if not self.base:
            raise ConfigError("the file has no FROM", place=str(self.path))
        if self.environment:
            self.steps.append({"block": "env", **variables_of(self.environment)})
        if self._user_line is not None and self.user.partition(":")[0] not in ("", "root", "0"):
            self._name(
                self._user_line,
                "nothing: its commands ran as this user, and a job runs as the user who started it",
            )
        return self.base, self.steps, self.unsupported

    def _place(self, instruction: Instruction) -> str:
        return f"{self.path}:{instruction.line}"

    def _refused(
        self, instruction: Instruction, cause: str, step: str | None = None
    ) -> ConfigError:
        return ConfigError(
            f"{instruction.shown}: {cause}", place=self._place(instruction), next_step=step
        )

    def _name(self, instruction: Instruction, instead: str) -> None:
        self.unsupported.append(
            UnsupportedLine(line=instruction.line, text=instruction.shown, instead=instead)
        )

    def _expanded(
        self, instruction: Instruction, word: str, known: dict[str, str] | None = None
    ) -> str:
        """Return a word with its variables replaced.

        Raises:
            ConfigError: It cannot be read, or depends on the base image in a way that no shell has.
        """
        values = {**self.arguments, **self.environment} if known is None else known
        unset = _Asked(self.unset if known is None else _Everything())
        try:
            text = dockerfile.expanded(word, values, unset=unset)
        except UnknownValueError as error:
            raise self._refused(
                instruction, f"its value depends on whether the base image sets {error}"
            ) from None
        except ValueError as error:
            raise self._refused(instruction, str(error)) from None
        if not unset.names.isdisjoint(_UNSET):
            empty = "$HOME and its like are empty in a Dockerfile, unless the base image sets them"
            self._name(instruction, f"{empty}: write the path")
        return text

    def _plain(self, instruction: Instruction, word: str) -> str:
        """Return a word that depends on nothing in the base image."""
        text = self._expanded(instruction, word)
        if references(text):
            raise self._refused(
                instruction,
                f"it depends on the base image's variable {references(text)[0]}",
                "write its value",
            )
        return text.replace("$$", "$")

    def _from(self, instruction: Instruction) -> None:
        if self.base:
            raise UsageError(
                "the file has several stages, and a recipe has none: "
                "it is not known which commands are for the image",
                place=self._place(instruction),
                next_step="keep one stage; what has to be compiled goes into a block of a recipe, "
                "such as horovod",
            )
        words = list(dockerfile.words(instruction.text))
        reference = (
            self._expanded(instruction, words[0], dict(self.globals)).replace("$$", "$")
            if words
            else ""
        )
        if reference in ("", "scratch") or "${" in reference:
            raise self._refused(
                instruction,
                "a recipe begins with an image that has a shell",
                "FROM debian:bookworm, or another image",
            )
        if "platform" in instruction.flags and self._machine() not in instruction.flags["platform"]:
            raise self._refused(
                instruction, f"images are built for this machine, {self._machine()}"
            )
        self.base = base_of(reference)
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
        for word in dockerfile.words(instruction.text):
            name, equals, value = word.partition("=")
            if not self.base:
                if equals:
                    self.globals[name] = self._expanded(instruction, value, dict(self.globals))
            elif equals:
                self.arguments[name] = self._expanded(instruction, value)
            elif name in self.globals or name in self._platform():
                self.arguments[name] = self.globals.get(name) or self._platform()[name]
            else:
                self.unset.append(name)
                self._name(
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
        words = list(dockerfile.words(instruction.text))
        if words and "=" not in words[0]:
            name, _, value = instruction.text.partition(" ")
            pairs = [(name, value.strip())]
        else:
            pairs = [(name, value) for name, _, value in (word.partition("=") for word in words)]
        # All values of a line are expanded with the variables of earlier lines.
        self.environment |= {name: self._expanded(instruction, value) for name, value in pairs}

    def _workdir(self, instruction: Instruction) -> None:
        target = self._expanded(instruction, instruction.text)
        if target.startswith("${"):
            raise self._refused(
                instruction, "it depends on the base image's variables", "write the path"
            )
        if not target.startswith("/"):
            self._say_where(instruction)
        self.directory = posixpath.normpath(posixpath.join(self.directory, target)).replace(
            "//", "/"
        )
        made = f"mkdir -p {for_shell(self.directory)}"
        self.steps.append(
            {"block": "shell", "name": f"line-{instruction.line}", **command_of(made)}
        )
        self.is_plain = True  # from here on the directory is the file's own

    def _say_where(self, instruction: Instruction) -> None:
        """Report what is assumed of an unknown base."""
        if not self.is_plain:
            self.is_plain = True
            self._name(
                instruction,
                "the base image may begin in another directory than /, or as another user: "
                "then write WORKDIR and USER first",
            )

    def _user(self, instruction: Instruction) -> None:
        self.user = self._plain(instruction, instruction.text.strip())
        self._user_line = instruction

    def _shell(self, instruction: Instruction) -> None:
        if not instruction.words:
            raise self._refused(instruction, "SHELL wants a list in JSON")
        self.shell = instruction.words

    def _run(self, instruction: Instruction) -> None:
        for flag, value in instruction.flags.items():
            if (flag, value) not in (("network", "default"), ("security", "sandbox")):
                raise self._refused(
                    instruction, f"a recipe has no --{flag}", "write the RUN without it"
                )
        if self.directory == "/":
            self._say_where(instruction)
        self.steps.append(
            {
                "block": "shell",
                "name": f"line-{instruction.line}",
                **self._called(instruction),
                **({"directory": self.directory} if self.directory != "/" else {}),
                **({"user": self.user} if self.user else {}),
                **variables_of({**self.arguments, **self.environment}),
            }
        )

    def _called(self, instruction: Instruction) -> dict[str, Any]:
        """Return the program and its command, and the checks that it worked."""
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
                raise self._refused(
                    instruction,
                    "a heredoc with a line #! is a program of its own",
                    "write it by COPY, and run it",
                )
        if "\t" in text and not set(text) & set("'\"\\\n"):
            text = text.replace("\t", " ")
        checks = {
            f"line-{instruction.line}-{name}": check
            for name, check in installs.checks(text).items()
        }
        if installs.is_removing(text):
            checks = {}
            for step in self.steps:
                step.pop("checks", None)
        return {
            **command_of(text),
            **program,
            **({"checks": checks} if checks and not self.user else {}),
        }

    def _copy(self, instruction: Instruction) -> None:
        self._bring(instruction)

    def _add(self, instruction: Instruction) -> None:
        words = instruction.words or tuple(dockerfile.words(instruction.text))
        for word in words[:-1]:
            if "://" in word or word.startswith("git@"):
                raise self._refused(
                    instruction,
                    "a recipe fetches nothing by ADD",
                    "fetch it by RUN, with curl or wget",
                )
            if any(
                word.endswith(ending)
                for ending in (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".txz")
            ):
                raise self._refused(
                    instruction, "ADD would unpack the archive", "COPY it, and unpack it by RUN"
                )
        self._bring(instruction)

    def _bring(self, instruction: Instruction) -> None:
        """Put the files of COPY into a step."""
        wrong = next(
            (flag for flag in instruction.flags if flag not in ("chown", "chmod", "link")), None
        )
        if wrong is not None:
            raise self._refused(instruction, f"a recipe has no --{wrong}")
        words = [
            self._expanded(instruction, word)
            for word in instruction.words or tuple(dockerfile.words(instruction.text))
        ]
        if len(words) < 2:
            raise self._refused(instruction, "it needs a source and a target")
        *named, target = words
        into = target.endswith("/") or target in (".", "..") or target.endswith(("/.", "/.."))
        if target.startswith("${"):
            raise self._refused(
                instruction, "its target depends on the base image's variables", "write the path"
            )
        if not target.startswith("/") and self.directory == "/":
            self._say_where(instruction)
        path = posixpath.normpath(posixpath.join(self.directory, target)).replace("//", "/")
        if instruction.heredocs:
            self._bring_texts(instruction, path, into=into)
            return
        sources = [
            source
            for name in named
            for source in self.context.sources(name.replace("$$", "$"), self._place(instruction))
        ]
        is_file = (
            len(sources) == 1
            and not into
            and not (sources[0].is_dir() and not sources[0].is_symlink())
        )
        packed = self.context.pack(sources, self._place(instruction))
        if packed.names:
            self._unpack(instruction, path, packed.names, packed.data, is_file=is_file)

    def _bring_texts(self, instruction: Instruction, path: str, *, into: bool) -> None:
        if (
            sum(word.startswith("<<") for word in instruction.text.split())
            != len(instruction.text.split()) - 1
        ):
            raise self._refused(instruction, "files and heredocs in one line", "write two lines")
        for doc in instruction.heredocs:
            if not doc.is_literal and "\\" in doc.text:
                raise self._refused(
                    instruction,
                    "it holds a backslash, which may escape something",
                    f"quote the name: <<'{doc.name}'",
                )
            text = (
                doc.text
                if doc.is_literal
                else self._plain(instruction, f'"{_escape_quotes(doc.text)}"')
            )
            packed = pack_text(doc.name, text, self._place(instruction))
            self._unpack(instruction, path, packed.names, packed.data, is_file=not into)

    def _unpack(
        self,
        instruction: Instruction,
        path: str,
        names: tuple[str, ...],
        data: tuple[str, ...],
        *,
        is_file: bool,
    ) -> None:
        number = sum(
            step["name"].startswith(f"line-{instruction.line}")
            for step in self.steps
            if "name" in step
        )
        step: dict[str, Any] = {
            "block": "unpack",
            "name": f"line-{instruction.line}" + (f"-{number + 1}" if number else ""),
            "path": path,
        }
        step |= {"names": list(names)} | ({"file": True} if is_file else {})
        step |= {
            key: self._plain(instruction, instruction.flags[flag])
            for key, flag in (("owner", "chown"), ("mode", "chmod"))
            if flag in instruction.flags
        }
        self.steps.append({**step, "data": list(data)})


def _escape_quotes(text: str) -> str:
    """Return the text of a heredoc within double quotes; in a heredoc, quotes mean nothing."""
    return text.replace('"', '\\"')


_HANDLED = ("FROM", "ARG", "ENV", "WORKDIR", "USER", "SHELL", "RUN", "COPY", "ADD")
