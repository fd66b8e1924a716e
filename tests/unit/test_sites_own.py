"""Sites of one's own: drafts from what a cluster tells, differences, the choice of a site, and the schema for editors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from tests.hostile import HOSTILE
from toolkit import sites
from toolkit.cli.site import command
from toolkit.errors import UsageError
from toolkit.model.base import from_toml
from toolkit.model.overview import ClusterNode, NodeProbe, Queue, Survey
from toolkit.model.site import CommentRule, Limits, OptionRule, Site, SitePartition
from toolkit.planning import layers
from toolkit.sites import chosen, compare, schema
from toolkit.sites.draft import draft
from toolkit.sites.survey import configuration, modules, parse_probe

FOUND = Survey(
    slurm="23.11.4",
    cluster="ada",
    plugins="lua",
    queues=(
        Queue(name="gpu", default=True, nodes="g[01-02]", max_minutes=1440),
        Queue(name="big.mem", nodes="b01"),
    ),
    nodes=(
        ClusterNode(
            name="g01",
            partitions=("gpu",),
            state="idle",
            cpus=64,
            memory=500000,
            gpus=4,
            gpu_type="a100",
            arch="x86_64",
        ),
        ClusterNode(
            name="g02",
            partitions=("gpu",),
            state="down",
            cpus=32,
            memory=250000,
            gpus=2,
            gpu_type="a100",
            arch="x86_64",
        ),
        ClusterNode(
            name="b01",
            partitions=("big.mem",),
            state="idle",
            cpus=128,
            memory=2000000,
            arch="aarch64",
        ),
    ),
    mpi=("none", "pmix"),
    modules=("apptainer/1.3.0", "cuda/12.4"),
    scratch="$SCRATCH",
    limits={"gpu": Limits(jobs_submitted=8, gpus=16, source="Slurm's QOS")},
    probes={
        "gpu": NodeProbe(
            host="g01", gpus=("NVIDIA A100-SXM4-80GB",) * 4, driver="550.54.15", interfaces=("ib0",)
        )
    },
)


def test_a_draft_says_what_was_found_and_asks_for_the_rest() -> None:
    text = draft("ours", FOUND, date="2026-11-21")
    site = from_toml(text, Site)
    assert (site.name, site.date, site.mpi, site.scratch) == (
        "ours",
        "2026-11",
        ("none", "pmix"),
        "$SCRATCH",
    )
    assert (site.interface, site.driver, site.modules) == ("ib0", "550.54.15", ("apptainer/1.3.0",))
    gpu = SitePartition(
        nodes="g[01-02]",
        cpus=64,
        memory=500000,
        gpus=4,
        gpu="NVIDIA A100-SXM4-80GB",
        jobs_submitted=8,
        gpus_per_user=16,
        max_minutes=1440,
    )
    assert site.partitions == {
        "gpu": gpu,
        "big.mem": SitePartition(nodes="b01", cpus=128, memory=2000000, arch="aarch64"),
    }
    for words in (
        "# of the largest; there are [2, 4]",
        "# ? jobs_running = 10",
        "# ? containers",
        "# ? submit_directory",
        "job_submit plugins (lua)",
    ):
        assert words in text
    assert compare.against(site, FOUND) == compare.within(site) == ()


def test_every_line_that_asks_can_be_uncommented() -> None:
    for found in (
        FOUND,
        Survey(),
        replace(
            FOUND,
            probes={"gpu": NodeProbe(problem="no node\nwas free")},
            modules=None,
            mpi=(),
            local=True,
        ),
    ):
        text = draft("ours", found, date="2026-11-21")
        from_toml(text, Site)
        from_toml(text.replace("# ? ", ""), Site)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_names(name: str) -> None:
    node = ClusterNode(name="g01", partitions=(name,), state="idle", cpus=1, gpus=1, gpu_type=name)
    found = Survey(
        cluster=name,
        queues=(Queue(name=name, nodes=name),),
        nodes=(node,),
        modules=(name,),
        probes={name: NodeProbe(problem=name)},
    )
    site = from_toml(draft("ours", found, date="2026-11-21"), Site)
    assert set(site.partitions) == {name}
    assert site.partitions[name].nodes == name


def test_differences_from_the_cluster() -> None:
    site = from_toml(draft("ours", FOUND, date="2026-11-21"), Site)
    gpu = site.partitions["gpu"]
    wrong = replace(
        site,
        mpi=("pmi2",),
        defaults={"partition": "gone"},
        modules=("singularity/3",),
        partitions={
            "gpu": replace(
                gpu,
                gpus=8,
                cpus=16,
                max_minutes=2880,
                jobs_submitted=9,
                nodes="g[01-03]",
                arch="aarch64",
            ),
            "gone": SitePartition(),
            "jupyter": SitePartition(batch=False),
        },
    )
    found = {one.key: one for one in compare.against(wrong, FOUND)}
    assert {key for key, one in found.items() if one.wrong} == {
        *("partitions.gone", "mpi", "modules"),
        "defaults.partition",
        *(
            f"partitions.gpu.{key}"
            for key in ("gpus", "cpus", "max_minutes", "jobs_submitted", "arch")
        ),
    }
    assert {key for key, one in found.items() if not one.wrong} == {
        "partitions.gpu.nodes",
        "partitions.big.mem",
    }
    assert found["partitions.gpu.max_minutes"].text == "1440 minutes in Slurm, 2880 in the file"


def test_what_a_site_says_against_itself() -> None:
    site = Site(
        name="x",
        comment=CommentRule(words=("a",), example="b"),
        required={"mem": OptionRule(why="w"), "oversubscribe": OptionRule(why="w")},
        forbidden={"mem": OptionRule(why="w")},
        partitions={"p": SitePartition(nodes="g[01")},
        defaults={"ndoes": 1, "partition": "mian"},
    )
    found = {one.key: one.wrong for one in compare.within(site)}
    assert found == {
        "comment.example": True,
        "required.mem": True,
        "required.oversubscribe": False,
        "partitions.p.nodes": True,
        "defaults.ndoes": True,
        "defaults.partition": True,
    }


@pytest.mark.parametrize("name", ["neuron", "neuron-2022", "perlmutter-like", "local", "generic"])
def test_shipped_sites_do_not_contradict_themselves(name: str) -> None:
    assert compare.within(sites.load(name)) == ()


def test_what_commands_say() -> None:
    assert modules(
        "/apps/modules:\ncuda/12.4(default)\ngcc/13.2 <L>\nsingularity/4.3.4\ndir/\n\n"
    ) == (*("cuda/12.4", "gcc/13.2"), "singularity/4.3.4")
    assert configuration(
        "ClusterName             = r5\nJobSubmitPlugins        = (null)\nhead\nX = a=b\n"
    ) == {"ClusterName": "r5", "X": "a=b"}
    said = parse_probe(
        "host g01\ngpu 550.54.15, NVIDIA A100\ngpu 550.54.15, NVIDIA A100\ninterface ib0\ninterface eth0@if3\n"
    )
    assert said == NodeProbe(
        host="g01", gpus=("NVIDIA A100",) * 2, driver="550.54.15", interfaces=("ib0", "eth0")
    )
    assert parse_probe("host g01\n") == NodeProbe(host="g01")


def test_the_choice_of_a_site_leaves_all_else_as_it_was() -> None:
    before = '# mine\nsite= "old"\nnodes = 2\n[registries]\nsite = "x"\n'
    assert chosen(before, "new") == 'site = "new"\n# mine\nnodes = 2\n[registries]\nsite = "x"\n'
    assert chosen(chosen(before, "new"), None) == '# mine\nnodes = 2\n[registries]\nsite = "x"\n'
    assert chosen("", "a") == 'site = "a"\n'


def test_a_site_is_used_until_a_project_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("TOOLKIT_SITE", raising=False)
    assert layers.chosen_site(tmp_path) == "auto"
    assert CliRunner().invoke(command, ["use", "neuron"]).exit_code == 0
    assert layers.chosen_site(tmp_path) == "neuron"
    (tmp_path / "toolkit.toml").write_text('site = "generic"\n')
    assert layers.chosen_site(tmp_path / "below") == "generic"
    (tmp_path / "toolkit.toml").unlink()
    assert CliRunner().invoke(command, ["use", "auto"]).exit_code == 0
    assert layers.chosen_site(tmp_path) == "auto"
    assert CliRunner().invoke(command, ["use", "nueron"]).exception.close == "neuron"  # type: ignore[union-attr]


def test_a_site_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "toolkit/sites").mkdir(parents=True)
    (tmp_path / "toolkit/sites/ours.toml").write_text('name = "ours"\n')
    assert isinstance(CliRunner().invoke(command, ["init", "ours"]).exception, UsageError)
    for name in ("../x", "auto", "a b", ""):
        assert isinstance(CliRunner().invoke(command, ["init", name]).exception, UsageError)


def test_the_schema_that_is_shipped_is_of_these_models() -> None:
    assert schema.shipped() == schema.text(), (
        "renew it: toolkit site schema >toolkit/sites/site.schema.json"
    )
    definitions = json.loads(schema.shipped())["$defs"]
    assert definitions["Site"]["properties"]["purge_days"]["description"].startswith(
        "files of `submit_directory`"
    )
    assert (
        definitions["SitePartition"]["properties"]["jobs_running"]["description"]
        == "limits for one user."
    )
    assert definitions["Site"]["additionalProperties"] is False
