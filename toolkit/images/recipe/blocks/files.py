"""Blocks that write files into the image, whose contents are part of the recipe."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.images.recipe.block import Block, BlockOutput, require_directory, require_step_names
from toolkit.images.recipe.quoting import list_references, quote_for_shell, quote_word, quote_words

_MODE = re.compile(r"0?[0-7]{3}\Z")


class Copy(Block, frozen=True, kw_only=True):
    """``block = "copy"``: a small text file.

    Its text is part of the recipe, so that the definition needs no other file.

    Attributes:
        path: of the file in the image, absolute.
        lines: of the file.
        mode: its permissions, octal: ``755`` for a program.
        name: of the step.
    """

    path: str
    lines: tuple[str, ...]
    mode: str = "644"
    name: str = "copy"

    def __post_init__(self) -> None:
        require_directory(self.path)
        require_step_names(self.name)
        if not _MODE.match(self.mode):
            raise ValueError(f"{self.mode!r} are no permissions, such as 644 or 755")

    def output(self) -> BlockOutput:
        """Return what the definition gets from this step."""
        directory = self.path.rpartition("/")[0] or "/"
        write = (
            f"printf '%s\\n' {' '.join(map(quote_word, self.lines))} > {quote_word(self.path)}"
            if self.lines
            else f": > {quote_word(self.path)}"
        )
        return BlockOutput(
            name=self.name,
            detail=self.path,
            lines=(
                f"mkdir -p {quote_word(directory)}",
                write,
                f"chmod {self.mode} {quote_word(self.path)}",
            ),
        )


_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}\Z")


class Unpack(Block, frozen=True, kw_only=True):
    """``block = "unpack"``: files of any kind, from an archive that is part of the recipe.

    A Dockerfile's COPY becomes such a step.

    Attributes:
        path: of a directory in the image, absolute; it may hold ``${NAME}``, as in the block
            ``env``.
        names: of the entries at the top of the archive.
        data: the archive: tar with gzip, in lines of base64.
        mode: the permissions of all of it, as for ``chmod -R``; empty: those in the archive.
        owner: of all of it, and perhaps ``:`` and a group; empty: root.
        file: the archive is one file, and ``path`` its name unless a directory has that name.
        name: of the step.
    """

    path: str
    names: tuple[str, ...]
    data: tuple[str, ...]
    mode: str = ""
    owner: str = ""
    file: bool = False
    name: str = "unpack"

    def __post_init__(self) -> None:
        require_step_names(self.name)
        list_references(self.path)
        if not self.names or (self.file and len(self.names) != 1):
            raise ValueError("names must list the entries of the archive, one of them for a file")
        if any(not _BASE64.match(line) for line in self.data):
            raise ValueError("the data are not base64")

    def output(self) -> BlockOutput:
        """Return what the definition gets from this step."""
        detail = (
            f"{', '.join(self.names[:3])}{', ...' if len(self.names) > 3 else ''} to {self.path}"
        )
        return BlockOutput(
            name=self.name, detail=detail, lines=tuple(self._lines()), keeps_temporary=True
        )

    def _lines(self) -> Iterator[str]:
        yield "parts=$(mktemp -d /tmp/unpack.XXXXXX)"
        yield f"printf '%s\\n' {quote_words(self.data)} | base64 -d | tar -xzf - -C \"$parts\""
        entries = " ".join(f"$parts/{quote_word(name)}" for name in self.names)
        if self.owner:
            yield f"chown -hR {quote_word(self.owner)} {entries}"
        if self.mode:
            yield f"chmod -R {quote_word(self.mode)} {entries}"
        yield f"target={quote_for_shell(self.path)}"
        if self.file:
            yield f'if [ -d "$target" ]; then target="$target/"{quote_word(self.names[0])}; fi'
            yield 'mkdir -p "$(dirname "$target")"'
            yield f'rm -f "$target"; mv "$parts/"{quote_word(self.names[0])} "$target"'
        else:
            yield 'mkdir -p "$target"'
            names = quote_words(f"./{name}" for name in self.names)
            yield f'tar -C "$parts" -cf - {names} | tar -C "$target" -xpf -'
        yield 'rm -rf "$parts"'
