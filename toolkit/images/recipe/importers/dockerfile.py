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

# What an image of ours has no use for, and what to do instead.
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
    """Return the base, the steps, and what is not carried.

    Raises:
        ConfigError: a step needs what no recipe carries.
        UsageError: the file has several stages.
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
        self, found: tuple[Instruction, ...]
    ) -> tuple[dict[str, Any], list[dict[str, Any]], list[UnsupportedLine]]:
        """Import everything."""
        for one in found:
            if not self.base and one.name not in ("FROM", "ARG"):
                raise self._refused(one, "it stands before FROM")
            if one.name in _NAMED:
                self._name(one, _NAMED[one.name])
                continue
            handle: Callable[[Instruction], None] | None = (
                getattr(self, f"_{one.name.lower()}", None) if one.name in _HANDLED else None
            )
            if handle is None:
                raise self._refused(one, f"{one.name} is no instruction that is known here")
            handle(one)
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

    def _place(self, one: Instruction) -> str:
        return f"{self.path}:{one.line}"

    def _refused(self, one: Instruction, cause: str, step: str | None = None) -> ConfigError:
        return ConfigError(f"{one.shown}: {cause}", place=self._place(one), next_step=step)

    def _name(self, one: Instruction, instead: str) -> None:
        self.unsupported.append(UnsupportedLine(line=one.line, text=one.shown, instead=instead))

    def _expanded(self, one: Instruction, word: str, known: dict[str, str] | None = None) -> str:
        """A word with its variables replaced.

        Raises:
            ConfigError: it cannot be read, or depends on the base image in a way that no shell has.
        """
        values = {**self.arguments, **self.environment} if known is None else known
        unset = _Asked(self.unset if known is None else _Everything())
        try:
            text = dockerfile.expanded(word, values, unset=unset)
        except UnknownValueError as error:
            raise self._refused(
                one, f"its value depends on whether the base image sets {error}"
            ) from None
        except ValueError as error:
            raise self._refused(one, str(error)) from None
        if not unset.names.isdisjoint(_UNSET):
            empty = "$HOME and its like are empty in a Dockerfile, unless the base image sets them"
            self._name(one, f"{empty}: write the path")
        return text

    def _plain(self, one: Instruction, word: str) -> str:
        """A word that depends on nothing in the base image."""
        text = self._expanded(one, word)
        if references(text):
            raise self._refused(
                one,
                f"it depends on the base image's variable {references(text)[0]}",
                "write its value",
            )
        return text.replace("$$", "$")

    def _from(self, one: Instruction) -> None:
        if self.base:
            raise UsageError(
                "the file has several stages, and a recipe has none: it is not known which commands are for the image",
                place=self._place(one),
                next_step="keep one stage; what has to be compiled goes into a block of a recipe, such as horovod",
            )
        words = list(dockerfile.words(one.text))
        reference = (
            self._expanded(one, words[0], dict(self.globals)).replace("$$", "$") if words else ""
        )
        if reference in ("", "scratch") or "${" in reference:
            raise self._refused(
                one,
                "a recipe begins with an image that has a shell",
                "FROM debian:bookworm, or another image",
            )
        if "platform" in one.flags and self._machine() not in one.flags["platform"]:
            raise self._refused(one, f"images are built for this machine, {self._machine()}")
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

    def _arg(self, one: Instruction) -> None:
        for word in dockerfile.words(one.text):
            name, equals, value = word.partition("=")
            if not self.base:
                if equals:
                    self.globals[name] = self._expanded(one, value, dict(self.globals))
            elif equals:
                self.arguments[name] = self._expanded(one, value)
            elif name in self.globals or name in self._platform():
                self.arguments[name] = self.globals.get(name) or self._platform()[name]
            else:
                self.unset.append(name)
                self._name(
                    one, f"it has no value here: write ARG {name}=VALUE if the build needs one"
                )

    def _platform(self) -> dict[str, str]:
        machine = self._machine()
        known = {"ARCH": machine, "OS": "linux", "PLATFORM": f"linux/{machine}", "VARIANT": ""}
        return {
            f"{side}{key}": value for side in ("TARGET", "BUILD") for key, value in known.items()
        }

    def _env(self, one: Instruction) -> None:
        words = list(dockerfile.words(one.text))
        if words and "=" not in words[0]:
            name, _, value = one.text.partition(" ")
            pairs = [(name, value.strip())]
        else:
            pairs = [(name, value) for name, _, value in (word.partition("=") for word in words)]
        # All values of a line are expanded with what was known before it.
        self.environment |= {name: self._expanded(one, value) for name, value in pairs}

    def _workdir(self, one: Instruction) -> None:
        target = self._expanded(one, one.text)
        if target.startswith("${"):
            raise self._refused(one, "it depends on the base image's variables", "write the path")
        if not target.startswith("/"):
            self._say_where(one)
        self.directory = posixpath.normpath(posixpath.join(self.directory, target)).replace(
            "//", "/"
        )
        made = f"mkdir -p {for_shell(self.directory)}"
        self.steps.append({"block": "shell", "name": f"line-{one.line}", **command_of(made)})
        self.is_plain = True  # from here on the directory is the file's own

    def _say_where(self, one: Instruction) -> None:
        """Name what is taken for granted of a base that is not known."""
        if not self.is_plain:
            self.is_plain = True
            self._name(
                one,
                "the base image may begin in another directory than /, or as another user: then write WORKDIR and USER first",
            )

    def _user(self, one: Instruction) -> None:
        self.user = self._plain(one, one.text.strip())
        self._user_line = one

    def _shell(self, one: Instruction) -> None:
        if not one.words:
            raise self._refused(one, "SHELL wants a list in JSON")
        self.shell = one.words

    def _run(self, one: Instruction) -> None:
        for flag, value in one.flags.items():
            if (flag, value) not in (("network", "default"), ("security", "sandbox")):
                raise self._refused(one, f"a recipe has no --{flag}", "write the RUN without it")
        if self.directory == "/":
            self._say_where(one)
        self.steps.append(
            {
                "block": "shell",
                "name": f"line-{one.line}",
                **self._called(one),
                **({"directory": self.directory} if self.directory != "/" else {}),
                **({"user": self.user} if self.user else {}),
                **variables_of({**self.arguments, **self.environment}),
            }
        )

    def _called(self, one: Instruction) -> dict[str, Any]:
        """What runs, and what proves afterwards that it did."""
        program = {} if self.shell == ("/bin/sh", "-c") else {"program": list(self.shell)}
        if one.words:
            return {"program": list(one.words)}
        text = one.text
        if one.heredocs:
            only = one.text.split()[0].startswith("<<") and len(one.text.split()) == 1
            text = (
                one.heredocs[0].text
                if only
                else "\n".join((text, *(f"{doc.text}{doc.name}" for doc in one.heredocs)))
            )
            if only and text.startswith("#!"):
                raise self._refused(
                    one,
                    "a heredoc with a line #! is a program of its own",
                    "write it by COPY, and run it",
                )
        if "\t" in text and not set(text) & set("'\"\\\n"):
            text = text.replace("\t", " ")
        checks = {f"line-{one.line}-{name}": check for name, check in installs.checks(text).items()}
        if installs.is_removing(text):
            checks = {}
            for step in self.steps:
                step.pop("checks", None)
        return {
            **command_of(text),
            **program,
            **({"checks": checks} if checks and not self.user else {}),
        }

    def _copy(self, one: Instruction) -> None:
        self._bring(one)

    def _add(self, one: Instruction) -> None:
        words = one.words or tuple(dockerfile.words(one.text))
        for word in words[:-1]:
            if "://" in word or word.startswith("git@"):
                raise self._refused(
                    one, "a recipe fetches nothing by ADD", "fetch it by RUN, with curl or wget"
                )
            if any(
                word.endswith(ending)
                for ending in (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".txz")
            ):
                raise self._refused(
                    one, "ADD would unpack the archive", "COPY it, and unpack it by RUN"
                )
        self._bring(one)

    def _bring(self, one: Instruction) -> None:
        """Put the files of COPY into a step."""
        wrong = next((flag for flag in one.flags if flag not in ("chown", "chmod", "link")), None)
        if wrong is not None:
            raise self._refused(one, f"a recipe has no --{wrong}")
        words = [
            self._expanded(one, word) for word in one.words or tuple(dockerfile.words(one.text))
        ]
        if len(words) < 2:
            raise self._refused(one, "it needs a source and a target")
        *named, target = words
        into = target.endswith("/") or target in (".", "..") or target.endswith(("/.", "/.."))
        if target.startswith("${"):
            raise self._refused(
                one, "its target depends on the base image's variables", "write the path"
            )
        if not target.startswith("/") and self.directory == "/":
            self._say_where(one)
        path = posixpath.normpath(posixpath.join(self.directory, target)).replace("//", "/")
        if one.heredocs:
            self._bring_texts(one, path, into=into)
            return
        sources = [
            source
            for name in named
            for source in self.context.sources(name.replace("$$", "$"), self._place(one))
        ]
        is_file = (
            len(sources) == 1
            and not into
            and not (sources[0].is_dir() and not sources[0].is_symlink())
        )
        packed = self.context.pack(sources, self._place(one))
        if packed.names:
            self._unpack(one, path, packed.names, packed.data, is_file=is_file)

    def _bring_texts(self, one: Instruction, path: str, *, into: bool) -> None:
        if sum(word.startswith("<<") for word in one.text.split()) != len(one.text.split()) - 1:
            raise self._refused(one, "files and heredocs in one line", "write two lines")
        for doc in one.heredocs:
            if not doc.is_literal and "\\" in doc.text:
                raise self._refused(
                    one,
                    "it holds a backslash, which may escape something",
                    f"quote the name: <<'{doc.name}'",
                )
            text = doc.text if doc.is_literal else self._plain(one, f'"{_kept(doc.text)}"')
            packed = pack_text(doc.name, text, self._place(one))
            self._unpack(one, path, packed.names, packed.data, is_file=not into)

    def _unpack(
        self,
        one: Instruction,
        path: str,
        names: tuple[str, ...],
        data: tuple[str, ...],
        *,
        is_file: bool,
    ) -> None:
        number = sum(
            step["name"].startswith(f"line-{one.line}") for step in self.steps if "name" in step
        )
        step: dict[str, Any] = {
            "block": "unpack",
            "name": f"line-{one.line}" + (f"-{number + 1}" if number else ""),
            "path": path,
        }
        step |= {"names": list(names)} | ({"file": True} if is_file else {})
        step |= {
            key: self._plain(one, one.flags[flag])
            for key, flag in (("owner", "chown"), ("mode", "chmod"))
            if flag in one.flags
        }
        self.steps.append({**step, "data": list(data)})


def _kept(text: str) -> str:
    """The text of a heredoc within double quotes: in it, quotes mean nothing."""
    return text.replace('"', '\\"')


_HANDLED = ("FROM", "ARG", "ENV", "WORKDIR", "USER", "SHELL", "RUN", "COPY", "ADD")
