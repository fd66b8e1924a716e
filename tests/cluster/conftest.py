"""The order of the tests of real programs.

The workers of pytest-xdist take file after file (`--dist loadfile`), so that a file's cluster or image
is made once. A long file that is begun last would keep one of them busy alone.
"""

from __future__ import annotations

import pytest

# The files that take longest, in this order.
_LONGEST = (
    "locked extended requeue_and_arrays run standins launchers launchers_mpi build verdicts explain "
    "other_users"
).split()
_RANK = {name: number for number, name in enumerate(_LONGEST)}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, and keep the order of all others."""
    items.sort(
        key=lambda item: _RANK.get(item.path.stem.replace("test_image_", "test_")[5:], len(_RANK))
    )
