"""The labels of an image, read by spython.

This call of spython is correct if it is asked for JSON (``json=False`` crashes on some images).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from toolkit.images.store.settings import VARIABLES, temporary_settings


def labels(path: str) -> dict[str, str]:
    """Return the labels of an image.

    The result is empty if the image has none or cannot be read, for which spython has several
    shapes.
    """
    from spython.main import Client

    try:
        with _no_traces():
            answer = Client.inspect(path, json=True, quiet=True)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
    attributes = answer.get("attributes") if isinstance(answer, dict) else None
    values = attributes.get("labels") if isinstance(attributes, dict) else None
    if not isinstance(values, dict):
        return {}
    return {str(name): str(value) for name, value in values.items()}


@contextmanager
def _no_traces() -> Iterator[None]:
    """Set Apptainer's settings directory to a temporary one.

    Apptainer creates a directory in the home of the user who calls it, and spython passes the
    environment on unchanged.
    """
    before = {name: os.environ.get(name) for name in VARIABLES}
    with temporary_settings() as settings:
        os.environ.update(settings)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
