"""Split bytes into lines in bounded memory, whatever the size of a file and of the lines in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from toolkit.units import human_size

LONGEST = 64 * 1024  # bytes of one line that are kept; a rank that prints a tensor writes megabytes
_CHUNK = 1 << 20
_SHORT, _FEW = 32, 256  # a log of n bytes may have n / 32 lines and a few more


class Splitter:
    """Cuts a growing stream of bytes into lines, and long lines to their first ``LONGEST`` bytes.

    A progress bar redraws its line with carriage returns; only the last drawing is kept.
    """

    def __init__(self) -> None:
        self._head = b""
        self._dropped = 0

    def feed(self, data: bytes) -> Iterator[str]:
        """Yield the lines that ``data`` completes."""
        *rows, rest = data.split(b"\n")
        for row in rows:
            if self._head or len(row) > LONGEST or b"\r" in row:
                self._keep(row)
                yield self._take()
            else:
                yield row.decode("utf-8", "replace")
        self._keep(rest)

    def rest(self) -> Iterator[str]:
        """Yield the last line where it has no newline."""
        if self._head:
            yield self._take()

    def _keep(self, part: bytes) -> None:
        body = self._head + part
        ending = b"\r" if body.endswith(b"\r") else b""
        _, redrawn, last = body[: len(body) - len(ending)].rpartition(b"\r")
        if redrawn:
            self._dropped = 0
        self._dropped += max(0, len(last) - LONGEST)
        self._head = last[:LONGEST] + ending

    def _take(self) -> str:
        text = self._head.removesuffix(b"\r").decode("utf-8", "replace")
        if self._dropped:
            text += f"... [{human_size(self._dropped)} more on this line]"
        self._head, self._dropped = b"", 0
        return text


def stream(file: BinaryIO, end: int | None = None) -> Iterator[bytes]:
    """Yield chunks of a file from its current position, up to the offset ``end``."""
    position = file.tell()
    while end is None or position < end:
        data = file.read(_CHUNK if end is None else min(_CHUNK, end - position))
        if not data:
            return
        position += len(data)
        yield data


def split(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield all lines of some chunks, also a last one without a newline."""
    splitter = Splitter()
    for data in chunks:
        yield from splitter.feed(data)
    yield from splitter.rest()


def ends(path: Path, most: int, start: int = 0) -> Iterator[str]:
    """Yield the lines of a log from the offset ``start``; of a large one its first quarter and the rest from its end.

    Why a job failed stands at the end, how it was set up at the beginning.

    Args:
        path: of the log.
        most: bytes that are read; of very short lines fewer, since each costs memory of its own.
        start: offset in bytes.
    """
    lines = most // _SHORT + _FEW
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(start)
        if size - start <= most:
            rows = split(stream(file, size))
            yield from islice(rows, lines // 4)
            yield from deque(rows, lines * 3 // 4)
            return
        yield from islice(split(stream(file, start + most // 4)), lines // 4)
        file.seek(size - most * 3 // 4)
        tail = deque(split(stream(file, size)), lines * 3 // 4)
        if len(tail) > 1:  # it begins in the middle of a line
            tail.popleft()
        yield from tail


def find(path: Path, word: bytes) -> Iterator[tuple[int, str]]:
    """Yield each line that holds ``word`` with the offset of the line's beginning; fast, since most chunks need no splitting."""
    with path.open("rb") as file:
        carried, offset = b"", 0
        for data in stream(file):
            block = carried + data
            whole, newline, carried = block.rpartition(b"\n")
            if word in whole:
                yield from _rows_with(whole, word, offset)
            offset += len(whole) + len(newline)
            if len(carried) > LONGEST:  # one long line: its end is enough
                offset += len(carried) - LONGEST
                carried = carried[-LONGEST:]
        yield from _rows_with(carried, word, offset)


def _rows_with(block: bytes, word: bytes, offset: int) -> Iterator[tuple[int, str]]:
    for row in block.split(b"\n"):
        if word in row:
            yield offset, row[:LONGEST].decode("utf-8", "replace")
        offset += len(row) + 1
