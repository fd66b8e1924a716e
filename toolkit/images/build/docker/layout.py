"""What `docker save` writes, as a directory in OCI's layout with its layers as they are.

Apptainer reads `docker save`'s own archives as well, but compresses every layer by gzip first, on
one core, and then decompresses it: three quarters of the time that a conversion takes. Layers of
this layout it takes uncompressed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from toolkit.errors import MalformedInputError
from toolkit.files import hash_file
from toolkit.images.build.docker.tar_reader import Archive, reading, streamed

_KIND = "application/vnd.oci.image"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_MOST_TEXT = 16 << 20  # bytes of what describes an image


class _Saved(msgspec.Struct):
    """An image in the ``manifest.json`` of `docker save`."""

    Config: str
    Layers: list[str]


def write_layout(chunks: Iterable[bytes], directory: Path) -> None:
    """Write one image into a new directory.

    Args:
        chunks: what `docker save` writes, in its old form or that of engines since 25.
        directory: where; nothing is written outside of it, whatever the members are called.

    Raises:
        MalformedInputError: it is cut off or broken, or holds no image or several.
        OSError: it cannot be written.
    """
    parts = directory / "parts"
    parts.mkdir(parents=True)
    with reading("the image that the engine wrote"):
        names = _unpacked(streamed(chunks), parts)
        saved = _saved(parts, names)
        config = _blob(directory, _part(parts, names, saved.Config), "config.v1+json")
        layers = [_blob(directory, _part(parts, names, layer)) for layer in saved.Layers]
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_KIND}.manifest.v1+json",
        "config": config,
        "layers": layers,
    }
    (parts / "manifest").write_text(json.dumps(manifest), encoding="utf-8")
    index = {
        "schemaVersion": 2,
        "manifests": [_blob(directory, parts / "manifest", "manifest.v1+json")],
    }
    (directory / "index.json").write_text(json.dumps(index), encoding="utf-8")
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}', encoding="utf-8")
    shutil.rmtree(parts)


def _saved(parts: Path, names: dict[str, str]) -> _Saved:
    with _part(parts, names, "manifest.json").open("rb") as stream:
        found = msgspec.json.decode(stream.read(_MOST_TEXT), type=list[_Saved])
    if len(found) != 1:
        raise MalformedInputError(f"it holds {len(found)} images, not one")
    return found[0]


def _part(parts: Path, names: dict[str, str], name: str) -> Path:
    if name not in names:
        raise MalformedInputError(f"it is not whole: {name[:100]!r} is missing")
    return parts / names[name]


def _unpacked(archive: Archive, parts: Path) -> dict[str, str]:
    """Write each file under a number, whatever it is called.

    A link, as the old form has for equal layers, is another name for a number.
    """
    names: dict[str, str] = {}
    links: dict[str, tuple[str, str]] = {}
    for number, member in enumerate(archive.members()):
        if member.isreg():
            with (parts / str(number)).open("wb") as target:
                for part in archive.chunks(member):
                    target.write(part)
            names[member.name] = str(number)
        elif member.issym() or member.islnk():
            links[member.name] = (
                _joined(member.name.rpartition("/")[0], member.linkname),
                member.linkname,
            )
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
    digest = hash_file(part)
    if not kind:
        with part.open("rb") as stream:
            start = stream.read(4)
        packed = "+gzip" if start.startswith(_GZIP) else "+zstd" if start == _ZSTD else ""
        kind = f"layer.v1.tar{packed}"
    target = directory / "blobs/sha256" / digest
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        target.hardlink_to(part)
    return {
        "mediaType": f"{_KIND}.{kind}",
        "digest": f"sha256:{digest}",
        "size": target.stat().st_size,
    }
