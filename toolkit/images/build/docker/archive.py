"""Archives of images that `docker load` can read: engines before 25 know none of the layout that OCI describes, so it is written anew.

A directory tree becomes such an archive as well. Engines could import it as it is, but through
podman's socket that leaves a copy behind.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from toolkit.errors import MalformedInputError
from toolkit.files import hash_file
from toolkit.images.build.docker.tar_reader import opened, write_member

_DIGEST = re.compile(r"sha(?:256:[0-9a-f]{64}|512:[0-9a-f]{128})\Z")


class _Descriptor(msgspec.Struct):
    digest: str

    @property
    def blob(self) -> str:
        """The member that holds what is described."""
        if not _DIGEST.match(self.digest):
            raise MalformedInputError(f"it names {self.digest[:80]!r}, which is no digest")
        return "blobs/" + self.digest.replace(":", "/")


class _Index(msgspec.Struct):
    manifests: list[_Descriptor] = []


class _Manifest(msgspec.Struct):
    config: _Descriptor | None = None
    layers: list[_Descriptor] = []


_AnyStruct = TypeVar("_AnyStruct", bound=msgspec.Struct)


@contextmanager
def as_docker_archive(archive: Path, scratch: Path) -> Iterator[Path]:
    """Yield the archive itself if an engine can read it, else another one with the same image.

    The other one is gone afterwards.

    Raises:
        MalformedInputError: it holds no image, or more than one, or is broken.
        OSError: it cannot be read.
    """
    rewritten = None
    try:
        if not _is_docker(archive):
            rewritten = scratch / "archive.tar"
            _rewrite(archive, rewritten)
        yield rewritten or archive
    finally:
        if rewritten:
            rewritten.unlink(missing_ok=True)


def _is_docker(archive: Path) -> bool:
    with opened(archive) as source:
        names = {_plain(member.name) for member in source.members()}
    if "manifest.json" not in names and "index.json" not in names:
        raise MalformedInputError(
            "it holds neither manifest.json nor index.json", place=str(archive)
        )
    return "manifest.json" in names


def _plain(name: str) -> str:
    return name.removeprefix("./")


def _rewrite(archive: Path, target: Path) -> None:
    index = _decoded(archive, "index.json", _Index)
    if len(index.manifests) != 1:
        raise MalformedInputError(
            f"it holds {len(index.manifests)} images, not one", place=str(archive)
        )
    manifest = _decoded(archive, index.manifests[0].blob, _Manifest)
    if manifest.config is None:
        reason = "it holds an image of several architectures; write one of them into it"
        raise MalformedInputError(reason, place=str(archive))
    config, layers = manifest.config.blob, [layer.blob for layer in manifest.layers]
    with tarfile.open(target, "w") as written:
        _copy(archive, {config, *layers}, written)
        _add(written, "manifest.json", [{"Config": config, "RepoTags": None, "Layers": layers}])


def _copy(archive: Path, wanted: Iterable[str], target: tarfile.TarFile) -> None:
    missing = set(wanted)
    with opened(archive) as source:
        for member in source.members():
            name = _plain(member.name)
            if name in missing and member.isreg():
                missing.remove(name)
                write_member(target, name, member.size, source.chunks(member))
    if missing:
        raise MalformedInputError(f"its {min(missing)} is not there", place=str(archive))


def _decoded(archive: Path, name: str, model: type[_AnyStruct]) -> _AnyStruct:
    """Read a member that is JSON."""
    with opened(archive) as source:
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
            f"its {name} is not there or broken: {error}", place=str(archive)
        ) from None


def write_docker_archive(
    tree: Path, target: Path, name: str, config: dict[str, Any], architecture: str, created: str
) -> None:
    """Write an archive with one image of one layer.

    Args:
        tree: a tar file with everything that is in it.
        target: a new file.
        name: of the image, with its tag.
        config: ``Env``, ``Cmd``, ``Labels``.
        architecture: as Go calls it.
        created: when, as of RFC 3339.

    Raises:
        OSError: it cannot be written.
    """
    layers = {"type": "layers", "diff_ids": [f"sha256:{hash_file(tree)}"]}
    made = {"created": created, "comment": "toolkit"}
    described = {
        "created": created,
        "architecture": architecture,
        "os": "linux",
        "config": config,
        "rootfs": layers,
        "history": [made],
    }
    with tarfile.open(target, "w") as archive:
        archive.add(tree, "layer.tar")
        _add(archive, "config.json", described)
        _add(
            archive,
            "manifest.json",
            [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}],
        )


def _add(archive: tarfile.TarFile, name: str, value: object) -> None:
    data = json.dumps(value).encode()
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))
