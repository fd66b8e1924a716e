"""The metadata of a SIF as Apptainer writes them: labels, environment, runscript and test."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from toolkit.images.recipe.reproducible import EPOCH

_SECTION = re.compile(r"^%(\w+)[^\n]*\n(.*?)(?=^%\w|\Z)", re.MULTILINE | re.DOTALL)
_SCHEMA = "org.label-schema."
_ENVIRONMENT = ".singularity.d/env/90-environment.sh"
_HOLDS_TEXT = re.compile(
    r"^(?:    )?cat > \S+ <<'(?P<end>[\w-]+)'\n.*?^(?P=end)\n", re.MULTILINE | re.DOTALL
)


def sections(definition: str) -> dict[str, str]:
    """Return the sections of a definition's last stage; here-documents are no sections."""
    last = definition[max(definition.rfind("\nBootstrap:"), 0) :]
    matches = _SECTION.finditer(_HOLDS_TEXT.sub("", last))
    return {match[1]: match[2].strip("\n") for match in matches}


def labels(
    definition: str, base: Mapping[str, str], builder: str, machine: str, now: datetime
) -> dict[str, str]:
    """Return the labels of the base, then Apptainer's own, then those of the definition."""
    stripped = (line.strip() for line in sections(definition).get("labels", "").splitlines())
    lines = (line.partition(" ") for line in stripped if line)
    time = f"{now.hour}:{now.minute}:{now.second}"
    own = {
        f"{_SCHEMA}build-arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine),
        f"{_SCHEMA}build-date": f"{now:%A}_{now.day}_{now:%B_%Y}_{time}_UTC",
        f"{_SCHEMA}schema-version": "1.0",
        f"{_SCHEMA}usage.apptainer.version": builder.rpartition(" ")[2],
    }
    return dict(
        sorted({**base, **own, **{name: value.strip() for name, _, value in lines}}.items())
    )


def write(
    directory: Path,
    definition: str,
    image_labels: Mapping[str, str],
    files: Mapping[str, str],
    environment: Mapping[str, str],
) -> str:
    """Write the metadata files into a directory that becomes a layer.

    As in Apptainer, the definition's variables are set after those of the base.

    Args:
        directory: An empty directory.
        definition: The image's definition.
        image_labels: The image's labels.
        files: The texts of further files of the image, by path.
        environment: The scripts of the base that set variables, by path.

    Returns:
        The text of ``inspect-metadata.json``, which holds the same facts.
    """
    parts = sections(definition)
    before = environment.get(f"/{_ENVIRONMENT}") or "#!/bin/sh"
    variables = f"{before}\n\n{parts.get('environment', '')}\n"
    scripts: dict[str, str] = {
        name: f"#!/bin/sh\n\n{parts[name]}\n" for name in ("runscript", "test") if name in parts
    }
    programs = {
        _ENVIRONMENT: variables,
        **{f".singularity.d/{name}": text for name, text in scripts.items()},
    }
    texts = {
        ".singularity.d/labels.json": json.dumps(image_labels, indent="\t"),
        ".singularity.d/Singularity": definition,
        **{name.lstrip("/"): text for name, text in files.items()},
    }
    for name, text in {**programs, **texts}.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755 if name in programs else 0o644)
    for inner in (path for path in directory.rglob("*") if path.is_dir()):
        inner.chmod(0o755)
    for path in (directory, *directory.rglob("*")):
        os.utime(path, (EPOCH, EPOCH))
    attributes: dict[str, object] = {
        "environment": {**environment, f"/{_ENVIRONMENT}": variables},
        "labels": image_labels,
        "deffile": definition,
        **scripts,
    }
    return json.dumps({"data": {"attributes": attributes}, "type": "container"})
