"""The labels of an image, by spython: of its calls this one is right, if it is asked for JSON (``json=False`` crashes on some images)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from toolkit.images.store.settings import VARIABLES, temporary_settings


def labels(path: str) -> dict[str, str]:
    """What an image says of itself; empty where it has no labels or cannot be read, for which spython has several shapes."""
    from spython.main import Client

    try:
        with _no_traces():
            found = Client.inspect(path, json=True, quiet=True)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
    attributes = found.get("attributes") if isinstance(found, dict) else None
    said = attributes.get("labels") if isinstance(attributes, dict) else None
    return {str(name): str(value) for name, value in said.items()} if isinstance(said, dict) else {}


@contextmanager
def _no_traces() -> Iterator[None]:
    """Apptainer makes a directory in the home of whoever asks it anything, and spython hands on the environment as it is."""
    before = {name: os.environ.get(name) for name in VARIABLES}
    with temporary_settings() as settings:
        os.environ.update(settings)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
