"""What counts as a Slurm of the machine's own, beside which none is installed."""

from __future__ import annotations

import pytest

from toolkit.hostsetup.facts import beside, own_slurm

SITE = "/opt/slurm/bin/sbatch"


@pytest.mark.parametrize(
    ("sbatch", "from_debian", "configured", "found"),
    [
        (None, False, False, None),
        (None, True, False, None),
        (SITE, False, False, SITE),
        (SITE, False, True, SITE),
        ("/usr/bin/sbatch", True, False, None),  # installed for the local cluster
        ("/usr/bin/sbatch", True, True, "/usr/bin/sbatch"),
    ],
)
def test_whose_slurm_it_is(
    sbatch: str | None, from_debian: bool, configured: bool, found: str | None
) -> None:
    assert own_slurm(sbatch, from_debian=from_debian, configured=configured) == found


def test_beside_it_only_what_is_not_slurm_is_missing() -> None:
    needed = ("libpmix-dev", "munge", "slurm-wlm-basic-plugins", "slurmctld", "slurmdbd")
    assert beside(needed, SITE) == ("libpmix-dev", "munge")
    assert beside(needed, None) == needed
