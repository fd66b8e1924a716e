"""The JSON schemas that the package ships, from the models and their docstrings."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from toolkit.config import package_directory
from toolkit.model.base import Model, to_json
from toolkit.model.site import Site
from toolkit.workshops.model import Workshop


def schemas() -> dict[Path, str]:
    """Return the schema of each file of people, by the file that holds it."""
    models: dict[str, tuple[type[Model], str]] = {
        "sites/site.schema.json": (Site, "A site of toolkit"),
        "workshops/workshop.schema.json": (Workshop, "A workshop of toolkit"),
    }
    return {package_directory(path): json_schema(*about) for path, about in models.items()}


def write() -> None:
    """Renew the schemas."""
    for path, text in schemas().items():
        path.write_text(text, encoding="utf-8")


def json_schema(model: type[Model], title: str) -> str:
    """Return the JSON schema of a file, by which editors complete keys and mark mistakes."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    # Patterns of a schema are JavaScript's, which ends a text with $.
    return to_json(head | described(model), sort=False).replace(r"\\Z", "$")


def described(model: type[Model]) -> dict[str, Any]:
    """Return the schema of a model, with the descriptions of keys from the docstrings.

    The models that it refers to are in its module.
    """
    schema = msgspec.json.schema(model)
    for name, definition in schema["$defs"].items():
        part = getattr(sys.modules[model.__module__], name)
        definition["description"] = (part.__doc__ or "").split("\n\n")[0].strip()
        for base in reversed(part.__mro__):
            for key, text in _attributes(base.__doc__ or "").items():
                if key in definition["properties"]:
                    definition["properties"][key]["description"] = text
    return schema


def _attributes(docstring: str) -> dict[str, str]:
    """Return the description of each key below ``Attributes`` in a docstring.

    ``a, b: text`` describes both keys, ``a: text; ``b``: text`` only the first.
    """
    _, _, block = docstring.partition("Attributes:\n")
    descriptions: dict[str, str] = {}
    for entry in re.split(r"\n(?= {8}\w)", "\n" + block.rstrip()):
        names, colon, text = entry.strip().partition(":")
        if colon:
            text = " ".join(text.split()).replace("``", "`")
            descriptions |= dict.fromkeys(re.split(r",\s*", names), text)
    return descriptions
