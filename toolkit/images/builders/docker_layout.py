"""What `docker save` writes, as a directory in OCI's layout with its layers as they are.

Apptainer reads `docker save`'s own archives as well, but compresses every layer by gzip first, on one core, and then decompresses it: three
quarters of the time that a conversion takes. Layers of this layout it takes uncompressed.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_KIND = "application/vnd.oci.image"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_CHUNK = 1 << 20


class _Stream(io.RawIOBase):
    """Chunks, to be read as a file."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks: Iterator[bytes] = iter(chunks)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = next(self._chunks, b"")
        taken = self._rest[: len(buffer)]
        self._rest = self._rest[len(taken) :]
        buffer[: len(taken)] = taken
        return len(taken)


def write_layout(chunks: Iterable[bytes], directory: Path) -> None:
    """Write one image into a new directory.

    Args:
        chunks: of what `docker save` says, in its old form or that of engines since 25.

    Raises:
        ValueError: it is cut off, or holds no image or several.
        OSError: it cannot be written.
    """
    parts = directory / "parts"
    parts.mkdir(parents=True)
    try:
        with tarfile.open(fileobj=io.BufferedReader(_Stream(chunks), _CHUNK), mode="r|") as archive:
            names = _unpacked(archive, parts)
    except tarfile.TarError as error:
        raise ValueError(f"it is cut off: {error}") from None
    try:
        described = json.loads((parts / names["manifest.json"]).read_bytes())
        if len(described) != 1:
            raise ValueError(f"it holds {len(described)} images, not one")
        config = _blob(directory, parts / names[described[0]["Config"]], "config.v1+json")
        layers = [_blob(directory, parts / names[layer]) for layer in described[0]["Layers"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is not whole: {error} is missing") from None
    manifest = {"schemaVersion": 2, "mediaType": f"{_KIND}.manifest.v1+json", "config": config, "layers": layers}
    (parts / "manifest").write_text(json.dumps(manifest), encoding="utf-8")
    index = {"schemaVersion": 2, "manifests": [_blob(directory, parts / "manifest", "manifest.v1+json")]}
    (directory / "index.json").write_text(json.dumps(index), encoding="utf-8")
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}', encoding="utf-8")
    shutil.rmtree(parts)


def _unpacked(archive: tarfile.TarFile, parts: Path) -> dict[str, str]:
    """Every file under a number, whatever it is called; a link (as the old form has for equal layers) is another name for a number."""
    names: dict[str, str] = {}
    links: dict[str, tuple[str, str]] = {}
    for number, member in enumerate(archive):
        stream = archive.extractfile(member) if member.isreg() else None
        if stream:
            with (parts / str(number)).open("wb") as target:
                shutil.copyfileobj(stream, target, _CHUNK)
            names[member.name] = str(number)
        elif member.issym() or member.islnk():
            links[member.name] = (_joined(member.name.rpartition("/")[0], member.linkname), member.linkname)
    for name, targets in links.items():  # what a link names may come after it
        found = next((names[target] for target in targets if target in names), None)
        if found:
            names[name] = found
    return names


def _joined(base: str, link: str) -> str:
    words = base.split("/") if base else []
    for word in link.split("/"):
        if word == "..":
            words = words[:-1]
        elif word not in ("", "."):
            words.append(word)
    return "/".join(words)


def _blob(directory: Path, part: Path, kind: str = "") -> dict[str, Any]:
    """Put a file to the blobs; its descriptor. Without a kind it is a layer."""
    digest = hashlib.sha256()
    with part.open("rb") as stream:
        start = stream.read(4)
        digest.update(start)
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    if not kind:
        packed = "+gzip" if start.startswith(_GZIP) else "+zstd" if start == _ZSTD else ""
        kind = f"layer.v1.tar{packed}"
    target = directory / "blobs/sha256" / digest.hexdigest()
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        target.hardlink_to(part)
    return {"mediaType": f"{_KIND}.{kind}", "digest": f"sha256:{digest.hexdigest()}", "size": target.stat().st_size}
