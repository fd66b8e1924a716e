"""The instructions COPY and ADD of a Dockerfile as steps of a recipe."""

from __future__ import annotations

import posixpath
from typing import Any

from toolkit.images.recipe.importers import shell_words
from toolkit.images.recipe.importers.context import pack_text
from toolkit.images.recipe.importers.dockerfile_reader import Instruction
from toolkit.images.recipe.importers.state import ImportState


def copy_files(state: ImportState, instruction: Instruction) -> None:
    """Put the files of COPY into a step."""
    wrong = next(
        (flag for flag in instruction.flags if flag not in ("chown", "chmod", "link")), None
    )
    if wrong is not None:
        raise state.refuse(instruction, f"a recipe has no --{wrong}")
    words = [
        state.expand(instruction, word)
        for word in instruction.words or tuple(shell_words.split_words(instruction.text))
    ]
    if len(words) < 2:
        raise state.refuse(instruction, "it needs a source and a target")
    *named, target = words
    into = target.endswith("/") or target in (".", "..") or target.endswith(("/.", "/.."))
    if target.startswith("${"):
        raise state.refuse(
            instruction, "its target depends on the base image's variables", "write the path"
        )
    if not target.startswith("/") and state.directory == "/":
        state.report_assumed_base(instruction)
    path = posixpath.normpath(posixpath.join(state.directory, target)).replace("//", "/")
    if instruction.heredocs:
        _copy_texts(state, instruction, path, into=into)
        return
    sources = [
        source
        for name in named
        for source in state.context.sources(name.replace("$$", "$"), state.place(instruction))
    ]
    is_file = (
        len(sources) == 1 and not into and not (sources[0].is_dir() and not sources[0].is_symlink())
    )
    packed = state.context.pack(sources, state.place(instruction))
    if packed.names:
        _unpack(state, instruction, path, packed.names, packed.data, is_file=is_file)


def _copy_texts(state: ImportState, instruction: Instruction, path: str, *, into: bool) -> None:
    if (
        sum(word.startswith("<<") for word in instruction.text.split())
        != len(instruction.text.split()) - 1
    ):
        raise state.refuse(instruction, "files and heredocs in one line", "write two lines")
    for doc in instruction.heredocs:
        if not doc.is_literal and "\\" in doc.text:
            raise state.refuse(
                instruction,
                "it holds a backslash, which may escape something",
                f"quote the name: <<'{doc.name}'",
            )
        text = (
            doc.text
            if doc.is_literal
            else state.expand_plain(instruction, f'"{_escape_quotes(doc.text)}"')
        )
        packed = pack_text(doc.name, text, state.place(instruction))
        _unpack(state, instruction, path, packed.names, packed.data, is_file=not into)


def _unpack(
    state: ImportState,
    instruction: Instruction,
    path: str,
    names: tuple[str, ...],
    data: tuple[str, ...],
    *,
    is_file: bool,
) -> None:
    number = sum(
        step["name"].startswith(f"line-{instruction.line}")
        for step in state.steps
        if "name" in step
    )
    step: dict[str, Any] = {
        "block": "unpack",
        "name": f"line-{instruction.line}" + (f"-{number + 1}" if number else ""),
        "path": path,
    }
    step |= {"names": list(names)} | ({"file": True} if is_file else {})
    step |= {
        key: state.expand_plain(instruction, instruction.flags[flag])
        for key, flag in (("owner", "chown"), ("mode", "chmod"))
        if flag in instruction.flags
    }
    state.steps.append({**step, "data": list(data)})


def _escape_quotes(text: str) -> str:
    """Return the text of a heredoc within double quotes; in a heredoc, quotes mean nothing."""
    return text.replace('"', '\\"')
