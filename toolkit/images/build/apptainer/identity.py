"""What a SIF says of itself, as Apptainer would have written it from the same definition: labels, environment, runscript, test."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from toolkit.images.build.reproducible import EPOCH

_SECTION = re.compile(r"^%(\w+)[^\n]*\n(.*?)(?=^%\w|\Z)", re.MULTILINE | re.DOTALL)
_SCHEMA = "org.label-schema."
_ENVIRONMENT = ".singularity.d/env/90-environment.sh"
_HOLDS_TEXT = re.compile(
    r"^(?:    )?cat > \S+ <<'(?P<end>[\w-]+)'\n.*?^(?P=end)\n", re.MULTILINE | re.DOTALL
)


def sections(definition: str) -> dict[str, str]:
    """The sections of a definition's last stage; what here-documents hold is no section."""
    last = definition[max(definition.rfind("\nBootstrap:"), 0) :]
    return {
        found[1]: found[2].strip("\n") for found in _SECTION.finditer(_HOLDS_TEXT.sub("", last))
    }


def labels(
    definition: str, base: Mapping[str, str], builder: str, machine: str, now: datetime
) -> dict[str, str]:
    """The labels of the base, then Apptainer's own, then those of the definition."""
    lines = (
        line.strip().partition(" ")
        for line in sections(definition).get("labels", "").splitlines()
        if line.strip()
    )
    own = {
        f"{_SCHEMA}build-arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine),
        f"{_SCHEMA}build-date": f"{now:%A}_{now.day}_{now:%B_%Y}_{now.hour}:{now.minute}:{now.second}_UTC",
        f"{_SCHEMA}schema-version": "1.0",
        f"{_SCHEMA}usage.apptainer.version": builder.rpartition(" ")[2],
    }
    return dict(
        sorted({**base, **own, **{name: value.strip() for name, _, value in lines}}.items())
    )


def labels_of(metadata: bytes) -> dict[str, str]:
    """The labels in what Apptainer keeps beside a file system; none where it keeps something else."""
    try:
        found = json.loads(metadata)["data"]["attributes"]["labels"]
        return {str(name): str(value) for name, value in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def write(
    directory: Path, definition: str, said: Mapping[str, str], more: Mapping[str, str]
) -> str:
    """Write the files into a directory that becomes a layer; the text of ``inspect-metadata.json``, which holds the same.

    Args:
        said: the labels.
        more: path -> text of further files of the image.
    """
    found = sections(definition)
    environment = f"#!/bin/sh\n# Custom environment shell code should follow\n\n{found.get('environment', '')}\n"
    scripts = {
        name: f"#!/bin/sh\n\n{found[name]}\n" for name in ("runscript", "test") if name in found
    }
    files = {
        _ENVIRONMENT: environment,
        ".singularity.d/labels.json": json.dumps(said, indent="\t"),
        ".singularity.d/Singularity": definition,
        **{f".singularity.d/{name}": text for name, text in scripts.items()},
        **{name.lstrip("/"): text for name, text in more.items()},
    }
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        is_program = name in (_ENVIRONMENT, *(f".singularity.d/{one}" for one in scripts))
        path.chmod(0o755 if is_program else 0o644)
    for inner in (path for path in directory.rglob("*") if path.is_dir()):
        inner.chmod(0o755)
    for path in (directory, *directory.rglob("*")):
        os.utime(path, (EPOCH, EPOCH))
    attributes: dict[str, object] = {
        "environment": {f"/{_ENVIRONMENT}": environment},
        "labels": said,
        "deffile": definition,
    }
    for name, text in scripts.items():
        attributes[name] = text
    return json.dumps({"data": {"attributes": attributes}, "type": "container"})


def utc_now() -> datetime:
    return datetime.now(timezone.utc)
