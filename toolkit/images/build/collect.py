"""Asking an image what is in it: one start of a container."""

from __future__ import annotations

from toolkit.errors import BuildError
from toolkit.images.build.contents import SCRIPT, Contents, parse
from toolkit.images.store.settings import run_in_image

_PATIENCE = 300.0  # seconds


def read_contents(path: str) -> Contents:
    """What is in the image at ``path``.

    Raises:
        BuildError: it does not run, or says something else.
        NeedsInstallError: there is no Apptainer.
    """
    said = run_in_image(path, ["/bin/sh", "-c", SCRIPT], timeout=_PATIENCE)
    try:
        found = parse(said.stdout)
    except ValueError as error:
        raise BuildError(
            f"what the image says of its contents cannot be read: {error}",
            place=path,
            details=said.tail(),
        ) from None
    if found is None:
        raise BuildError(
            "the image could not be asked what is in it", place=path, details=said.tail()
        )
    return found
