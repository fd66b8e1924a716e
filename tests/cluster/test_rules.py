"""What the rules refuse, real Slurm refuses; and it takes the nearest job that the rules let pass. On a local cluster like Neuron.

One table for both: each case is a job that breaks one rule, and the same job with the fault mended.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from tests.unit.run_fixtures import Slurm
from toolkit import sites
from toolkit.model.case import Case
from toolkit.model.job import Job
from toolkit.model.site import Facts, Site
from toolkit.rules import judge
from toolkit.slurm import cluster, parse

RIGHT: dict[str, Any] = {
    "partition": "cas_v100_4",
    "comment": "field=nlp;appl=pytorch",
    "nodes": 2,
    "gpus": 4,
    "time": "2:00:00",
}
# rule -> what breaks it, and what nearly does
JUPYTER = {"partition": "jupyter", "gpus": 0, "nodes": 1}
H100 = {"partition": "amd_h100_2", "nodes": 1, "gpus": 1}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no comment": ({"comment": None}, {}),
    "comment of the old kind": ({"comment": "pytorch"}, {"comment": "field=cv;appl=r"}),
    "comment without appl": ({"comment": "field=nlp"}, {"comment": "appl=pytorch;field=nlp"}),
    "comment with another value": ({"comment": "field=nlpp;appl=pytorch"}, {"comment": "field=misc;appl=misc"}),
    "comment with another key": ({"comment": "field=nlp;appl=pytorch;x=y"}, {}),
    "memory": ({"mem": "1G"}, {"cpus_per_task": 2}),
    "GPUs of a node": ({"gpus": 5}, {"gpus": 4}),
    "nodes": ({"nodes": 3}, {"nodes": 2}),
    "CPUs": ({"ntasks_per_node": 1, "cpus_per_task": 41}, {"ntasks_per_node": 1, "cpus_per_task": 40}),
    "time": ({"time": "2-00:01:00"}, {"time": "2-00:00:00"}),
    "a partition without batch jobs": (JUPYTER, {"gpus": 0, "nodes": 1}),
}  # fmt: skip
CLUSTER = "rules"


class Place(NamedTuple):
    """The imitation: how the tool is called there, the site as the rules see it, and where jobs are taken from."""

    toolkit: Any
    env: dict[str, str]
    site: Site
    directory: Path
    facts: Facts = Facts()

    def do(self, text: str, *words: str) -> Any:
        return self.toolkit(*text.split(), *words, cwd=self.directory, env=self.env)

    def stopped(self, job: dict[str, Any]) -> list[str]:
        """Return what the rules say against a job, of that which stops it."""
        judged = judge(Case(Job(**{**RIGHT, **job}), self.site, facts=self.facts))
        return [finding.cause for finding in judged if not finding.is_warning]

    def refused(self, *jobs: list[str]) -> list[str]:
        """Return what Slurm says against each job, by its own client; "" if it takes it. Nothing is submitted."""
        ask = "sbatch --test-only --wrap=true {} 2>&1 && echo; echo ---------"
        line = "; ".join(ask.format(shlex.join(job)) for job in jobs)
        texts = self.do("cluster exec -- bash -c", line).stdout.split("---------\n")
        found = [cluster.start(text) for text in texts[: len(jobs)]]
        return ["" if one.at else one.refused for one in found]


@pytest.fixture(scope="module")
def place(toolkit: Any, toolkit_env: dict[str, str], base: Path) -> Iterator[Place]:
    """A site of our own that is Neuron, but for the directory that jobs are taken from; and a local cluster like it."""
    directory, configured = base / "rules" / "scratch", base / "rules" / "config"
    directory.mkdir(parents=True)
    (configured / "toolkit/sites").mkdir(parents=True)
    text = f'name = "like-neuron"\nextends = "neuron"\nsubmit_directory = "{directory}"\n'
    (configured / "toolkit/sites/like-neuron.toml").write_text(text)
    env = {**toolkit_env, "TOOLKIT_CLUSTER": CLUSTER, "XDG_CONFIG_HOME": str(configured)}
    site = replace(sites.load("neuron"), name="like-neuron", submit_directory=str(directory))
    place = Place(toolkit, env, site, directory)
    chosen = "--partition cas_v100_4 --partition amd_h100_2 --partition gh200_1 --partition jupyter"
    done = place.do(f"cluster up --like like-neuron {chosen}")
    assert done.returncode == 0, done.stderr
    said = place.do("cluster exec -- sinfo --noheader --exact", f"--format={parse.SINFO_FORMAT}")
    yield place._replace(facts=Facts(partitions=Slurm(sinfo=said.stdout).partitions()))
    done = place.do("cluster down")
    assert done.returncode == 0, done.stderr


def words(job: dict[str, Any]) -> list[str]:
    """Return the job as options of sbatch."""
    given = {**RIGHT, **job}
    rows = {key: value for key, value in given.items() if value is not None and key != "gpus"}
    rows |= {"gres": f"gpu:{given['gpus']}"} if given["gpus"] else {}
    return [f"--{key.replace('_', '-')}={value}" for key, value in rows.items()]


def test_slurm_refuses_what_the_rules_do_and_takes_what_they_let_pass(place):
    said = place.refused(*(words(job) for pair in CASES.values() for job in pair))
    pairs = zip(map(bool, said[::2]), map(bool, said[1::2]), strict=True)
    slurm = dict(zip(CASES, pairs, strict=True))
    ours = {name: tuple(bool(place.stopped(job)) for job in pair) for name, pair in CASES.items()}
    assert slurm == dict.fromkeys(CASES, (True, False)), said
    assert ours == slurm


def test_a_site_is_made_from_the_live_cluster_and_compared_with_it(place):
    done = place.do("site init made --probe --comment", RIGHT["comment"])
    assert done.returncode == 0, done.stderr
    path = Path(place.env["XDG_CONFIG_HOME"]) / "toolkit/sites/made.toml"
    text = path.read_text()
    lines = ('nodes = "gpu[10-11]"', "gpus = 4", 'gpu = "H100"', "max_minutes = 2880")
    for line in (*lines, 'interface = "eth0"', "# ? [comment]"):
        assert f"\n{line}" in text
    assert "the probe of jupyter failed" in text
    checked = place.do("site check made")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "nothing is wrong; compared with cluster rules" in checked.stdout
    shorter = text.replace("max_minutes = 2880", "max_minutes = 60", 1)
    path.write_text(shorter.replace("[partitions.gh200_1]", "[partitions.gh200_2]"))
    wrong = json.loads(place.do("site check --json", str(path)).stdout)["found"]
    keys = "partitions.cas_v100_4.max_minutes partitions.gh200_2 partitions.gh200_1"
    assert [one["key"] for one in wrong] == keys.split()


LIMITED = """\
accounting = true
extra = ["AccountingStorageEnforce=associations,limits,qos"]
nodes = [{ names = "gpu57", cpus = 64, memory = 256000, gpus = 8, gpu_type = "H100" }]
partitions = [{ name = "amd_h100_2" }]
"""
LIMITS = """
add="sacctmgr --immediate --quiet add"
$add account users && $add user "$(id -un)" Account=users &&
$add qos two MaxSubmitJobsPerUser=2 MaxJobsPerUser=1 MaxTRESPerUser=gres/gpu=4 &&
scontrol update PartitionName=amd_h100_2 QOS=two
"""


def test_limits_of_users_that_slurm_has_are_shown_and_kept_to(toolkit, toolkit_env, shared_dir):
    place = Place(toolkit, {**toolkit_env, "TOOLKIT_CLUSTER": "limits"}, Site(name="x"), shared_dir)
    shape = shared_dir / "limited.toml"
    shape.write_text(LIMITED)
    up = toolkit("cluster", "up", "--shape", str(shape), env=place.env, timeout=300)
    try:
        assert up.returncode == 0, up.stderr
        assert place.do("cluster exec -- bash -c", LIMITS).returncode == 0
        job = words({**H100, "gpus": 2, "time": None})
        submit = shlex.join(["sbatch", "--wrap=sleep 300", *job])
        said = place.do("cluster exec -- bash -c", f"{submit}; {submit}; {submit}")
        assert (said.stdout.count("Submitted batch job"), said.returncode) == (2, 1)
        assert "QOSMaxSubmitJobPerUserLimit" in said.stderr
        shown = json.loads(place.do("cluster show --json").stdout)["partitions"][0]
        limits = {"jobs_submitted": 2, "jobs_running": 1, "gpus": 4, "source": "Slurm's QOS"}
        assert (shown["limits"], shown["use"]["submitted"]) == (limits, 2)
        run = "-m toolkit run --dry-run --site generic --gpus 2 --image none.sif --launcher none"
        comment = ("--comment", RIGHT["comment"], "hostname")
        told = place.do("cluster exec --", sys.executable, *run.split(), *comment).stderr
        full = "one user may have 2 jobs in amd_h100_2; you have 2, and this would be 1 more"
        assert f"{full} (Slurm's QOS)" in told
    finally:
        assert place.do("cluster down").returncode == 0
