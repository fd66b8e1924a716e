"""A recipe as a definition: one renderer per format, all from the same stages.

Pure: the same recipe gives the same bytes.

The texts are put together by plain functions, not by a template: importing a template engine alone
takes longer than the whole command may that prints a definition, and there is one order of parts,
whose lines the blocks have written already.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from toolkit.images.recipe.digests import hash_bytes
from toolkit.images.recipe.resolve import Resolved
from toolkit.images.recipe.stages import Stages

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


def render(resolved: Resolved, stages: Stages, version: str, form: str = "apptainer") -> str:
    """Return the definition of a recipe.

    Args:
        resolved: the recipe.
        stages: its steps.
        version: of the tool, for a label.
        form: one of ``FORMATS``.
    """
    labels = {
        "toolkit.recipe": resolved.name,
        "toolkit.recipe-hash": hash_stages(stages),
        "toolkit.version": version,
    }
    module: Any = import_module(FORMATS[form].module)
    text: str = module.render(resolved, stages, labels)
    return text


def hash_stages(stages: Stages) -> str:
    """Return a hash that changes when the image would.

    It is that of all its steps and files, in whatever format they are written.
    """
    import msgspec

    contents = (
        stages.base.output().header,
        stages.base.output().setup,
        stages.prelude,
        stages.common,
        stages.build,
        stages.final,
        stages.files,
        stages.path,
    )
    expanding = (list(stages.expanding.items()),) if stages.expanding else ()
    return hash_bytes(
        msgspec.json.encode((*contents, stages.environment, *expanding), order="deterministic")
    )
