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

from tests.cluster.ranks import wait_for
from toolkit import sites
from toolkit.model.case import Case, Host
from toolkit.model.job import Job
from toolkit.model.site import Facts, NodeFacts, Partition, Site, Use
from toolkit.rules import judge
from toolkit.slurm import cluster, parse

RIGHT: dict[str, Any] = {
    "partition": "cas_v100_4",
    "comment": "field=nlp;appl=pytorch",
    "nodes": 2,
    "gpus": 4,
    "time": "2:00:00",
}
V100 = "gpu10"  # the first node of cas_v100_4
# rule -> what breaks it, and what nearly does
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no comment": ({"comment": None}, {}),
    "comment of the old kind": ({"comment": "pytorch"}, {"comment": "field=cv;appl=r"}),
    "comment without appl": ({"comment": "field=nlp"}, {"comment": "appl=pytorch;field=nlp"}),
    "comment with another value": (
        {"comment": "field=nlpp;appl=pytorch"},
        {"comment": "field=misc;appl=misc"},
    ),
    "comment with another key": ({"comment": "field=nlp;appl=pytorch;x=y"}, {}),
    "memory": ({"mem": "1G"}, {"cpus_per_task": 2}),
    "GPUs of a node": ({"gpus": 5}, {"gpus": 4}),
    "nodes": ({"nodes": 3}, {"nodes": 2}),
    "CPUs": (
        {"ntasks_per_node": 1, "cpus_per_task": 41},
        {"ntasks_per_node": 1, "cpus_per_task": 40},
    ),
    "time": ({"time": "2-00:01:00"}, {"time": "2-00:00:00"}),
    "a partition without batch jobs": (
        {"partition": "jupyter", "gpus": 0, "nodes": 1},
        {"gpus": 0, "nodes": 1},
    ),
    "a node that is not there": ({"nodelist": "gpu99"}, {}),
    "a node of another partition": (
        {"nodelist": V100, "partition": "amd_h100_2", "nodes": 1, "gpus": 1},
        {"exclude": V100, "partition": "amd_h100_2", "nodes": 1, "gpus": 1},
    ),
    "an excluded node that is not there": ({"exclude": "gpu99"}, {}),
    "a feature that no node has": ({"constraint": "a100"}, {}),
}
CLUSTER = "rules"


class Place(NamedTuple):
    """The imitation: how the tool is called there, the site as the rules see it, and where jobs are taken from."""

    env: dict[str, str]
    site: Site
    directory: Path
    partitions: tuple[Partition, ...]
    nodes: dict[str, NodeFacts]


@pytest.fixture(scope="module")
def place(toolkit: Any, toolkit_env: dict[str, str], base: Path) -> Iterator[Place]:
    """A site of our own that is Neuron, but for the directory that jobs are taken from; and a local cluster like it."""
    directory, configured = base / "rules" / "scratch", base / "rules" / "config"
    directory.mkdir(parents=True)
    (configured / "toolkit/sites").mkdir(parents=True)
    text = f'name = "like-neuron"\nextends = "neuron"\nsubmit_directory = "{directory}"\n'
    (configured / "toolkit/sites/like-neuron.toml").write_text(text)
    env = {**toolkit_env, "TOOLKIT_CLUSTER": CLUSTER, "XDG_CONFIG_HOME": str(configured)}
    chosen = [
        word
        for name in ("cas_v100_4", "amd_h100_2", "gh200_1", "jupyter")
        for word in ("--partition", name)
    ]
    done = toolkit("cluster", "up", "--like", "like-neuron", *chosen, env=env)
    assert done.returncode == 0, done.stderr
    assert "cas_v100_4 2 of 11" in done.stderr
    said = toolkit(
        *"cluster exec -- sinfo --noheader --exact".split(),
        f"--format={parse.SINFO_FORMAT}",
        env=env,
    )
    nodes = toolkit(
        *"cluster exec -- sinfo --all --noheader --Node".split(),
        f"--format={parse.NODE_FORMAT}",
        env=env,
    )
    site = replace(sites.load("neuron"), name="like-neuron", submit_directory=str(directory))
    yield Place(env, site, directory, parse.partitions(said.stdout), parse.nodes(nodes.stdout))
    done = toolkit("cluster", "down", env=env)
    assert done.returncode == 0, done.stderr


def words(job: dict[str, Any]) -> list[str]:
    """The job as options of sbatch."""
    given = {**RIGHT, **job}
    rows = {key: value for key, value in given.items() if value is not None and key != "gpus"}
    rows |= {"gres": f"gpu:{given['gpus']}"} if given["gpus"] else {}
    return [f"--{key.replace('_', '-')}={value}" for key, value in rows.items()]


def refused_by_slurm(toolkit: Any, place: Place, jobs: list[list[str]]) -> list[str]:
    """What Slurm says against each of some jobs, in the words of its own client; "" for those that it takes. Nothing is submitted."""
    tests = "; ".join(
        f"sbatch --test-only --wrap=true {shlex.join(job)} 2>&1 && echo; echo {'-' * 9}"
        for job in jobs
    )
    said = toolkit(
        "cluster", "exec", "--", "bash", "-c", tests, cwd=place.directory, env=place.env
    ).stdout
    found = [cluster.start(text) for text in said.split("-" * 9 + "\n")[: len(jobs)]]
    return ["" if one.at else one.refused for one in found]


def stopped_by_rules(place: Place, job: dict[str, Any], **given: Any) -> list[str]:
    """What the rules say against a job, of that which stops it."""
    merged = Job(**{**RIGHT, **job})
    facts = Facts(partitions=place.partitions, nodes=place.nodes, mine=given.pop("mine", {}))
    case = Case(
        job=merged,
        site=place.site,
        facts=facts,
        **given,
    )
    return [error.cause for error in judge(case).errors]


def test_slurm_refuses_what_the_rules_do_and_takes_what_they_let_pass(
    toolkit: Any, place: Place
) -> None:
    bad, good = (
        [words(bad) for bad, _ in CASES.values()],
        [words(good) for _, good in CASES.values()],
    )
    said = refused_by_slurm(toolkit, place, [*bad, *good])
    slurm = {
        name: (bool(said[number]), bool(said[number + len(CASES)]))
        for number, name in enumerate(CASES)
    }
    ours = {
        name: (bool(stopped_by_rules(place, bad)), bool(stopped_by_rules(place, good)))
        for name, (bad, good) in CASES.items()
    }
    assert slurm == dict.fromkeys(CASES, (True, False)), said
    assert ours == slurm


def test_jobs_are_taken_from_one_directory(toolkit: Any, place: Place, shared_dir: Path) -> None:
    inside, beside = place.directory / "project", place.directory.with_name("scratch-of-another")
    for directory in (inside, beside):
        directory.mkdir(exist_ok=True)
    jobs = [[*words({}), f"--chdir={directory}"] for directory in (inside, beside, shared_dir)]
    said = refused_by_slurm(toolkit, place, jobs)
    assert [bool(one) for one in said] == [False, True, True], said
    assert f"jobs are taken from {place.directory} only" in said[2]
    assert stopped_by_rules(place, {}, host=Host(submit_from=str(place.directory)))


def test_a_user_may_have_so_many_jobs(toolkit: Any, place: Place) -> None:
    job = {"partition": "amd_h100_2", "nodes": 1, "gpus": 1}
    for number in range(2):
        assert refused_by_slurm(toolkit, place, [words(job)]) == [""]
        assert not stopped_by_rules(place, job, mine={"amd_h100_2": Use(submitted=number)})
        command = ("sbatch", "--hold", "--parsable", "--wrap=true", *words(job))
        assert (
            toolkit(
                "cluster", "exec", "--", *command, cwd=place.directory, env=place.env
            ).returncode
            == 0
        )
    # slurmctld tells its plugin of new jobs a second later.
    wait_for(
        lambda: (
            "one user may have 2 jobs in amd_h100_2"
            in refused_by_slurm(toolkit, place, [words(job)])[0]
        ),
        "the refusal",
    )
    options = (
        *"--partition amd_h100_2 --gpus 1 --comment".split(),
        RIGHT["comment"],
        *"--image none.sif --launcher none".split(),
    )
    dry = toolkit("run", "--dry-run", *options, "hostname", cwd=place.directory, env=place.env)
    assert (
        "one user may have 2 jobs in amd_h100_2; you have 2, and this would be 1 more (site like-neuron, 2026-08)"
        in dry.stderr
    )
    shown = json.loads(toolkit("cluster", "show", "--json", env=place.env).stdout)["partitions"]
    assert {one["queue"]["name"]: one["use"]["submitted"] for one in shown}["amd_h100_2"] == 2
    assert (
        toolkit("cluster", "exec", "--", "scancel", "--state=PENDING", env=place.env).returncode
        == 0
    )


def test_all_is_said_at_once_and_a_reason_forces_what_slurm_would_take(
    toolkit: Any, place: Place, pytorch_image: Path
) -> None:
    common = (
        "--image",
        str(pytorch_image),
        *"--launcher none --comment".split(),
        RIGHT["comment"],
        *"--partition gh200_1".split(),
    )
    refused = toolkit(
        "run",
        *common,
        *"--mem 1G --gpus 2 --time 3-0 hostname".split(),
        cwd=place.directory,
        env=place.env,
    )
    assert refused.returncode != 0
    for words_of_rule in (
        *"--mem --gpus --time".split(),
        "the nodes of gh200_1 are aarch64",
        "(KISTI's Neuron guide, 2026-08)",
        "(sinfo)",
    ):
        assert words_of_rule in refused.stderr
    assert not (place.directory / "runs").exists()
    told = json.loads(
        toolkit(
            "run", "--json", *common, "--mem", "1G", "hostname", cwd=place.directory, env=place.env
        ).stdout
    )
    assert [(one["place"], one["source"]) for one in told["findings"]] == [
        ("--mem", "KISTI's Neuron guide, 2026-08"),
        ("--image", "site like-neuron, 2026-08"),
    ]
    reason = "it is an imitation, whose nodes are this machine"
    forced = toolkit(
        "run", "--force", reason, *common, "hostname", cwd=place.directory, env=place.env
    )
    assert forced.returncode == 0, forced.stderr
    kept = json.loads((place.directory / "runs/hostname-0001/plan.json").read_text())["forced"]
    assert kept["reason"] == reason
    assert "aarch64" in kept["findings"][0]


def test_where_a_job_would_start_soonest(toolkit: Any, place: Place) -> None:
    shown = toolkit(
        *"cluster show --nodes 2 --gpus 4 --time 1:00:00 --json".split(),
        env=place.env,
        cwd=place.directory,
    )
    found = {one["queue"]["name"]: one for one in json.loads(shown.stdout)["partitions"]}
    assert found["cas_v100_4"]["start"]["at"]
    on_path = (
        *"cluster exec --".split(),
        sys.executable,
        *"-m toolkit cluster show --site generic --json".split(),
    )
    seen = json.loads(toolkit(*on_path, env=place.env, cwd=place.directory).stdout)["partitions"]
    assert [(one["queue"]["name"], one["gpus"]) for one in seen] == [
        (name, one["gpus"]) for name, one in found.items()
    ]
    assert "takes no batch jobs" in found["jupyter"]["start"]["refused"]
    assert found["amd_h100_2"]["start"]["at"] == ""
    assert (found["cas_v100_4"]["gpus_free"], found["cas_v100_4"]["limits"]["gpus"]) == (8, 44)


def test_a_site_is_made_from_the_live_cluster_and_compared_with_it(
    toolkit: Any, place: Place
) -> None:
    done = toolkit(
        *"site init made --probe --comment".split(),
        RIGHT["comment"],
        cwd=place.directory,
        env=place.env,
    )
    assert done.returncode == 0, done.stderr
    path = Path(place.env["XDG_CONFIG_HOME"]) / "toolkit/sites/made.toml"
    text = path.read_text()
    for line in (
        'nodes = "gpu[10-11]"',
        "gpus = 4",
        'gpu = "H100"',
        "max_minutes = 2880",
        'interface = "eth0"',
        "# ? [comment]",
    ):
        assert f"\n{line}" in text
    assert "the probe of jupyter failed" in text
    checked = toolkit("site", "check", "made", cwd=place.directory, env=place.env)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "nothing is wrong; compared with cluster rules" in checked.stdout
    path.write_text(
        text.replace("max_minutes = 2880", "max_minutes = 60", 1).replace(
            "[partitions.gh200_1]", "[partitions.gh200_2]"
        )
    )
    wrong = json.loads(
        toolkit("site", "check", str(path), "--json", cwd=place.directory, env=place.env).stdout
    )["found"]
    assert [
        one["key"] for one in wrong
    ] == "partitions.cas_v100_4.max_minutes partitions.gh200_2 partitions.gh200_1".split()


def test_with_accounting_slurm_itself_keeps_to_the_limits_of_users(
    toolkit: Any, toolkit_env: dict[str, str], shared_dir: Path
) -> None:
    env = {**toolkit_env, "TOOLKIT_CLUSTER": "limits"}
    up = toolkit(
        *"cluster up --like neuron --nodes 1 --partition amd_h100_2 --accounting".split(),
        env=env,
        timeout=300,
    )
    try:
        assert up.returncode == 0, up.stderr
        submit = shlex.join(
            [
                "sbatch",
                "--wrap=sleep 300",
                *"--gres=gpu:2 --partition=amd_h100_2".split(),
                f"--comment={RIGHT['comment']}",
            ]
        )
        said = toolkit(
            *"cluster exec -- bash -c".split(),
            f"{submit}; {submit}; {submit}",
            cwd=shared_dir,
            env=env,
        )
        assert (said.stdout.count("Submitted batch job"), said.returncode) == (2, 1)
        assert "QOSMaxSubmitJobPerUserLimit" in said.stderr
        shown = json.loads(toolkit("cluster", "show", "--json", env=env).stdout)["partitions"][0]
        assert shown["limits"] == {
            "jobs_submitted": 2,
            "jobs_running": 1,
            "gpus": 4,
            "source": "Slurm's QOS",
        }
        assert shown["use"]["submitted"] == 2
        options = (
            *"--site generic --gpus 2 --image none.sif --launcher none --comment".split(),
            RIGHT["comment"],
            "hostname",
        )
        inside = (
            *"cluster exec --".split(),
            sys.executable,
            *"-m toolkit run --dry-run".split(),
            *options,
        )
        told = toolkit(*inside, cwd=shared_dir, env=env).stderr
        assert (
            "one user may have 2 jobs in amd_h100_2; you have 2, and this would be 1 more (Slurm's QOS)"
            in told
        )
    finally:
        assert toolkit("cluster", "down", env=env).returncode == 0
