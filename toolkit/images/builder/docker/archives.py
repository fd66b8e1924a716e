"""Convert between an engine's image archives, OCI layouts and directory trees.

- ``as_docker_archive``: an OCI archive for `docker load`. Engines before 25 cannot read OCI's own
  layout.
- ``write_docker_archive``: a directory tree for `docker load`. Engines could import the tree as it
  is, but podman's socket then leaves a copy behind.
- ``write_layout``: the output of `docker save` as an OCI layout for Apptainer. Apptainer reads
  `docker save`'s archives as well, but compresses every layer by gzip first, on one core, and then
  decompresses it: three quarters of the time of a conversion. In an OCI layout it takes layers
  uncompressed.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from toolkit.errors import MalformedInputError
from toolkit.files import hash_file
from toolkit.images.builder.docker.tar_reader import (
    Archive,
    open_archive,
    read_stream,
    reading,
    write_member,
)

_DIGEST = re.compile(r"sha(?:256:[0-9a-f]{64}|512:[0-9a-f]{128})\Z")
_KIND = "application/vnd.oci.image"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_MAX_JSON = 16 << 20  # bytes of JSON that describes an image


class _Descriptor(msgspec.Struct):
    digest: str

    @property
    def blob(self) -> str:
        """Return the name of the archive member that it describes."""
        if not _DIGEST.match(self.digest):
            raise MalformedInputError(f"{self.digest[:80]!r} is not a digest")
        return "blobs/" + self.digest.replace(":", "/")


class _Index(msgspec.Struct):
    manifests: list[_Descriptor] = []


class _Manifest(msgspec.Struct):
    config: _Descriptor | None = None
    layers: list[_Descriptor] = []


class _Saved(msgspec.Struct):
    """An image in the ``manifest.json`` of `docker save`."""

    Config: str
    Layers: list[str]


_AnyStruct = TypeVar("_AnyStruct", bound=msgspec.Struct)


@contextmanager
def as_docker_archive(archive: Path, scratch: Path) -> Iterator[Path]:
    """Yield an archive that an engine can read: this one, or a temporary one with the same image.

    Raises:
        MalformedInputError: The archive is broken, or does not hold exactly one image.
        OSError: It cannot be read.
    """
    if _is_docker(archive):
        yield archive
        return
    rewritten = scratch / "archive.tar"
    try:
        _rewrite(archive, rewritten)
        yield rewritten
    finally:
        rewritten.unlink(missing_ok=True)


def _is_docker(archive: Path) -> bool:
    with open_archive(archive) as source:
        names = {_plain(member.name) for member in source.members()}
    if "manifest.json" not in names and "index.json" not in names:
        raise MalformedInputError(
            "it holds neither manifest.json nor index.json", place=str(archive)
        )
    return "manifest.json" in names


def _plain(name: str) -> str:
    return name.removeprefix("./")


def _rewrite(archive: Path, target: Path) -> None:
    index = _decode(archive, "index.json", _Index)
    if len(index.manifests) != 1:
        raise MalformedInputError(
            f"it holds {len(index.manifests)} images instead of one", place=str(archive)
        )
    manifest = _decode(archive, index.manifests[0].blob, _Manifest)
    if manifest.config is None:
        reason = "it holds an image for several architectures; write one of them into it"
        raise MalformedInputError(reason, place=str(archive))
    config, layers = manifest.config.blob, [layer.blob for layer in manifest.layers]
    with tarfile.open(target, "w") as written:
        _copy(archive, {config, *layers}, written)
        _add_json(
            written, "manifest.json", [{"Config": config, "RepoTags": None, "Layers": layers}]
        )


def _copy(archive: Path, wanted: Iterable[str], target: tarfile.TarFile) -> None:
    missing = set(wanted)
    with open_archive(archive) as source:
        for member in source.members():
            name = _plain(member.name)
            if name in missing and member.isreg():
                missing.remove(name)
                write_member(target, name, member.size, source.chunks(member))
    if missing:
        raise MalformedInputError(f"{min(missing)} is missing in it", place=str(archive))


def _decode(archive: Path, name: str, model: type[_AnyStruct]) -> _AnyStruct:
    """Read a member that is JSON."""
    with open_archive(archive) as source:
        texts = (
            source.text(member)
            for member in source.members()
            if _plain(member.name) == name and member.isreg()
        )
        text = next(texts, None)
    try:
        return msgspec.json.decode(text or b"", type=model)
    except (ValueError, RecursionError) as error:
        raise MalformedInputError(
            f"its {name} is missing or broken: {error}", place=str(archive)
        ) from None


def write_docker_archive(
    tree: Path, target: Path, name: str, config: dict[str, Any], architecture: str, created: str
) -> None:
    """Write an archive with one image of one layer.

    Args:
        tree: A tar file with the image's files.
        target: A new file.
        name: The image's name, with its tag.
        config: ``Env``, ``Cmd``, ``Labels``.
        architecture: The architecture's name in Go.
        created: The time of creation, as of RFC 3339.

    Raises:
        OSError: The archive cannot be written.
    """
    image = {
        "created": created,
        "architecture": architecture,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hash_file(tree)}"]},
        "history": [{"created": created, "comment": "toolkit"}],
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(target, "w") as archive:
        archive.add(tree, "layer.tar")
        _add_json(archive, "config.json", image)
        _add_json(archive, "manifest.json", manifest)


def _add_json(archive: tarfile.TarFile, name: str, value: object) -> None:
    data = json.dumps(value).encode()
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def write_layout(chunks: Iterable[bytes], directory: Path) -> None:
    """Write one image into a new directory, in OCI's layout.

    Args:
        chunks: The output of `docker save`, in its old form or that of engines since 25.
        directory: The target; nothing is written outside of it, whatever the members are called.

    Raises:
        MalformedInputError: The output is cut off or broken, or does not hold exactly one image.
        OSError: The layout cannot be written.
    """
    parts = directory / "parts"
    parts.mkdir(parents=True)
    with reading("the image that the engine wrote"):
        names = _unpack(read_stream(chunks), parts)
        saved = _read_saved(parts, names)
        config = _add_blob(directory, _find_part(parts, names, saved.Config), "config.v1+json")
        layers = [_add_blob(directory, _find_part(parts, names, name)) for name in saved.Layers]
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_KIND}.manifest.v1+json",
        "config": config,
        "layers": layers,
    }
    (parts / "manifest").write_text(json.dumps(manifest), encoding="utf-8")
    manifests = [_add_blob(directory, parts / "manifest", "manifest.v1+json")]
    index = {"schemaVersion": 2, "manifests": manifests}
    (directory / "index.json").write_text(json.dumps(index), encoding="utf-8")
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}', encoding="utf-8")
    shutil.rmtree(parts)


def _read_saved(parts: Path, names: dict[str, str]) -> _Saved:
    with _find_part(parts, names, "manifest.json").open("rb") as stream:
        images = msgspec.json.decode(stream.read(_MAX_JSON), type=list[_Saved])
    if len(images) != 1:
        raise MalformedInputError(f"it holds {len(images)} images instead of one")
    return images[0]


def _find_part(parts: Path, names: dict[str, str], name: str) -> Path:
    if name not in names:
        raise MalformedInputError(f"it is incomplete: {name[:100]!r} is missing")
    return parts / names[name]


def _unpack(archive: Archive, parts: Path) -> dict[str, str]:
    """Write each file under a number; return the numbers by the names of the members.

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
            directory = member.name.rpartition("/")[0]
            links[member.name] = (_join(directory, member.linkname), member.linkname)
    for name, targets in links.items():  # the target of a link may come after the link
        number_of_target = next((names[target] for target in targets if target in names), None)
        if number_of_target:
            names[name] = number_of_target
    return names


def _join(base: str, link: str) -> str:
    words = base.split("/") if base else []
    for word in link.split("/"):
        if word == "..":
            words = words[:-1]
        elif word not in ("", "."):
            words.append(word)
    return "/".join(words)


def _add_blob(directory: Path, part: Path, kind: str = "") -> dict[str, Any]:
    """Add a file to the blobs and return its descriptor; a file without a kind is a layer."""
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
