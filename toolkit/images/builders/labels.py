"""The labels of an image, by spython: of its calls this one is right, if it is asked for JSON (``json=False`` crashes on some images)."""

from __future__ import annotations


def labels(path: str) -> dict[str, str]:
    """What an image says of itself; empty where it has no labels or cannot be read, for which spython has several shapes."""
    from spython.main import Client

    found = Client.inspect(path, json=True, quiet=True)
    attributes = found.get("attributes") if isinstance(found, dict) else None
    said = attributes.get("labels") if isinstance(attributes, dict) else None
    return {str(name): str(value) for name, value in said.items()} if isinstance(said, dict) else {}
