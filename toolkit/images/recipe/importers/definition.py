"""The sections of a Singularity definition as the base and the steps of a recipe."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from toolkit.errors import ConfigError, UsageError
from toolkit.images.recipe.importers import shell_words
from toolkit.images.recipe.importers.context import pack
from toolkit.images.recipe.importers.steps import (
    ALTERNATIVES,
    UnsupportedLine,
    encode_command,
    encode_variables,
    make_base,
    refuse_stages,
)

_SECTION = re.compile(r"[ \t]{0,100}%(?P<name>[A-Za-z]{1,40})(?P<rest>(?:[ \t].*)?)\Z")
_HEADER = re.compile(r"[ \t]{0,100}(?P<key>[A-Za-z]{1,40})[ \t]{0,100}:[ \t]{0,100}(?P<value>.*)\Z")
_ASSIGNMENT = re.compile(
    r"[ \t]{0,100}(?:export[ \t]{1,100})?(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<value>.*)\Z"
)
_ARGUMENT = re.compile(r"\{\{ ?(?P<name>[A-Za-z_][A-Za-z0-9_]*) ?\}\}")


class Section(NamedTuple):
    """A section: its line, its name in small letters, the rest of that line, and its lines."""

    line: int
    name: str
    rest: str
    lines: tuple[str, ...]


def import_definition(
    text: str, path: Path
) -> tuple[dict[str, Any], list[dict[str, Any]], list[UnsupportedLine]]:
    """Return the base, the steps, and the lines that are not supported.

    Raises:
        ConfigError: A step needs what no recipe carries.
        UsageError: The file has several stages, or a base that no recipe can have.
    """
    head, sections = _sections(_with_arguments(text, path))
    _require_one_stage(text, path)
    unsupported = [
        UnsupportedLine(
            line=section.line,
            text=f"%{section.name} {section.rest}".rstrip(),
            instead=ALTERNATIVES.get(section.name, "write its commands as a step"),
        )
        for section in sections
        if section.name not in ("post", "files", "environment", "arguments")
        and not (section.name == "runscript" and "\n".join(section.lines).strip() == 'exec "$@"')
    ]
    steps = [
        step for section in sections if section.name == "files" for step in _files(section, path)
    ]
    steps += [
        _post(section)
        for section in sections
        if section.name == "post" and any(line.strip() for line in section.lines)
    ]
    variables, wrong = _environment(
        [section for section in sections if section.name == "environment"]
    )
    steps += [{"block": "env", **encode_variables(variables)}] if variables else []
    return _base(head, path), steps, [*unsupported, *wrong]


def _with_arguments(text: str, path: Path) -> str:
    """Return the text with ``{{ name }}`` replaced by the values of %arguments."""
    assignments = (
        line.partition("=")
        for section in _sections(text)[1]
        if section.name == "arguments"
        for line in section.lines
    )
    known = {name.strip(): value.strip() for name, sign, value in assignments if sign}
    unknown = next((m for m in _ARGUMENT.finditer(text) if m["name"] not in known), None)
    if unknown is not None:
        raise ConfigError(
            f"{unknown[0]} has no value in %arguments",
            place=f"{path}:{text.count(chr(10), 0, unknown.start()) + 1}",
            next_step="give it one there",
        )
    return _ARGUMENT.sub(lambda match: known[match["name"]], text)


def _sections(text: str) -> tuple[dict[str, str], list[Section]]:
    head: dict[str, str] = {}
    result: list[tuple[int, str, str, list[str]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _SECTION.match(line)
        if match:
            result.append((number, match["name"].lower(), match["rest"].strip(), []))
        elif result:
            result[-1][3].append(line)
        elif header := _HEADER.match(line):
            head[header["key"].lower()] = header["value"].strip()
    return head, [Section(number, name, rest, tuple(lines)) for number, name, rest, lines in result]


def _require_one_stage(text: str, path: Path) -> None:
    bootstraps = [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip().lower().startswith("bootstrap:")
    ]
    if len(bootstraps) > 1:
        raise refuse_stages(f"{path}:{bootstraps[1]}")


def _base(head: dict[str, str], path: Path) -> dict[str, Any]:
    kind, source = head.get("bootstrap", "").lower(), head.get("from", "")
    if kind == "docker":
        prefix = "/".join(
            part for part in (head.get("registry", ""), head.get("namespace", "")) if part
        )
        return make_base(f"{prefix}/{source}" if prefix else source)
    if kind == "localimage":
        return {"kind": "localimage", "path": str((path.parent / source).absolute())}
    if kind == "debootstrap":
        packages = re.split(r"[ ,]+", head["include"]) if head.get("include") else []
        return {
            "kind": "debootstrap",
            "release": head.get("osversion", "bookworm"),
            **({"packages": packages} if packages else {}),
        }
    raise UsageError(
        f"a base by {kind} is not known here",
        place=f"{path}: Bootstrap",
        choices=("docker", "localimage", "debootstrap"),
        value=kind,
        next_step="build it as it is, and begin a recipe from the SIF: "
        "toolkit image new NAME --from FILE.sif",
    )


def _post(section: Section) -> dict[str, Any]:
    """Return all of %post in one shell, as Apptainer runs it: a cd holds for later commands."""
    name = f"line-{section.line}"
    program = (
        section.rest.removeprefix("-c").split() if section.rest.startswith("-c") else ["/bin/sh"]
    )
    commands = _simple(section.lines)
    if commands is not None and program == ["/bin/sh"]:
        return {"block": "run", "name": name, "commands": commands}
    text = "\n".join(section.lines) + "\n"
    words = [*program, "-ex", "-c"] if program[0].endswith("sh") else [*program, "-c"]
    return {"block": "shell", "name": name, **encode_command(text), "program": words}


def _simple(lines: tuple[str, ...]) -> list[str] | None:
    """Return the lines as commands of a step `run`, or None if that could change their meaning."""
    commands: list[str] = []
    held = ""
    for line in lines:
        if not line.strip() or line.strip().startswith("#"):
            if held:
                return None
            continue
        if line.endswith("\\"):
            held += line[:-1].strip() + " "
            continue
        commands.append(held + line.strip())
        held = ""
    text = "\n".join(commands)
    wrong = (
        held
        or "<<" in text
        or "{{" in text
        or "}}" in text
        or any(not line.isprintable() or not _is_closed(line) for line in commands)
    )
    return None if wrong else commands


def _is_closed(line: str) -> bool:
    """Return whether every quote of a line ends in it."""
    try:
        shlex.split(line)
    except ValueError:
        return False
    return line.count("`") % 2 == 0


def _files(section: Section, path: Path) -> Iterator[dict[str, Any]]:
    place = f"{path}:{section.line}"
    if section.rest:
        raise ConfigError(f"%files {section.rest}: a recipe has no stages", place=place)
    for offset, line in enumerate(section.lines, 1):
        words = [
            shell_words.expand_word(word, {}, unset=()).replace("$$", "$")
            for word in shell_words.split_words(line.partition("#")[0])
        ]
        if words:
            yield _file(
                words, path.parent, section.line + offset, f"{path}:{section.line + offset}"
            )


def _file(words: list[str], directory: Path, line: int, place: str) -> dict[str, Any]:
    """Return the step of a line of %files, which Apptainer runs as ``cp -fLr``."""
    source = Path(os.path.normpath(directory / words[0]))
    if any(character in words[0] for character in "*?[") or len(words) > 2:
        raise ConfigError(
            f"{' '.join(words)}: one file or directory in each line of %files", place=place
        )
    if not source.exists():
        raise ConfigError(
            f"there is no {words[0]} to copy",
            place=place,
            next_step=f"import takes files from {directory}",
        )
    target = words[1] if len(words) > 1 else words[0]
    if not target.startswith("/"):
        raise ConfigError(f"{target} is no absolute path", place=place)
    name = os.path.basename(target.rstrip("/")) if not target.endswith("/") else source.name  # noqa: PTH119
    entries = [(name, source.resolve())]
    if source.is_dir():
        entries += [
            (f"{name}/{path.relative_to(source)}", path.resolve())
            for path in sorted(source.rglob("*"))
        ]
    packed = pack(entries, place)
    return {
        "block": "unpack",
        "name": f"line-{line}",
        "path": target.rstrip("/") or "/",
        "names": list(packed.names),
        **({} if target.endswith("/") else {"file": True}),
        "data": list(packed.data),
    }


def _environment(sections: list[Section]) -> tuple[dict[str, str], list[UnsupportedLine]]:
    """Return the variables, and the lines that are more than an assignment."""
    values: dict[str, str] = {}
    unsupported: list[UnsupportedLine] = []
    for section in sections:
        for number, line in enumerate(section.lines, section.line + 1):
            if not line.strip() or line.strip().startswith("#"):
                continue
            match = _ASSIGNMENT.match(line)
            value = _value(match["value"], values) if match else None
            if match and value is not None:
                values[match["name"]] = value
            else:
                unsupported.append(
                    UnsupportedLine(
                        line=number,
                        text=line.strip(),
                        instead="write the value of each variable in a step `env`",
                    )
                )
    return values, unsupported


def _value(text: str, known: dict[str, str]) -> str | None:
    """Return the value of an assignment, or None if only a shell could compute it."""
    words = list(shell_words.split_words(text.strip()))
    if (len(words) > 1 and not words[1].startswith("#")) or "`" in text or "$(" in text:
        return None
    try:
        return shell_words.expand_word(words[0], known) if words else ""
    except (ValueError, shell_words.UnknownValueError):
        return None
