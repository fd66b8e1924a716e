"""What lint says that sbatch refuses, the real sbatch refuses; and it takes the nearest script without the fault."""

from __future__ import annotations

import pytest

from tools.docs.lint_cases import CASES

pytestmark = pytest.mark.usefixtures("cluster")


def test_sbatch_refuses_what_lint_says_it_does(toolkit, shared_dir):
    cases = [case for case in CASES if case.refused]
    for number, case in enumerate(cases):
        (shared_dir / f"{number:02}-bad").write_text(case.bad, newline="")
        (shared_dir / f"{number:02}-good").write_text(case.good, newline="")
    loop = 'for file in *; do if sbatch --test-only "$file" >/dev/null 2>&1; then echo "$file taken"; else echo "$file refused"; fi; done'
    said = toolkit("cluster", "exec", "--", "bash", "-c", loop, cwd=shared_dir).stdout.split("\n")
    wanted = [
        line
        for number in range(len(cases))
        for line in (f"{number:02}-bad refused", f"{number:02}-good taken")
    ]
    assert [line for line in said if line] == wanted


def test_what_lint_mends_is_submitted_and_runs(toolkit, shared_dir):
    script = shared_dir / "job.sbatch"
    script.write_text(
        "#!/bin/bash\n#SBATCH –nodes=2\n#SBATCH --ntasks_per_node=1\nmodule() { :; }\nsrun --label hostname\n#SBATCH -o out\n"
    )
    assert toolkit("cluster", "exec", "--", "sbatch", "job.sbatch", cwd=shared_dir).returncode != 0
    assert toolkit("lint", "--fix", "job.sbatch", cwd=shared_dir).returncode == 0
    done = toolkit("cluster", "exec", "--", "sbatch", "--wait", "job.sbatch", cwd=shared_dir)
    assert done.returncode == 0, done.stderr
    assert sorted((shared_dir / "out").read_text().split()) == ["0:", "1:", "nid001", "nid002"]
