"""Options that a user hands to sbatch, with the sbatch and the controller of a real Slurm."""

from __future__ import annotations

import json
import re


def test_sbatch_takes_what_is_handed_to_it(cluster, toolkit, shared_dir):
    del cluster
    (shared_dir / "toolkit.toml").write_text('[slurm]\nnice = 3\nwckey = "mine"\n')
    given = "nice=5 begin=now+1hour mail-user=me@site mail-type=FAIL contiguous".split()
    options = [word for option in given for word in ("--slurm", option)]
    words = "run --detach --json --runtime none --launcher none --gpus 2".split()
    done = toolkit(*words, *options, "--", "true", cwd=shared_dir)
    assert done.returncode == 0, done.stderr
    job_id = str(json.loads(done.stdout)["job_id"])
    shown = toolkit("cluster", "exec", "--", "scontrol", "show", "job", job_id).stdout
    assert toolkit("cancel", job_id, cwd=shared_dir).returncode == 0
    assert "Nice=5" in shown, "the command line goes before toolkit.toml"
    for said in ("Reason=BeginTime", "MailUser=me@site", "Contiguous=1"):
        assert said in shown
    assert re.search("TresPerNode=gres[:/]gpu:2\n", shown)
    assert "#SBATCH --wckey=mine\n" in (shared_dir / "runs/true-0001/job.sbatch").read_text()
