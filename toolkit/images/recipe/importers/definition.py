"""The sections of a Singularity definition as the base and the steps of a recipe."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from toolkit.errors import ConfigError, UsageError
from toolkit.images.recipe.importers import dockerfile_reader as dockerfile
from toolkit.images.recipe.importers import installs
from toolkit.images.recipe.importers.context import pack
from toolkit.images.recipe.importing import UnsupportedLine, base_of, command_of, variables_of

_SECTION = re.compile(r"[ \t]{0,100}%(?P<name>[A-Za-z]{1,40})(?P<rest>(?:[ \t].*)?)\Z")
_HEADER = re.compile(r"[ \t]{0,100}(?P<key>[A-Za-z]{1,40})[ \t]{0,100}:[ \t]{0,100}(?P<value>.*)\Z")
_ASSIGNMENT = re.compile(
    r"[ \t]{0,100}(?:export[ \t]{1,100})?(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<value>.*)\Z"
)
_ARGUMENT = re.compile(r"\{\{ ?(?P<name>[A-Za-z_][A-Za-z0-9_]*) ?\}\}")
_NAMED = {
    "setup": "it changes the building machine: find another way within the image",
    "runscript": "name the program on the command line: our images run what they are given",
    "startscript": "nothing: instances are not used by jobs",
    "test": "write a check: `checks` of a step",
    "help": "write it into the recipe's summary or comments",
    "labels": "write them into the recipe's summary or comments",
    "pre": "run its commands before the build",
}


class Section(NamedTuple):
    """A section: its line, its name in small letters, what stands behind it, and its lines."""

    line: int
    name: str
    rest: str
    lines: tuple[str, ...]


def recipe_of(
    text: str, path: Path
) -> tuple[dict[str, Any], list[dict[str, Any]], list[UnsupportedLine]]:
    """Return the base, the steps, and what is not carried.

    Raises:
        ConfigError: a step needs what no recipe carries.
        UsageError: the file has several stages, or begins with something that no recipe begins with.
    """
    head, sections = _sections(_with_arguments(text, path))
    _require_one_stage(text, path)
    unsupported = [
        UnsupportedLine(
            line=one.line,
            text=_shown(one),
            instead=_NAMED.get(one.name, "write its commands as a step"),
        )
        for one in sections
        if _is_lost(one)
    ]
    steps = [step for one in sections if one.name == "files" for step in _files(one, path)]
    steps += [
        _post(one)
        for one in sections
        if one.name == "post" and any(line.strip() for line in one.lines)
    ]
    variables, wrong = _environment([one for one in sections if one.name == "environment"])
    steps += [{"block": "env", **variables_of(variables)}] if variables else []
    return _base(head, path), steps, [*unsupported, *wrong]


def _with_arguments(text: str, path: Path) -> str:
    """The text with ``{{ name }}`` replaced by what %arguments says."""
    known: dict[str, str] = {}
    for section in _sections(text)[1]:
        if section.name == "arguments":
            known |= {
                name.strip(): value.strip()
                for name, sign, value in (line.partition("=") for line in section.lines)
                if sign
            }

    def value(match: re.Match[str]) -> str:
        if match["name"] not in known:
            number = text.count("\n", 0, match.start()) + 1
            raise ConfigError(
                f"{match[0]} has no value in %arguments",
                place=f"{path}:{number}",
                next_step="give it one there",
            )
        return known[match["name"]]

    return _ARGUMENT.sub(value, text)


def _sections(text: str) -> tuple[dict[str, str], list[Section]]:
    head: dict[str, str] = {}
    found: list[tuple[int, str, str, list[str]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _SECTION.match(line)
        if match:
            found.append((number, match["name"].lower(), match["rest"].strip(), []))
        elif found:
            found[-1][3].append(line)
        elif header := _HEADER.match(line):
            head[header["key"].lower()] = header["value"].strip()
    return head, [Section(number, name, rest, tuple(lines)) for number, name, rest, lines in found]


def _require_one_stage(text: str, path: Path) -> None:
    bootstraps = [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip().lower().startswith("bootstrap:")
    ]
    if len(bootstraps) > 1:
        raise UsageError(
            "the file has several stages, and a recipe has none: it is not known which commands are for the image",
            place=f"{path}:{bootstraps[1]}",
            next_step="keep one stage; what has to be compiled goes into a block of a recipe, such as horovod",
        )


def _is_lost(section: Section) -> bool:
    if section.name == "runscript" and [line.strip() for line in section.lines if line.strip()] == [
        'exec "$@"'
    ]:
        return False
    return section.name not in ("post", "files", "environment", "arguments")


def _shown(section: Section) -> str:
    return f"%{section.name} {section.rest}".rstrip()


def _base(head: dict[str, str], path: Path) -> dict[str, Any]:
    kind, source = head.get("bootstrap", "").lower(), head.get("from", "")
    if kind == "docker":
        prefix = "/".join(
            part for part in (head.get("registry", ""), head.get("namespace", "")) if part
        )
        return base_of(f"{prefix}/{source}" if prefix else source)
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
        next_step="build it as it is, and begin a recipe from the SIF: toolkit image new NAME --from FILE.sif",
    )


def _post(section: Section) -> dict[str, Any]:
    """All of %post in one shell, as Apptainer runs it: a cd in it holds for what follows."""
    name = f"line-{section.line}"
    program = (
        section.rest.removeprefix("-c").split() if section.rest.startswith("-c") else ["/bin/sh"]
    )
    commands = _simple(section.lines)
    checks = {
        f"{name}-{key}": check
        for line in commands or ()
        for key, check in installs.checks(line).items()
    }
    if commands is not None and program == ["/bin/sh"]:
        return {
            "block": "run",
            "name": name,
            "commands": commands,
            **({"checks": checks} if checks else {}),
        }
    text = "\n".join(section.lines) + "\n"
    words = [*program, "-ex", "-c"] if program[0].endswith("sh") else [*program, "-c"]
    return {"block": "shell", "name": name, **command_of(text), "program": words}


def _simple(lines: tuple[str, ...]) -> list[str] | None:
    """The lines as commands of a step `run`; None where that could change what they mean."""
    found: list[str] = []
    held = ""
    for line in lines:
        if not line.strip() or line.strip().startswith("#"):
            if held:
                return None
            continue
        if line.endswith("\\"):
            held += line[:-1].strip() + " "
            continue
        found.append(held + line.strip())
        held = ""
    text = "\n".join(found)
    wrong = (
        held
        or "<<" in text
        or "{{" in text
        or "}}" in text
        or any(not line.isprintable() or not _is_closed(line) for line in found)
    )
    return None if wrong else found


def _is_closed(line: str) -> bool:
    """Return whether every quote of a line ends in it."""
    quote, escaped = "", False
    for character in line:
        if escaped:
            escaped = False
        elif character == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if character == quote else quote
        elif character in "\"'`":
            quote = character
    return not quote and not escaped


def _files(section: Section, path: Path) -> Iterator[dict[str, Any]]:
    place = f"{path}:{section.line}"
    if section.rest:
        raise ConfigError(f"%files {section.rest}: a recipe has no stages", place=place)
    for offset, line in enumerate(section.lines, 1):
        words = [
            dockerfile.expanded(word, {}, unset=()).replace("$$", "$")
            for word in dockerfile.words(line.partition("#")[0])
        ]
        if words:
            yield _file(
                words, path.parent, section.line + offset, f"{path}:{section.line + offset}"
            )


def _file(words: list[str], directory: Path, line: int, place: str) -> dict[str, Any]:
    """One line of %files, which Apptainer does by ``cp -fLr``."""
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
            (f"{name}/{one.relative_to(source)}", one.resolve())
            for one in sorted(source.rglob("*"))
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
    """The variables, and the lines that are more than an assignment."""
    values: dict[str, str] = {}
    unsupported: list[UnsupportedLine] = []
    for section in sections:
        for number, line in enumerate(section.lines, section.line + 1):
            if not line.strip() or line.strip().startswith("#"):
                continue
            match = _ASSIGNMENT.match(line)
            found = _value(match["value"], values) if match else None
            if match and found is not None:
                values[match["name"]] = found
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
    """The value of an assignment; None where only a shell could tell it."""
    words = list(dockerfile.words(text.strip()))
    if (len(words) > 1 and not words[1].startswith("#")) or "`" in text or "$(" in text:
        return None
    try:
        return dockerfile.expanded(words[0], known) if words else ""
    except (ValueError, dockerfile.UnknownValueError):
        return None
