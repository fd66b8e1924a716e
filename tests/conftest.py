"""Fixtures for every test live beside what they are about; here they are only named."""

from __future__ import annotations

pytest_plugins = [
    "tests.cluster.image_fixtures",
    "tests.cluster.engine_fixtures",
    "tests.cluster.docked_fixtures",
    "tests.cluster.runtime_fixtures",
    "tests.cluster.standins",
]
