"""policy-rc.d, which keeps daemons from starting while packages are installed, and what apt says."""

from __future__ import annotations

import pytest

from toolkit.hostsetup import install


def test_policy_is_written_and_taken_away(tmp_path):
    policy = tmp_path / "policy-rc.d"
    with install.prevented_from_starting(policy):
        assert policy.stat().st_mode & 0o777 == 0o755
        assert policy.read_text().endswith("exit 101\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_policy_that_was_there_comes_back_whatever_happens(tmp_path, failure):
    policy = tmp_path / "policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 0\n")
    policy.chmod(0o750)
    with pytest.raises(failure), install.prevented_from_starting(policy):
        raise failure
    assert policy.read_text() == "#!/bin/sh\nexit 0\n"
    assert policy.stat().st_mode & 0o777 == 0o750
    assert list(tmp_path.iterdir()) == [policy]
