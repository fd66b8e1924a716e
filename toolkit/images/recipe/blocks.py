"""The blocks, which are the kinds of steps. A new block is a class and a line of ``BLOCKS``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.images.recipe.block import (
    DEBIAN_PACKAGE,
    DOCKER_VARIABLES,
    REQUIREMENT,
    SOURCES,
    VARIABLE,
    VENV,
    Block,
    CheckCall,
    Ground,
    Setting,
    Source,
    Step,
    require_all,
    require_step_names,
    shell_checks,
)
from toolkit.images.recipe.compiled import Horovod, NcclTests
from toolkit.images.recipe.cuda import Cuda, Wheel
from toolkit.images.recipe.names import normalize_name
from toolkit.images.recipe.protection import parse_names
from toolkit.images.recipe.quoting import (
    escape_expanding,
    quote_expanding,
    quote_word,
    quote_words,
    require_expanding,
)

_LEFT_OUT = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9_.*/+-]*\Z")
_MODE = re.compile(r"([0-7]{3,4})?\Z")


class Apt(Block, frozen=True, kw_only=True):
    """``block = "apt"``: Debian packages that stay in the image.

    Attributes:
        packages: their names, each optionally with ``=version``.
    """

    packages: tuple[str, ...]

    def __post_init__(self) -> None:
        require_all(self.packages, DEBIAN_PACKAGE, "name of a Debian package")

    def output(self) -> Step:
        """Return what the definition gets from this step."""
        return Step(name="apt", packages=self.packages)


class OpenMpi(Block, frozen=True, kw_only=True):
    """``block = "openmpi"``: Open MPI as Debian packages it, which starts under Slurm by PMIx."""

    def output(self) -> Step:
        """Return what the definition gets from this step."""
        check = CheckCall(name="openmpi", command="sh openmpi.sh", scripts=("openmpi.sh",))
        return Step(name="openmpi", packages=("openmpi-bin",), checks=(check,))


class Python(Block, frozen=True, kw_only=True):
    """``block = "python"``: Debian's Python, before every ``pip``.

    It is in a virtual environment of the image, where pip and apt do not overwrite each other's
    files.
    """

    def output(self) -> Step:
        """Return what the definition gets from this step."""
        return Step(
            name="python",
            detail=f"a virtual environment in {VENV}",
            packages=("python3", "python3-venv"),
            lines=(f"python3 -m venv {VENV}",),
            environment={"PYTHONNOUSERSITE": "1"},
            path=(f"{VENV}/bin",),
            checks=(
                CheckCall(
                    name="user-site",
                    command="user_site.py",
                    scripts=("user_site.py",),
                    is_python=True,
                ),
            ),
        )


class Pip(Block, frozen=True, kw_only=True):
    """``block = "pip"``. Needs ``python`` before it.

    Attributes:
        packages: requirements as pip reads them.
        imports: modules that a script can import afterwards; the image's checks import them and
            record their versions. Where it is left out, they are those that the packages bring; an
            empty list is for packages that bring none.
        replaces: distributions among ``packages`` that take the place of those of the base:
            ``["torch"]``. Steps that build on these build again.
        brings: a part that a base may hold already, so that the step is not needed there:
            ``torch``.
        no_deps: install no dependencies of the packages.
        index: a further index, asked only where those in pip's configuration do not have the
            packages.
        leave_out: what is removed again, relative to where pip installs; ``*`` as in a shell.
        name: of the step.
    """

    packages: tuple[str, ...]
    imports: tuple[str, ...] | None = None
    replaces: tuple[str, ...] = ()
    brings: str | None = None
    no_deps: bool = False
    index: str | None = None
    leave_out: tuple[str, ...] = ()
    name: str = "pip"

    def __post_init__(self) -> None:
        require_all(self.packages, REQUIREMENT, "requirement of pip")
        require_all(self.leave_out, _LEFT_OUT, "path below site-packages")
        require_step_names(self.name)
        if not {*map(normalize_name, self.replaces)} <= {*parse_names(self.packages)}:
            raise ValueError("`packages` must name what `replaces` does, with its new version")

    def is_held(self, kind: str, holds: frozenset[str]) -> bool:
        """Return whether the base has what the step brings and nothing is to be replaced."""
        del kind
        return self.brings is not None and self.brings in holds and not self.replaces

    def output(self) -> Step:
        """Return what the definition gets from this step."""
        options = "--no-compile --no-deps" if self.no_deps else "--no-compile"
        install = f"pip install {options} {quote_words(self.packages)}"
        if self.index is not None:
            source = f"--extra-index-url {quote_word(self.index)}"
            install += f" || pip install {options} {source} {quote_words(self.packages)}"
        remove = (
            'cd "$(python3 -c "import sysconfig; print(sysconfig.get_path(\'purelib\'))")"',
            f"rm -r {' '.join(self.leave_out)}",
        )
        # One with a condition may not be installed at all.
        certain = [requirement for requirement in self.packages if ";" not in requirement]
        return Step(
            name=self.name,
            detail=", ".join(self.packages).replace("===", " ").replace("==", " "),
            lines=(install, *(remove if self.leave_out else ())),
            imports=self.imports or (),
            installed=parse_names(certain) if self.imports is None else (),
            brings=parse_names(self.packages),
            requirements=self.packages,
            replaces=tuple(map(normalize_name, self.replaces)),
        )


class Env(Block, frozen=True, kw_only=True):
    r"""``block = "env"``: variables of the image, and of later steps ``shell``.

    Attributes:
        variables: name -> value, for every program that runs in the image, in this order.
        expand: those of them whose values are as in double quotes of a shell: ``${NAME}`` is a
            variable of the base or of an earlier step, and ``\$`` a dollar sign.
        build: only later steps see them, as those of a Dockerfile's ARG.
    """

    variables: dict[str, str]
    expand: tuple[str, ...] = ()
    build: bool = False

    def __post_init__(self) -> None:
        require_all(self.variables, VARIABLE, "name of a variable")
        unknown = {*self.expand} - self.variables.keys()
        if unknown:
            raise ValueError(f"{', '.join(unknown)} is to be expanded, and not among the variables")
        for name in self.expand:
            require_expanding(self.variables[name])

    def output(self) -> Step:
        """Return what the definition gets from this step."""
        values = {
            name: value if name in self.expand else escape_expanding(value)
            for name, value in self.variables.items()
        }
        is_literal = not self.expand and not self.build
        settings = tuple(Setting(name, value, self.build) for name, value in values.items())
        return Step(
            name="env",
            detail=", ".join(self.variables),
            environment=self.variables if is_literal else {},
            settings=() if is_literal else settings,
            leads=tuple(
                f"export {name}={quote_expanding(value)}" for name, value in values.items()
            ),
        )


class Run(Block, frozen=True, kw_only=True):
    """``block = "run"``: commands of the recipe itself.

    Attributes:
        commands: lines for the image's ``sh``, which stops at the first that fails.
        name: of the step.
        checks: by name, commands that must exit with 0 in the finished image.
        packages: Debian packages that the commands leave in the image.
    """

    commands: tuple[str, ...]
    name: str = "run"
    checks: dict[str, str] = {}
    packages: tuple[str, ...] = ()

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

    def output(self) -> Step:
        """Return what the definition gets from this step."""
        return Step(
            name=self.name,
            detail="1 command" if len(self.commands) == 1 else f"{len(self.commands)} commands",
            packages=self.packages,
            lines=self.commands,
            checks=shell_checks(self.checks),
        )


# In a flat build, an earlier step may have left its directory. Variables that the shells of our
# steps set (``plan``), and a command of another file does not expect; Docker's shells have no HOME
# before it is known which user they run as.
APART = (
    "cd /",
    "unset LC_ALL DEBIAN_FRONTEND PIP_NO_CACHE_DIR PIP_DISABLE_PIP_VERSION_CHECK "
    "PIP_ROOT_USER_ACTION PIP_NO_INPUT HOME",
    DOCKER_VARIABLES,
)
# Finds the numbers and the home of $t_user: a name or number, and perhaps ``:`` and a group.
_BECOME = (
    "t_name=${t_user%%:*}",
    't_group=${t_user#"$t_name"}',
    "t_group=${t_group#:}",
    't_id() { case $2 in *[!0-9]*) getent "$1" "$2" | cut -d: -f3;; *) echo "$2";; esac; }',
    't_uid=$(t_id passwd "$t_name")',
    't_gid=$(getent passwd "$t_name" | cut -d: -f4)',
    "t_groups=--init-groups",
    "case $t_name in *[!0-9]*) ;; *) t_groups=--clear-groups;; esac",
    'if [ -n "$t_group" ]; then t_gid=$(t_id group "$t_group"); t_groups=--clear-groups; fi',
    't_home=$(getent passwd "$t_uid" | cut -d: -f6)',
    'export HOME="${HOME:-${t_home:-/}}"',
)


class Shell(Block, frozen=True, kw_only=True):
    r"""``block = "shell"``: a command with what a Dockerfile's RUN has, which becomes such a step.

    It has the variables of earlier steps ``env``, and the directory of the last ``workdir``.

    Attributes:
        command: the last argument of ``program``; empty: it has no such argument.
        encoded: the command is text for ``printf %b``, such as ``echo a\012echo b`` for two lines.
        program: the program and its options that run the command.
        user: that it runs as: a name or a number, and perhaps ``:`` and a group; it may hold
            ``${NAME}``.
        name: of the step.
        checks: by name, commands that must exit with 0 in the finished image.
    """

    command: str = ""
    encoded: bool = False
    program: tuple[str, ...] = ("/bin/sh", "-c")
    user: str = ""
    name: str = "shell"
    checks: dict[str, str] = {}

    def __post_init__(self) -> None:
        require_step_names(self.name, *self.checks)
        require_expanding(self.user)
        if not self.program:
            raise ValueError("a command needs a program that runs it")

    def output(self) -> Step:
        """Return what the definition gets from this step."""
        text = " ".join((self.command or " ".join(self.program)).split())
        argument = f" {quote_word(self.command)}" if self.command else ""
        if self.encoded:
            argument = f' "$(printf %b {quote_word(self.command)})"'
        program = f"{quote_words(self.program)}{argument}"
        lines: tuple[str, ...] = ('export HOME="${HOME:-/root}"', f"exec {program}")
        if self.user not in ("", "root", "0"):
            become = 'setpriv --reuid="$t_uid" --regid="${t_gid:-0}" "$t_groups" --'
            user = f"t_user={quote_expanding(self.user)}"
            lines = (user, *_BECOME, f"exec {become} {program}")
        return Step(
            name=self.name,
            detail=text if len(text) <= 60 else f"{text[:57]}...",
            lines=lines,
            is_apart=True,
            checks=shell_checks(self.checks),
        )


class Workdir(Block, frozen=True, kw_only=True):
    """``block = "workdir"``: the directory of later steps ``shell`` and ``copy``, which is made.

    Attributes:
        path: of it, relative to the one before; it may hold ``${NAME}``.
        name: of the step.
    """

    path: str
    name: str = "workdir"

    def __post_init__(self) -> None:
        require_step_names(self.name)
        require_expanding(self.path)

    def output(self) -> Step:
        """Return what the definition gets from this step."""
        path = quote_expanding(self.path)
        return Step(
            name=self.name,
            detail=self.path,
            lines=(f"mkdir -p {path}",),
            is_apart=True,
            leads=(f"cd {path}",),
        )


class Copy(Block, frozen=True, kw_only=True):
    """``block = "copy"``: files that lie beside the recipe.

    Attributes:
        path: of the file in the image. It may hold ``${NAME}``, be relative to the last
            ``workdir``, and end with ``/`` for a directory that a file is put into.
        source: a file, or a directory whose contents are copied, relative to the recipe. The
            digest of it is part of the step.
        mode: the permissions of all that is copied, octal; those of the source by default.
        owner: of all that is copied, and perhaps ``:`` and a group; root by default.
        name: of the step.
    """

    path: str
    source: str
    mode: str = ""
    owner: str = ""
    name: str = "copy"

    def __post_init__(self) -> None:
        require_step_names(self.name)
        require_all((self.mode,), _MODE, "permissions, such as 644 or 755")
        require_expanding(self.path)
        require_expanding(self.owner)

    def output_on(self, ground: Ground) -> Step:
        """Return what the definition gets from this step where this can be relied on."""
        source = ground.sources[self.source]
        return Step(
            name=self.name,
            detail=f"{source.shown} to {self.path}",
            lines=tuple(self._copied(source)),
            is_apart=True,
            source=source,
        )

    def _copied(self, source: Source) -> Iterator[str]:
        place = f"{SOURCES}/{self.name}"
        missing = quote_word(
            f"{source.shown} (sha256 {source.digest}) is not mounted at {place}: "
            "apptainer build --bind does it"
        )
        yield f"[ -e {place} ] || {{ echo {missing}; exit 1; }}"
        origin, extract = place, "-xpomf"  # owners of the building machine are none of the image's
        names = source.names if not source.mode else (source.path.rpartition("/")[2],)
        listed = quote_words(f"./{name}" for name in names)
        if source.mode or self.owner or self.mode:
            entries = " ".join(f'"$parts"/{quote_word(name)}' for name in names)
            yield "parts=$(mktemp -d /tmp/copy.XXXXXX)"
            if source.mode:
                yield f"cat {place} > {entries}"
            else:
                yield f'tar -C {place} -cf - {listed} | tar -C "$parts" {extract} -'
            if self.owner:
                yield f"chown -hR {quote_expanding(self.owner)} {entries}"
            if self.mode or source.mode:
                yield f"chmod -R {self.mode or source.mode} {entries}"
            origin, extract = '"$parts"', "-xpmf"
        yield f"target={quote_expanding(self.path)}"
        if source.mode and not self.path.endswith("/"):
            yield f'if [ -d "$target" ]; then target="$target/"{quote_word(names[0])}; fi'
            yield 'mkdir -p "$(dirname "$target")"'
            yield f'rm -f "$target"; mv "$parts"/{quote_word(names[0])} "$target"'
        else:
            yield 'mkdir -p "$target"'
            yield f'tar -C {origin} -cf - {listed} | tar -C "$target" {extract} -'
        if origin != place:
            yield 'rm -rf "$parts"'


BLOCKS: dict[str, type[Block]] = {
    "apt": Apt,
    "copy": Copy,
    "cuda": Cuda,
    "env": Env,
    "horovod": Horovod,
    "nccl-tests": NcclTests,
    "openmpi": OpenMpi,
    "pip": Pip,
    "python": Python,
    "run": Run,
    "shell": Shell,
    "wheel": Wheel,
    "workdir": Workdir,
}
