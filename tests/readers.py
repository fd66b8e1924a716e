"""Everything that reads what others made, each with small real inputs, and ways to break those.

The unit tests break them a little, ``make fuzz`` for minutes. Whatever comes in, a reader ends with
a result or with a ``ToolkitError``, and writes nothing outside the directory that it was given.
"""

from __future__ import annotations

import gzip
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

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
from toolkit.model.base import BadDataError, from_json, to_json
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
        _tried(read, path)


def _tried(read: Callable[[Path], object], path: Path) -> None:
    """Call one of several readers of the same file: an error of one must not hide the others."""
    try:
        read(path)
    except ToolkitError:
        return


def tables(data: bytes) -> Tables:
    return read_tables(SquashfsReader(len(data), lambda at, length: data[at : at + length]))


def _read_squashfs(data: bytes, directory: Path) -> None:
    del directory
    found = tables(data)
    left = 20_000
    waiting = [found.head.root]
    while waiting:
        inode = read_inode(found, waiting.pop())
        if inode.kind != DIRECTORY:
            continue
        for entry in list_directory(found, inode):
            left -= 1
            if left < 0:
                return
            waiting.append(entry.inode)


def _graft(below: bytes, above: bytes) -> None:
    base = tables(below)
    graft(base, tables(above), 96)
    with damage_errors("the new one"):
        write_tables(base)


# ---- texts

_MANIFEST = Manifest(
    name="x",
    sif_id=bytes(range(16)).hex(),
    size=len(_SIF),
    recipe_hash="0",
    built="2026-01-01T00:00:00+00:00",
    frameworks={"torch": "2.13.0"},
    horovod={"a": [1, {"b": None}]},
    base=BaseImage(reference="debian"),
)
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
    (directory / "x.lock").write_bytes(data)
    read_lock(directory / "x.lock")


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


@contextmanager
def answering(data: bytes) -> Iterator[int]:
    """Answer every connection on a loopback port with these bytes, whatever is asked."""
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(5)

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                try:
                    connection.recv(65536)
                    connection.sendall(data)
                except OSError:
                    continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        with socket.create_connection(server.getsockname()) as last:
            server.close()
            last.close()
        thread.join()


def _http(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    length = b"Content-Length: %d" % len(body)
    lines = (b"HTTP/1.1 " + status, length, b"Connection: close", *headers)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


_ANSWERS = (
    _http(b'{"tags": ["1", "22.03-py3"]}', b"Docker-Content-Digest: sha256:" + b"ab" * 32),
    _http(
        b'{"tags": ["2"]}',
        b'Link: </v2/a/b/tags/list?n=1000&last=2>; rel="next"',
        status=b"404 Not Found",
    ),
    _http(
        b'{"token": "given"}',
        b'WWW-Authenticate: Bearer realm="http://127.0.0.1:1/token",service="x"',
        status=b"401 No",
    ),
    _http(b"", b"WWW-Authenticate: Basic", status=b"401 No"),
    _http(b"moved", b"Location: http://127.0.0.1:1/x", status=b"302 Found"),
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
)


def _ask(data: bytes, directory: Path) -> None:
    with answering(data) as port:
        url = f"http://me:hunter22@127.0.0.1:{port}"
        file = File(package="a", name="a-1.zip", url=f"{url}/a-1.zip", sha256="0" * 64)
        _asked(lambda: Index(settings={"index-url": url}).fetch(file, directory / "x"))


def _asked(ask: Callable[[], object]) -> None:
    said = ""
    try:
        ask()
    except ToolkitError as error:
        said = f"{error.cause} {error.place} {error.details} {error.next_step}"
    assert "hunter22" not in said


READERS: dict[str, Reader] = {
    "sif": Reader((_SIF, _ours()), _read_sif),
    "squashfs": Reader((_BASE, _LAYER), _read_squashfs, SquashfsError),
    "layer": Reader((_LAYER,), lambda data, _: _graft(_BASE, data), SquashfsError),
    "base": Reader((_BASE,), lambda data, _: _graft(data, _LAYER), SquashfsError),
    "manifest": Reader((to_json(_MANIFEST).encode(),), _read_manifest),
    "model": Reader(
        (to_json(_MANIFEST).encode(),), lambda data, _: from_json(data, Manifest), BadDataError
    ),
    "lock": Reader((format_lock(_LOCK).encode(),), _read_lock),
    "contents": Reader(
        (_CONTENTS,),
        lambda data, _: contents(data.decode("utf-8", "replace").splitlines()),
        ValueError,
    ),
    "labels": Reader(
        (b'{"data": {"attributes": {"labels": {"a": "b"}}}}',),
        lambda data, _: parse_inspection(data),
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
    way = random.randrange(8)
    if way == 0 and at < len(data):
        data[at] ^= 1 << random.randrange(8)
    elif way == 1 and at < len(data):
        data[at] = random.randrange(256)
    elif way == 2:
        size = random.choice((1, 2, 4, 8))
        data[at : at + size] = struct.pack("<Q", random.choice(_NUMBERS))[:size]
    elif way == 3:
        del data[random.choice((at, len(data) - at)) :]
    elif way == 4:
        data[at:at] = random.choice(_TEXTS)
    elif way == 5:
        text = random.choice(_TEXTS)
        data[at : at + len(text)] = text
    elif way == 6:
        del data[at : at + random.randrange(1, 64)]
    else:
        data[at:at] = data[at : at + random.randrange(1, 600)]


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
