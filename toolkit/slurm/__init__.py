"""Slurm's commands and the parsing of their output."""

from __future__ import annotations

# Version -> how it was tested. All of tests/cluster ran with these, on the Debian release that
# `make test-slurm` names; of the others, built from their sources, the answers of the commands are
# examples for the tests (tests/golden/slurm), and tests/cluster/test_slurm_client.py ran.
TESTED = {
    **dict.fromkeys(("22.05", "24.11", "26.05"), "tested with all tests"),
    **dict.fromkeys(("23.02", "23.11", "24.05", "25.05", "25.11"), "tested: the commands for jobs"),
}
