"""The versions of Slurm that the toolkit was tested with. Pure."""

from __future__ import annotations

from toolkit.units import numbers

# All of tests/cluster ran with these, on the Debian release behind it (`make test-slurm
# SUITE=...`).
SUITE = {"22.05": "bookworm", "24.11": "trixie", "26.05": "sid"}
# Of these, built from their sources, the answers of the commands are examples for the tests
# (tests/golden/slurm), and the tests of the client ran (tests/cluster/test_slurm_client.py).
ANSWERS = ("23.02", "23.11", "24.05", "25.05", "25.11")


def is_tested(version: str) -> bool:
    """Return whether a version such as ``24.11.5`` was tested."""
    return _release(version) in (*SUITE, *ANSWERS)


def describe(version: str) -> str:
    """Describe how a version was tested."""
    release = _release(version)
    if release in SUITE:
        return "tested with all tests"
    if release in ANSWERS:
        return "tested: the commands for jobs"
    return f"not tested; tested are {', '.join(sorted((*SUITE, *ANSWERS)))}"


def _release(version: str) -> str:
    """Return year and month: ``24.11`` of ``24.11.5``."""
    return ".".join(f"{number:02}" for number in numbers(version)[:2])
