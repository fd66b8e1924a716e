"""A recipe as a definition: one renderer per format, all from the same stages.

Pure: the same recipe gives the same bytes.

The texts are put together by plain functions, not by a template: importing a template engine alone
takes longer than the whole command may that prints a definition, and there is one order of parts,
whose lines the blocks have written already.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from toolkit.images.recipe.digests import hash_bytes
from toolkit.images.recipe.resolve import Resolved
from toolkit.images.recipe.stages import Stages, derive_stages

STEP = "==> "  # begins the line in which a step prints its name: "==> pip: torch 2.13.0+cpu"


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
    """Return the definition of a recipe.

    Args:
        resolved: the recipe.
        scripts: the text of every file of ``images/checks``, by name.
        version: of the tool, for a label.
        form: one of ``FORMATS``.
    """
    image_stages = derive_stages(resolved, scripts)
    labels = {
        "toolkit.recipe": resolved.name,
        "toolkit.recipe-hash": hash_stages(image_stages),
        "toolkit.version": version,
    }
    module: Any = import_module(FORMATS[form].module)
    text: str = module.render(resolved, image_stages, labels)
    return text


def hash_recipe(resolved: Resolved, scripts: Mapping[str, str]) -> str:
    """Return a hash that changes when the image would.

    It is that of all its steps and files, in whatever format they are written.
    """
    return hash_stages(derive_stages(resolved, scripts))


def hash_stages(image_stages: Stages) -> str:
    """Return the hash of stages."""
    import msgspec

    contents = (
        image_stages.base.output().header,
        image_stages.base.output().setup,
        image_stages.prelude,
        image_stages.common,
        image_stages.build,
        image_stages.final,
        image_stages.files,
        image_stages.path,
    )
    expanding = (list(image_stages.expanding.items()),) if image_stages.expanding else ()
    return hash_bytes(
        msgspec.json.encode(
            (*contents, image_stages.environment, *expanding), order="deterministic"
        )
    )
