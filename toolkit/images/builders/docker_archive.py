"""Archives of images that `docker load` can read: engines before 25 know none of the layout that OCI describes, so it is written anew.

A directory tree becomes such an archive as well. Engines could import it as it is, but through podman's socket that leaves a copy behind.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_Members = dict[str, tarfile.TarInfo]


@contextmanager
def as_docker_archive(archive: Path, scratch: Path) -> Iterator[Path]:
    """The archive itself if an engine can read it, else another one with the same image, gone afterwards.

    Raises:
        ValueError: it holds no image, or more than one.
        OSError: it cannot be read.
    """
    try:
        with tarfile.open(archive) as source:
            members = {member.name.removeprefix("./"): member for member in source}
            if "manifest.json" in members:
                rewritten = None
            elif "index.json" in members:
                rewritten = scratch / "archive.tar"
                _rewrite(source, members, rewritten)
            else:
                raise ValueError("it holds neither manifest.json nor index.json")
    except (tarfile.TarError, KeyError) as error:
        raise ValueError(f"it is no whole archive: {error}") from None
    try:
        yield rewritten or archive
    finally:
        if rewritten:
            rewritten.unlink(missing_ok=True)


def _rewrite(source: tarfile.TarFile, members: _Members, target: Path) -> None:
    manifests = _json(source, members, "index.json").get("manifests") or []
    if len(manifests) != 1:
        raise ValueError(f"it holds {len(manifests)} images, not one")
    manifest = _json(source, members, _blob(manifests[0]))
    if "config" not in manifest:
        raise ValueError("it holds an image of several architectures; write one of them into it")
    layers = [_blob(layer) for layer in manifest["layers"]]
    described = [{"Config": _blob(manifest["config"]), "RepoTags": None, "Layers": layers}]
    with tarfile.open(target, "w") as archive:
        for name in dict.fromkeys((_blob(manifest["config"]), *layers)):
            stream = source.extractfile(members[name])
            members[name].name = name
            archive.addfile(members[name], stream)
        _add(archive, "manifest.json", described)


def archive_of(tree: Path, target: Path, name: str, config: dict[str, Any], architecture: str, created: str) -> None:
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
    digest = hashlib.sha256()
    with tree.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    layers = {"type": "layers", "diff_ids": [f"sha256:{digest.hexdigest()}"]}
    made = {"created": created, "comment": "toolkit"}
    described = {"created": created, "architecture": architecture, "os": "linux", "config": config, "rootfs": layers, "history": [made]}
    with tarfile.open(target, "w") as archive:
        archive.add(tree, "layer.tar")
        _add(archive, "config.json", described)
        _add(archive, "manifest.json", [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}])


def _add(archive: tarfile.TarFile, name: str, value: object) -> None:
    data = json.dumps(value).encode()
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def _blob(descriptor: dict[str, Any]) -> str:
    algorithm, _, digits = str(descriptor["digest"]).partition(":")
    return f"blobs/{algorithm}/{digits}"


def _json(source: tarfile.TarFile, members: _Members, name: str) -> dict[str, Any]:
    try:
        stream = source.extractfile(members[name])
        data = json.load(stream) if stream else None
    except (KeyError, ValueError):
        data = None
    if not isinstance(data, dict):
        raise ValueError(f"its {name} is not there or broken")
    return data
