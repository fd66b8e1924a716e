"""The JSON schema of site files, by which editors complete keys and mark mistakes."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import msgspec

from toolkit.model import site as models
from toolkit.model.base import Model


def text() -> str:
    """Return the schema, with the descriptions of keys from the models' docstrings."""
    schema = described(models.Site)
    whole: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A site of toolkit",
        **schema,
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def described(model: type[Model]) -> dict[str, Any]:
    """Return the schema of a model, with the descriptions of keys from the docstrings.

    The models that it refers to are in its module.
    """
    schema = msgspec.json.schema(model)
    for name, definition in schema["$defs"].items():
        part = getattr(sys.modules[model.__module__], name)
        bases = [base for base in reversed(part.__mro__) if issubclass(base, Model)]
        descriptions = {key: text for base in bases for key, text in _attributes(base).items()}
        definition["description"] = (part.__doc__ or "").split("\n\n")[0].strip()
        for key, rule in definition["properties"].items():
            if key in descriptions:
                rule["description"] = descriptions[key]
    return schema


def _attributes(model: type[Model]) -> dict[str, str]:
    """Return the description of each key below ``Attributes`` in a docstring.

    ``a, b: text`` describes both keys, ``a: text; ``b``: text`` only the first.
    """
    _, _, block = (model.__doc__ or "").partition("Attributes:\n")
    descriptions: dict[str, str] = {}
    for entry in re.split(r"\n(?= {8}\w)", "\n" + block.rstrip()):
        names, colon, text = entry.strip().partition(":")
        if colon:
            descriptions |= dict.fromkeys(
                re.split(r",\s*", names), " ".join(text.split()).replace("``", "`")
            )
    return descriptions
