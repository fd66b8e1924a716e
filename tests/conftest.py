"""Fixtures for every test live beside what they are about; here they are only named."""

from __future__ import annotations

import signal

import pytest

pytest_plugins = [
    "tests.cluster.image_fixtures",
    "tests.cluster.engine_fixtures",
    "tests.cluster.docked_fixtures",
    "tests.cluster.podman_fixtures",
    "tests.cluster.runtime_fixtures",
    "tests.cluster.standins",
]
pytest.register_assert_rewrite("tests.cluster.contained")  # no fixtures, but what several tests assert

# A shell that starts us in the background has us ignore Ctrl-C, and so would everything that the tests start and send it to.
signal.signal(signal.SIGINT, signal.default_int_handler)
