"""Where Apptainer keeps settings of its own while we ask it something."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLES = ("APPTAINER_CONFIGDIR", "SINGULARITY_CONFIGDIR")


@contextmanager
def temporary_settings() -> Iterator[dict[str, str]]:
    """Yield variables that name a temporary directory; without them Apptainer makes one in the user's home."""
    with tempfile.TemporaryDirectory(prefix="toolkit-") as directory:
        yield dict.fromkeys(VARIABLES, directory)
