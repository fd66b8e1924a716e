"""Which tests of this directory run on the same worker."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group tests for pytest-xdist: a file's tests share a worker, and so do all that need an engine.

    Two workers can each have a cluster of their own. An engine is shared, because it takes seconds
    to start and mounts the machine's control groups.
    """
    directory = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(directory):
            needs_engine = "engine_directory" in getattr(item, "fixturenames", ())
            item.add_marker(pytest.mark.xdist_group("engines" if needs_engine else item.path.stem))
