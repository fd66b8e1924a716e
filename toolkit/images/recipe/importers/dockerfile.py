"""The instructions of a Dockerfile as the base and the steps of a recipe."""

from __future__ import annotations

import platform
import posixpath
import re
from pathlib import Path
from typing import Any

from toolkit.errors import ConfigError
from toolkit.images.recipe import catalogue
from toolkit.images.recipe.importers.context import Context
from toolkit.images.recipe.importers.reader import HEREDOC, Instruction, read_instructions
from toolkit.images.recipe.importers.words import (
    list_names,
    split_words,
    to_expanding,
    to_literal,
)
from toolkit.images.recipe.quoting import escape_expanding
from toolkit.model.base import Model

# Instructions that have no use in our images, and what to do instead.
ALTERNATIVES = {
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
_HANDLED = ("FROM", "ARG", "ENV", "WORKDIR", "USER", "SHELL", "RUN", "COPY", "ADD")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}  # as Docker calls them
# Images that begin in / as root, by repository.
_PLAIN_BASES = re.compile(
    r"(docker\.io/)?(library/)?(debian|ubuntu|alpine|python|fedora|centos|rockylinux|almalinux"
    r"|busybox|gcc|buildpack-deps|continuumio/miniconda3|condaforge/miniforge3|nvidia/cuda"
    r"|amazonlinux|archlinux|r-base)|nvcr\.io/nvidia/cuda"
)
# No base image sets these, so that a Dockerfile finds them empty; a shell, or the start of an
# image, sets them.
_NEVER_SET = {"HOME", "USER", "PWD", "HOSTNAME", "SHLVL", "OLDPWD"}
# A heredoc whose text is the command itself.
_ONLY_HEREDOC = re.compile(HEREDOC.pattern + r"\n(?P<text>(?:.*\n)*)\t*(?P=name)")
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".txz")
# Packages of the finished image that lack what they need; each where its program is there.
_PIP_CHECK = {"pip": "if command -v pip >/dev/null; then pip check; fi"}
_CHECKS = {
    "dpkg": "if command -v dpkg >/dev/null; then dpkg --audit | { ! grep .; }; fi",
}


def _platform_variables() -> dict[str, str]:
    """Return the variables that BuildKit sets for each ARG that names them."""
    machine = _MACHINES.get(platform.machine(), platform.machine())
    kinds = {"ARCH": machine, "OS": "linux", "PLATFORM": f"linux/{machine}", "VARIANT": ""}
    return {f"{side}{kind}": kinds[kind] for side in ("TARGET", "BUILD") for kind in kinds}


class UnsupportedLine(Model, frozen=True, kw_only=True):
    """A line that a recipe cannot carry, and what to do about it."""

    line: int
    text: str
    instead: str


class DockerfileImport:
    """An import, which handles each instruction by the method of its name.

    Attributes:
        base, steps: of the recipe.
        unsupported: the lines that are not in it.
    """

    def __init__(self, path: Path, files: Path) -> None:
        """Take the path of the Dockerfile, and of the directory for the recipe's files."""
        self.path, self.files = path, files
        self.context = Context(path.parent, files)
        self.base: dict[str, Any] = {}
        self.steps: list[dict[str, Any]] = []
        self.unsupported: list[UnsupportedLine] = []
        self._globals = _platform_variables()  # and of ARG before FROM
        self._known: dict[str, str] = {}  # values that do not depend on the base
        self._set = set[str]()  # by ENV
        self._as_user = ""
        self._user_line: Instruction | None = None
        self._program: tuple[str, ...] = ("/bin/sh", "-c")
        self._is_plain = False  # the base is known to begin in / as root

    def run(self, text: str) -> None:
        """Import everything.

        Raises:
            ConfigError: A step needs what no recipe carries, the file has several stages, or a
                heredoc does not end.
        """
        for instruction in read_instructions(text, self.path):
            try:
                self._take(instruction)
            except ValueError as error:
                place = f"{self.path}:{instruction.line}"
                raise ConfigError(f"{instruction.shown}: {error}", place=place) from None
        if self._user_line and self._as_user.partition(":")[0] not in ("", "root", "0"):
            self._report(
                self._user_line,
                "nothing: its commands ran as this user, and a job runs as the user who started it",
            )
        commands = [step for step in self.steps if step["block"] == "shell"]
        if commands:
            # NVIDIA's images have conflicts of their own.
            commands[-1]["checks"] = _CHECKS | (_PIP_CHECK if self.base["kind"] != "ngc" else {})

    def _take(self, instruction: Instruction) -> None:
        name = instruction.name
        if not self.base and name not in ("FROM", "ARG"):
            raise ValueError("it is before FROM")
        if name in ("COPY", "ADD") and HEREDOC.search(instruction.text):
            raise ValueError("a heredoc: write its text as a file, and COPY that")
        if name in ALTERNATIVES:
            self._report(instruction, ALTERNATIVES[name])
        elif name in _HANDLED:
            getattr(self, f"_{name.lower()}")(instruction)
        else:
            raise ValueError("the instruction is not known here")

    def _report(self, instruction: Instruction, instead: str) -> None:
        self.unsupported.append(
            UnsupportedLine(line=instruction.line, text=instruction.shown, instead=instead)
        )

    def _report_assumed_base(self, instruction: Instruction) -> None:
        if not self._is_plain:
            self._is_plain = True
            self._report(
                instruction,
                "the base image may begin in another directory than /, or as another user: "
                "then write WORKDIR and USER first",
            )

    def _add_step(self, instruction: Instruction, block: str, **options: Any) -> None:
        self.steps.append({"block": block, "name": f"line-{instruction.line}", **options})

    def _expand(self, text: str) -> str:
        """Return a text of the file as an expanding value.

        Raises:
            ValueError: It names a variable that is empty in a Dockerfile, and not in an image.
        """
        value = to_expanding(text)
        known = {name for step in self.steps for name in step.get("variables", ())}
        empty = list_names(value) & (_NEVER_SET - known)
        if empty:
            raise ValueError(f"{' '.join(empty)} is empty in a Dockerfile: write the path or name")
        return value

    def _from(self, instruction: Instruction) -> None:
        if self.base:
            raise ValueError(
                "the file has several stages, and a recipe has none: keep one; what has to be "
                "compiled goes into a block of a recipe, such as horovod or wheel"
            )
        words = split_words(instruction.text) or [""]
        reference = to_literal(to_expanding(words[0]), self._globals)
        if reference in ("", "scratch"):
            raise ValueError("a recipe begins with an image that has a shell")
        named, machine = instruction.flags.get("platform", "$"), platform.machine()
        if "$" not in named and not {machine, _MACHINES.get(machine)} & {*named.split("/")}:
            raise ValueError(f"images are built for this machine, {machine}")
        if "platform" in instruction.flags:
            self._report(instruction, "nothing: images are built for the machine that builds them")
        release = catalogue.find_by_name(reference)
        if release is not None:
            self.base = {
                "kind": "ngc",
                "framework": release.framework,
                "release": release.release,
            }
            self.steps.append({"block": "workdir", "path": "/workspace"})  # where these begin
            self._is_plain = True
            return
        image, _, digest = reference.partition("@")
        self.base = {"kind": "docker", "image": image, **({"digest": digest} if digest else {})}
        self._is_plain = bool(_PLAIN_BASES.fullmatch(image.rpartition(":")[0] or image))

    def _arg(self, instruction: Instruction) -> None:
        for word in split_words(instruction.text):
            name, equals, text = word.partition("=")
            if not self.base:
                if equals:
                    self._globals[name] = to_literal(to_expanding(text), self._globals)
            elif name in self._set:
                continue  # what ENV sets goes before
            elif equals:
                value = self._expand(text)
                self._set_variables({name: value}, build=True)
            elif name in self._globals:
                self._set_variables({name: escape_expanding(self._globals[name])}, build=True)
            else:
                self._report(
                    instruction,
                    f"it has no value here: write ARG {name}=VALUE if the build needs one",
                )

    def _env(self, instruction: Instruction) -> None:
        words = split_words(instruction.text)
        pairs = [(name, text) for name, _, text in (word.partition("=") for word in words)]
        if words and "=" not in words[0]:
            name, _, text = instruction.text.partition(" ")
            pairs = [(name, text.strip())]
        values = {name: self._expand(text) for name, text in pairs}
        names = list(values)
        if any(list_names(values[name]) & {*names[:at]} for at, name in enumerate(names)):
            # All values of a line are made of what earlier lines set.
            self._set_variables({f"NEW_{name}": values[name] for name in names}, build=True)
            values = {name: f"${{NEW_{name}}}" for name in names}
        self._set_variables(values)
        self._set |= values.keys()

    def _set_variables(self, values: dict[str, str], *, build: bool = False) -> None:
        variables = dict(values)
        for name, value in values.items():
            if not list_names(value):
                variables[name] = to_literal(value, {})
            try:
                self._known[name] = to_literal(value, self._known)
            except ValueError:
                self._known.pop(name, None)
        expand = [name for name, value in values.items() if list_names(value)]
        self.steps.append(
            {
                "block": "env",
                "variables": variables,
                **({"expand": expand} if expand else {}),
                **({"build": True} if build else {}),
            }
        )

    def _workdir(self, instruction: Instruction) -> None:
        path = posixpath.normpath(self._expand(instruction.text))
        if not path.startswith("/"):
            self._report_assumed_base(instruction)
        self._add_step(instruction, "workdir", path=path)
        self._is_plain = True  # from here on the directory is the file's own

    def _user(self, instruction: Instruction) -> None:
        self._as_user = self._expand(instruction.text.strip())
        self._user_line = instruction

    def _shell(self, instruction: Instruction) -> None:
        if not instruction.words:
            raise ValueError("SHELL wants a list in JSON")
        self._program = instruction.words

    def _run(self, instruction: Instruction) -> None:
        _require_flags(instruction)
        self._report_assumed_base(instruction)
        options: dict[str, Any] = {"user": self._as_user} if self._as_user else {}
        if instruction.words:
            options["program"] = list(instruction.words)
        else:
            options |= encode_command(_command(instruction.text))
            if self._program != ("/bin/sh", "-c"):
                options["program"] = list(self._program)
        self._add_step(instruction, "shell", **options)

    def _add(self, instruction: Instruction) -> None:
        for word in (instruction.words or split_words(instruction.text))[:-1]:
            if "://" in word or word.startswith("git@") or word.endswith(_ARCHIVES):
                raise ValueError("ADD would fetch or unpack it: COPY it, or fetch it by RUN")
        self._copy(instruction)

    def _copy(self, instruction: Instruction) -> None:
        _require_flags(instruction, "chown", "chmod", "link")
        words = list(instruction.words or split_words(instruction.text))
        if len(words) < 2:
            raise ValueError("it needs a source and a target")
        target = self._expand(words.pop())
        if not target.startswith("/"):
            self._report_assumed_base(instruction)
        into = target.endswith("/") or posixpath.basename(target) in (".", "..")
        path = f"{target.rstrip('/')}/" if into else target
        sources = [
            source
            for word in words
            for source in self.context.list_sources(to_literal(to_expanding(word), self._known))
        ]
        is_file = len(sources) == 1 and not sources[0].is_dir() and not into
        options = {
            key: self._expand(instruction.flags[flag])
            for key, flag in (("owner", "chown"), ("mode", "chmod"))
            if flag in instruction.flags
        }
        name = f"line-{instruction.line}"
        source = posixpath.join(self.files.name, name)
        copies = self.context.copy(sources, name)
        if is_file:
            source += f"/{copies[0].name}"
        if copies:
            self._add_step(instruction, "copy", path=path, **options, source=source)


def _command(text: str) -> str:
    """Return the command of a RUN, of which a heredoc without a program is the text.

    Raises:
        ValueError: The heredoc is a program of its own.
    """
    if not HEREDOC.match(text) or text.split("\n")[0].split()[1:]:
        return text
    match = _ONLY_HEREDOC.fullmatch(text)
    if match is None or match["text"].startswith("#!"):
        raise ValueError("a heredoc that begins with #!: COPY it, and RUN that")
    return re.sub(r"(?m)^\t+", "", match["text"]) if match["dash"] else match["text"]


def _require_flags(instruction: Instruction, *known: str) -> None:
    for flag in instruction.flags:
        if flag not in known:
            raise ValueError(f"a recipe has no --{flag}")


def encode_command(text: str) -> dict[str, Any]:
    """Return ``command`` of a step, encoded where a recipe could not carry it as it is."""
    if text.isprintable():
        return {"command": text}
    encoded = "".join(
        character if character.isprintable() and character != "\\" else _octal(character)
        for character in text
    )
    return {"command": encoded, "encoded": True}


def _octal(character: str) -> str:
    return "\\\\" if character == "\\" else "".join(f"\\0{byte:03o}" for byte in character.encode())
