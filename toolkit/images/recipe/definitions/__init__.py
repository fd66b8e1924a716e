"""A recipe as a definition: one renderer per format, all from the same stages. Pure: the same recipe gives the same bytes.

The texts are put together by plain functions, not by a template: importing a template engine alone
takes longer than the whole command may that prints a definition, and there is one order of parts,
whose lines the blocks have written already.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from toolkit.images.recipe.resolve import Resolved
from toolkit.images.recipe.stages import Stages, stages

STEP = "==> "  # begins the line by which a step says its name: "==> pip: torch 2.13.0+cpu"


class Format(NamedTuple):
    """A line of the registry.

    Attributes:
        module: with a function ``render(resolved, stages, labels)``.
        suffix: of the file in ``containers``.
    """

    module: str
    suffix: str


FORMATS: dict[str, Format] = {
    "apptainer": Format("toolkit.images.recipe.definitions.apptainer", ".def"),
    "docker": Format("toolkit.images.recipe.definitions.docker", ".Dockerfile"),
}


def render(
    resolved: Resolved, scripts: Mapping[str, str], version: str, form: str = "apptainer"
) -> str:
    """The definition of a recipe.

    Args:
        resolved: the recipe.
        scripts: the text of every file of ``images/checks``, by name.
        version: of the tool, for a label.
        form: one of ``FORMATS``.
    """
    found = stages(resolved, scripts)
    labels = {
        "toolkit.recipe": resolved.name,
        "toolkit.recipe-hash": hash_of(found),
        "toolkit.version": version,
    }
    module: Any = import_module(FORMATS[form].module)
    text: str = module.render(resolved, found, labels)
    return text


def recipe_hash(resolved: Resolved, scripts: Mapping[str, str]) -> str:
    """What changes when the image would: of all its steps and files, whatever format they are written in."""
    return hash_of(stages(resolved, scripts))


def hash_of(found: Stages) -> str:
    """The hash of stages."""
    import msgspec

    contents = (
        found.base.header(),
        found.base.setup(),
        found.prelude,
        found.common,
        found.build,
        found.final,
        found.files,
        found.path,
    )
    expanding = (list(found.expanding.items()),) if found.expanding else ()
    return _sha256(
        msgspec.json.encode((*contents, found.environment, *expanding), order="deterministic")
    )


def _sha256(data: bytes) -> str:
    """Python's own implementation where it is there: `hashlib` loads OpenSSL first, a twentieth of the command that prints a definition."""
    try:
        module: Any = import_module("_sha2" if sys.version_info >= (3, 12) else "_sha256")
    except ImportError:
        module = import_module("hashlib")
    digest: str = module.sha256(data).hexdigest()
    return digest
