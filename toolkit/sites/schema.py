"""The form of a site's file as a JSON schema, by which editors complete keys and mark mistakes."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from toolkit.model import site as models
from toolkit.model.base import Model
from toolkit.resources import package_directory

FILE = "site.schema.json"


def text() -> str:
    """The schema, with what the models' docstrings say of each key."""
    schema = msgspec.json.schema(models.Site)
    for name, definition in schema["$defs"].items():
        model = getattr(models, name)
        said = _attributes(model)
        definition["description"] = (model.__doc__ or "").split("\n\n")[0].strip()
        for key, rule in definition["properties"].items():
            if key in said:
                rule["description"] = said[key]
    whole: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A site of toolkit",
        **schema,
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def shipped() -> str:
    """The schema as it came with the tool."""
    return (package_directory("sites") / FILE).read_text(encoding="utf-8")


def _attributes(model: type[Model]) -> dict[str, str]:
    """What a docstring says below ``Attributes``; ``a, b: text`` is of both, ``a: text; ``b``: text`` of the first."""
    _, _, block = (model.__doc__ or "").partition("Attributes:\n")
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?= {8}\w)", "\n" + block.rstrip()):
        names, colon, text = entry.strip().partition(":")
        if colon:
            found |= dict.fromkeys(
                re.split(r",\s*", names), " ".join(text.split()).replace("``", "`")
            )
    return found
