"""A Dockerfile or a Singularity definition that is there already, as a recipe.

spython's parser reads the commands, the variables and the labels. What it gets wrong is looked for in the text before it is believed
(spython 0.3.14: it merges stages, takes ``--chown`` for a file, splits heredocs, drops the form of CMD and %test, and checks files of COPY
where nobody stands). Whatever a recipe cannot carry is named, line by line, with what to do instead; nothing is left out in silence.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolkit.errors import ConfigError, UsageError
from toolkit.images import catalogue
from toolkit.model.base import Model

_DOCKER = re.compile(r"^[ \t]*FROM[ \t]+\S+", re.MULTILINE | re.IGNORECASE)
_BOOTSTRAP = re.compile(r"^[ \t]*Bootstrap[ \t]*:[ \t]*(\S+)", re.MULTILINE | re.IGNORECASE)
_HEADER = re.compile(r"^[ \t]*(From|OSVersion)[ \t]*:[ \t]*(\S.*)$", re.MULTILINE | re.IGNORECASE)
_HEREDOC = re.compile(r"<<-?\s*['\"]?\w+")
_LOST_DOCKER = {
    "COPY": "a recipe carries small files in a step `copy`, by their lines; fetch large ones in a step `run`",
    "ADD": "a recipe carries small files in a step `copy`, by their lines; fetch large ones in a step `run`",
    "CMD": "our images run what they are given: name the program on the command line",
    "ENTRYPOINT": "our images run what they are given: name the program on the command line",
    "USER": "a job runs as the user who started it",
    "EXPOSE": "containers on a cluster use the node's network as it is",
    "VOLUME": "directories are bound when the image is run: --bind",
    "HEALTHCHECK": "write a check: `checks` of a step `run`",
    "ONBUILD": "write its command as a step",
    "STOPSIGNAL": "Slurm's signals are forwarded as they are",
    "SHELL": "commands of a recipe are for sh",
    "WORKDIR": "it is made, but where the container begins is where you stand: --pwd of Apptainer",
}
_LOST_SECTIONS = {
    "files": "a recipe carries small files in a step `copy`, by their lines; fetch large ones in a step `run`",
    "setup": "it changes the building machine: find another way within the image",
    "runscript": "our images run what they are given: name the program on the command line",
    "startscript": "instances are not used by jobs",
    "test": "write a check: `checks` of a step `run`",
    "help": "write it into the recipe's summary or comments",
    "appinstall": "write its commands as a step `run`",
    "apprun": "name the program on the command line",
}


class Lost(Model, frozen=True, kw_only=True):
    """A line that a recipe cannot carry, and what to do about it."""

    line: int
    text: str
    instead: str


class Imported(Model, frozen=True, kw_only=True):
    """A recipe's text, and what of the file is not in it."""

    recipe: str
    lost: tuple[Lost, ...]


def imported(path: Path, name: str) -> Imported:
    """Read a Dockerfile or a definition.

    Args:
        name: of the recipe.

    Raises:
        ConfigError: it cannot be read, or is neither.
        UsageError: it has stages, of which nobody can say which one is meant.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"the file cannot be read: {reason}", place=str(path)) from None
    if _BOOTSTRAP.search(text):
        return _definition(text, path, name)
    if _DOCKER.search(text):
        return _dockerfile(text, path, name)
    raise ConfigError("this is neither a Dockerfile (no FROM) nor a definition (no Bootstrap)", place=str(path))


def _dockerfile(text: str, path: Path, name: str) -> Imported:
    froms = [number for number, line in enumerate(text.splitlines(), 1) if re.match(r"\s*FROM\s", line, re.IGNORECASE)]
    if len(froms) > 1:
        raise _stages(path, froms[1])
    lost, kept = _split_docker(text)
    recipe = _parsed("docker", "\n".join(kept))
    environ = _variables(recipe.environ)
    commands = [line for line in recipe.install if line not in recipe.environ and not line.lstrip().startswith("#")]
    return _written(name, path, _docker_base(recipe.fromHeader), _joined(commands), environ, lost)


def _split_docker(text: str) -> tuple[list[Lost], list[str]]:
    """What a recipe cannot carry, and the lines that spython reads rightly."""
    lost: list[Lost] = []
    kept: list[str] = []
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        first, whole = number, lines[number]
        while whole.rstrip().endswith("\\") and number + 1 < len(lines):
            number += 1
            if not lines[number].lstrip().startswith("#"):
                whole = f"{whole.rstrip()[:-1].rstrip()} {lines[number].strip()}"
        word = (whole.split() or [""])[0].upper()
        heredoc = _HEREDOC.search(whole) if word in ("RUN", "COPY", "ADD") else None
        if heredoc:
            end = re.sub(r"<<-?\s*['\"]?", "", heredoc[0])
            while number + 1 < len(lines) and lines[number].strip() != end:
                number += 1
            lost.append(
                Lost(line=first + 1, text=lines[first].strip(), instead="write the lines of the heredoc as `commands` of a step `run`")
            )
        elif word in _LOST_DOCKER:
            lost.append(Lost(line=first + 1, text=whole.strip(), instead=_LOST_DOCKER[word]))
            if word == "WORKDIR":
                kept.append(whole)
        elif whole.strip() and not whole.lstrip().startswith("#"):
            kept.append(whole)
        number += 1
    return lost, kept


def _definition(text: str, path: Path, name: str) -> Imported:
    bootstraps = [number for number, line in enumerate(text.splitlines(), 1) if _BOOTSTRAP.match(line)]
    if len(bootstraps) > 1:
        raise _stages(path, bootstraps[1])
    lost: list[Lost] = []
    kept: list[str] = []
    post: list[str] = []
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        found = re.match(r"\s*%(\w+)", line)
        if found:
            section = found[1].lower()
        if section in _LOST_SECTIONS:
            if found:
                lost.append(Lost(line=number, text=line.strip(), instead=_LOST_SECTIONS[section]))
        elif section == "post":
            post += [] if found else [line]
        else:
            kept.append(line)
    base = _definition_base(text, path)
    # spython knows one kind of base only, and is not asked about it.
    kept = [line for line in kept if not re.match(r"\s*[A-Za-z]+\s*:", line)]
    recipe = _parsed("singularity", "\n".join(("Bootstrap: docker", "From: none", *kept)))
    # The commands as they stand: spython takes their indentation away, and with it the bodies of heredocs.
    if any(_HEREDOC.search(line) for line in post):
        number = next(number for number, line in enumerate(text.splitlines(), 1) if _HEREDOC.search(line))
        lost.append(Lost(line=number, text=text.splitlines()[number - 1].strip(), instead="a heredoc: write the file by a step `copy`"))
    return _written(name, path, base, _joined(post), _variables(recipe.environ), lost)


def _parsed(kind: str, text: str) -> Any:
    """What spython makes of a text that it reads rightly."""
    from spython.logger import bot
    from spython.main.parse.parsers import get_parser

    level, bot.level = bot.level, 0
    try:
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "recipe"
            file.write_text(text + "\n", encoding="utf-8")
            recipes = get_parser(kind)(str(file)).recipe
    finally:
        bot.level = level
    return next(iter(recipes.values()))


def _variables(environ: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in environ or ():
        name, sign, value = text.removeprefix("export ").strip().partition("=")
        if sign and re.fullmatch(r"[A-Za-z_]\w*", name):
            found[name] = value.strip().strip("\"'")
    return found


def _joined(lines: list[str]) -> list[str]:
    """Commands, each on a line of its own: continued ones joined, comments and blank ones left out."""
    found: list[str] = []
    held = ""
    for line in lines:
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if text.endswith("\\"):
            held += text[:-1].rstrip() + " "
            continue
        found.append((held + text).replace("\t", " "))
        held = ""
    return [*found, *([held.strip()] if held else [])]


def _docker_base(reference: str) -> dict[str, Any]:
    release = catalogue.named(reference)
    if release is not None:
        return {"kind": "ngc", "framework": release.framework, "release": release.release}
    return {"kind": "docker", "image": reference}


def _definition_base(text: str, path: Path) -> dict[str, Any]:
    found = _BOOTSTRAP.search(text)
    kind = found[1] if found else ""
    header = {key.lower(): value.strip() for key, value in _HEADER.findall(text)}
    if kind == "docker":
        return _docker_base(header.get("from", ""))
    if kind == "localimage":
        return {"kind": "localimage", "path": str((path.parent / header.get("from", "")).absolute())}
    if kind == "debootstrap":
        return {"kind": "debootstrap", "release": header.get("osversion", "bookworm")}
    raise UsageError(
        f"a base by {kind} is not known here",
        place=f"{path}: Bootstrap",
        choices=("docker", "localimage", "debootstrap"),
        value=kind,
        next_step="build it as it is, and begin a recipe from the SIF: toolkit image new NAME --from FILE.sif",
    )


def _stages(path: Path, line: int) -> UsageError:
    return UsageError(
        "the file has several stages, and a recipe has none: it is not known which commands are for the image",
        place=f"{path}:{line}",
        next_step="keep one stage; what has to be compiled goes into a block of a recipe, such as horovod",
    )


def _written(name: str, path: Path, base: dict[str, Any], commands: list[str], environ: dict[str, str], lost: list[Lost]) -> Imported:
    lines = [
        f"# Taken from {path.name}. After a change: toolkit image build {name}.toml",
        f"summary = {_text(f'from {path.name}')}",
        "",
        "[base]",
    ]
    lines += [f"{key} = {_text(value)}" for key, value in base.items()]
    refused = [command for command in commands if "{{" in command or "}}" in command or not command.isprintable()]
    lost = [
        *lost,
        *(Lost(line=0, text=command, instead="two braces in a row, or a character that cannot be printed") for command in refused),
    ]
    lines += _run([command for command in commands if command not in refused])
    if environ:
        lines += [
            "",
            "[[steps]]",
            'block = "env"',
            f"variables = {{ {', '.join(f'{key} = {_text(value)}' for key, value in environ.items())} }}",
        ]
    return Imported(recipe="\n".join(lines) + "\n", lost=tuple(lost))


def _run(commands: list[str]) -> Iterator[str]:
    if commands:
        yield from ("", "[[steps]]", 'block = "run"', 'name = "commands"', "commands = [")
        yield from (f"    {_text(command)}," for command in commands)
        yield "]"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
