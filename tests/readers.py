"""Everything that reads what others made, each with small real inputs, and ways to break those.

The unit tests break them a little, ``make fuzz`` for minutes. Whatever comes in, a reader ends with
a result or with a ``ToolkitError``, and writes nothing outside the directory that it was given.
"""

from __future__ import annotations

import gzip
import socketserver
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.unit.samples import MANIFEST
from toolkit.errors import ToolkitError
from toolkit.files import read_json
from toolkit.images.builder.apptainer import compose
from toolkit.images.lockfile.files import read_lock
from toolkit.images.lockfile.index import File, Index
from toolkit.images.recipe.lock import Lock, Pinned, format_lock
from toolkit.images.sif import SquashfsError
from toolkit.images.sif import header as sif
from toolkit.images.sif.graft import DIRECTORY, graft, list_directory, read_inode
from toolkit.images.sif.tables import Reader as SquashfsReader
from toolkit.images.sif.tables import Tables, damage_errors, read_tables, write_tables
from toolkit.images.store import sif_files, signatures, store
from toolkit.images.store.contents import parse as contents
from toolkit.images.store.settings import parse_inspection
from toolkit.model.base import to_json
from toolkit.model.image import BaseImage, Manifest

GOLDEN = Path(__file__).parent / "golden/readers"


class Reader(NamedTuple):
    """A reader of what others made.

    Attributes:
        seeds: small inputs that it reads.
        read: takes the bytes and a directory of its own.
        documented: an error besides ``ToolkitError`` that its callers handle.
    """

    seeds: tuple[bytes, ...]
    read: Callable[[bytes, Path], object]
    documented: type[Exception] = ToolkitError


# ---- images

# As Apptainer and mksquashfs wrote them.
_SIF = gzip.decompress((GOLDEN / "image.sif.gz").read_bytes())
_BASE = _SIF[32768:]
_LAYER = gzip.decompress((GOLDEN / "layer.sqfs.gz").read_bytes())


def _ours() -> bytes:
    """Build a SIF as layered builds write it."""
    texts = (b"Bootstrap: scratch\n", b'{"data": {"attributes": {"labels": {"a": "b"}}}}')
    sizes = (len(_BASE), len(texts[0]), len(texts[1]))
    return sif.build_header(sizes, bytes(range(16)), 7, "x86_64") + _BASE + b"".join(texts)


def with_manifest(data: bytes, text: bytes) -> bytes:
    """Add a manifest to a SIF of three objects, as `apptainer sif add` does."""
    facts = (sif.JSON, True, 4, 0xF0000001, 0, len(data), len(text), len(text), 0, 0, 0, 0)
    packed = sif._DESCRIPTOR.pack(*facts, store.MANIFEST.encode(), b"")
    at = 4096 + 3 * len(packed)
    return data[:at] + packed + data[at + len(packed) :] + text


def _read_sif(data: bytes, directory: Path) -> None:
    path = directory / "x.sif"
    path.write_bytes(data)
    for read in (
        store.whole_header,
        sif_files.read_descriptors,
        sif_files.partition_digest,
        signatures.is_signed,
        lambda path: parse_inspection(sif_files.read_object(path, sif.JSON)),
        lambda path: sif_files.read_object(path, sif.DEFINITION),
        lambda path: compose.read_image_tables(str(path)),
        lambda path: store.find(str(path)),
    ):
        with suppress(ToolkitError):  # an error of one must not hide the others
            read(path)


def tables(data: bytes) -> Tables:
    return read_tables(SquashfsReader(len(data), lambda at, length: data[at : at + length]))


def _read_squashfs(data: bytes, _directory: Path) -> None:
    read = tables(data)
    waiting = [read.head.root]
    for _ in range(20_000):
        if not waiting:
            return
        inode = read_inode(read, waiting.pop())
        if inode.kind == DIRECTORY:
            waiting += [entry.inode for entry in list_directory(read, inode)]


def _graft(below: bytes, above: bytes) -> None:
    base = tables(below)
    graft(base, tables(above), 96)
    with damage_errors("the new one"):
        write_tables(base)


# ---- texts

_LOCK = Lock(
    name="x",
    recipe_hash="0",
    epoch=1,
    base=BaseImage(reference="debian", digest="sha256:" + "0" * 64),
    apt={"libc6": "2.36-9"},
    pip=(Pinned(name="a", version="1", sha256=("0" * 64,)),),
)
_CONTENTS = (
    b"toolkit-contents: apt installed\tlibc6\t2.36-9\tamd64\tglibc\t2.36-9\ntoolkit-contents: system Debian\n"
    b'toolkit-contents: pip {"name": "a", "version": "1", "license": "MIT"}\n'
    b"toolkit-contents: horovod {}\ntoolkit-contents: end\n"
)


def _read_manifest(data: bytes, directory: Path) -> None:
    (directory / "x.sif").write_bytes(with_manifest(_SIF, data))
    (directory / "x.json").write_bytes(data)
    store.manifest_of(directory / "x.sif")
    read_json(directory / "x.json", Manifest)


def _read_lock(data: bytes, directory: Path) -> None:
    path = directory / "x.lock"
    path.write_bytes(data)
    read_lock(path)


_PYLOCK = b"""lock-version = "1.0"
[[packages]]
name = "a"
version = "1"
sdist = { url = "https://index.example/a-1.tar.gz", upload-time = 2026-10-20T19:01:37Z, hashes = { sha256 = "cc" } }
wheels = [{ url = "file:///opt/a-1-py3-none-any.whl", hashes = { sha256 = "aa" } }]
"""


def _read_pylock(data: bytes, directory: Path) -> None:
    settings = {"find-links": str(directory)}
    list(Index(settings=settings)._parse(data.decode("utf-8", "replace")))


# ---- answers of servers


class Answering(socketserver.TCPServer):
    """Answer every connection on a loopback port with these bytes, whatever is asked."""

    def __init__(self, data: bytes) -> None:
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        self.data = data

    def finish_request(self, request: Any, _: object) -> None:
        request.settimeout(5)
        with suppress(OSError):
            request.recv(65536)
            request.sendall(self.data)


def _http(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    length = b"Content-Length: %d" % len(body)
    lines = (b"HTTP/1.1 " + status, length, b"Connection: close", *headers)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


_ANSWERS = (
    _http(b"the archive", b"Content-Type: application/zip"),
    _http(b"", b"WWW-Authenticate: Basic", status=b"401 No"),
    _http(b"moved", b"Location: http://127.0.0.1:1/x", status=b"302 Found"),
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
)


def _ask(data: bytes, directory: Path) -> None:
    with Answering(data) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        file = File(package="a", name="a-1.zip", url=f"{url}/a-1.zip", sha256="0" * 64)
        with suppress(ToolkitError):
            Index(settings={"index-url": url}).fetch(file, directory / "x")
        server.shutdown()
        thread.join()


READERS: dict[str, Reader] = {
    "sif": Reader((_SIF, _ours()), _read_sif),
    "squashfs": Reader((_BASE, _LAYER), _read_squashfs, SquashfsError),
    "layer": Reader((_LAYER,), lambda data, _: _graft(_BASE, data), SquashfsError),
    "base": Reader((_BASE,), lambda data, _: _graft(data, _LAYER), SquashfsError),
    "manifest": Reader((to_json(MANIFEST).encode(),), _read_manifest),
    "lock": Reader((format_lock(_LOCK).encode(),), _read_lock),
    "contents": Reader(
        (_CONTENTS,),
        lambda data, _: contents(data.decode("utf-8", "replace").splitlines()),
        ValueError,
    ),
    "pylock": Reader((_PYLOCK,), _read_pylock),
    "server": Reader(_ANSWERS, _ask),
}


# ---- ways to break them

_NUMBERS = (
    *(0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF),
    *(2**62, 2**63 - 1, 2**63, 2**64 - 1),
)
_TEXTS = (
    *(b"../../x", b"/etc/x", b"\0", b"\n", b"-1", b"1e999", b"null", b"\xff\xfe"),
    *(b"[" * 2000, b'{"a":' * 500, b"9" * 5000, b"\x80" + b"\xff" * 11),
)


def broken(seed: bytes, random: Random) -> bytes:
    """Return an input with a few things changed."""
    data = bytearray(seed)
    for _ in range(random.choice((1, 1, 1, 2, 4, 8))):
        _break(data, random)
    return bytes(data)


def _break(data: bytearray, random: Random) -> None:
    at = random.randrange(len(data) + 1) if random.random() < 0.5 else _interesting(data, random)
    text = random.choice(_TEXTS)
    number = struct.pack("<Q", random.choice(_NUMBERS))[: random.choice((1, 2, 4, 8))]
    replaced, new = random.choice(
        (
            (1, bytes(byte ^ 1 << random.randrange(8) for byte in data[at : at + 1])),
            (1, random.randbytes(1)),
            (len(number), number),
            (len(data), b""),
            (0, text),
            (len(text), text),
            (random.randrange(1, 64), b""),
            (0, bytes(data[at : at + random.randrange(1, 600)])),
        )
    )
    data[at : at + replaced] = new


def _interesting(data: bytearray, random: Random) -> int:
    """Return a place that is not among zeros, where most of a file's meaning is."""
    for _ in range(20):
        at = random.randrange(len(data) + 1)
        if any(data[at : at + 4]):
            return at
    return 0


def check(reader: Reader, data: bytes, directory: Path) -> str:
    """Have a reader read, and return how it came out: ``read``, or the name of its error.

    Args:
        reader: which.
        data: what it reads.
        directory: an empty one; the reader gets one within, and nothing else may appear.
    """
    own = directory / "own"
    own.mkdir()
    try:
        reader.read(data, own)
        outcome = "read"
    except (ToolkitError, reader.documented) as error:
        outcome = type(error).__name__
    outside = [path for path in directory.iterdir() if path != own]
    assert not outside, f"written outside: {outside}"
    return outcome
