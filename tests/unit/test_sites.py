"""Site files: what is shipped can be read, rules find what is wrong, and a cluster's answers become a draft."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from tests.hostile import HOSTILE
from toolkit import sites
from toolkit.cli.groups import site as command
from toolkit.errors import ConfigError, UnknownSiteError, UsageError
from toolkit.lint.linter import lint
from toolkit.lint.script import Context
from toolkit.model.base import from_toml
from toolkit.model.case import Case
from toolkit.model.job import Job
from toolkit.model.site import (
    ClusterNode,
    CommentRule,
    Limits,
    OptionRule,
    Partition,
    Site,
    SitePartition,
)
from toolkit.rules.job import comment
from toolkit.sites import comment_problem
from toolkit.sites import survey as compare
from toolkit.sites.survey import NodeProbe, Survey, configuration, draft, modules, parse_probe
from tools.docs.schemas import schemas

SHIPPED = ("generic", "local", "neuron", "neuron-2022", "perlmutter-like")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the user's own site files."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("TOOLKIT_SITE", raising=False)
    directory = tmp_path / "config" / "toolkit" / "sites"
    directory.mkdir(parents=True)
    return directory


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_site_has_its_name_and_does_not_contradict_itself(name):
    assert sites.load(name).name == name
    assert [*compare.within(sites.load(name))] == []


def test_circles_and_unknown_names_are_refused(own):
    (own / "one.toml").write_text('name = "one"\nextends = "two"\n')
    (own / "two.toml").write_text('name = "two"\nextends = "one"\n')
    with pytest.raises(ConfigError, match="circle: one -> two -> one"):
        sites.load("one")
    (own / "three.toml").write_text('name = "three"\nextends = "neurn"\n')
    with pytest.raises(UnknownSiteError) as raised:
        sites.load("three")
    assert raised.value.close == "neuron"


FIELDS = CommentRule(fields={"field": ("nlp", "cv"), "appl": ("pytorch", "etc")})
WORDS = CommentRule(words=("pytorch", "etc"))


@pytest.mark.parametrize(
    ("rule", "value", "problem"),
    [
        (FIELDS, "field=nlp;appl=pytorch", ""),
        (FIELDS, None, "requires a comment"),
        (FIELDS, "pytorch", "is not <key>=<value>"),
        (FIELDS, "field=nlp", "appl= is missing"),
        (FIELDS, "field=nlpp;appl=pytorch", "close: nlp"),
        (FIELDS, "field=nlp;appl=pytorch;x=y", "'x' is no key"),
        (CommentRule(required=False, words=("etc",)), None, ""),
        (WORDS, "pytroch", "'pytroch' is not among this site's comments; close: pytorch"),
    ],
)
def test_a_comment_is_held_to_the_rule(rule, value, problem):
    given = comment_problem(rule, value) or ""
    assert problem in given
    assert bool(given) == bool(problem)


@pytest.mark.parametrize(
    "rule",
    [
        CommentRule(words=("two words; it's", "etc")),
        CommentRule(fields={"field": ("nlp", "cv"), "project": ()}),
        CommentRule(words=("pytorch", "etc"), example="jax"),  # breaks its own rule
    ],
)
def test_the_comment_that_is_offered_passes_when_it_is_pasted(rule):
    site = Site(name="ours", comment=rule)
    (refused,) = comment(Case(job=Job(), site=site))
    _, value = shlex.split(refused.advice)
    assert comment_problem(rule, value) is None
    (fault,) = lint("#!/bin/bash\n#SBATCH --nodes=1\nsrun true\n", Context(site=site))
    assert lint(f"#!/bin/bash\n#SBATCH {fault.fix}\nsrun true\n", Context(site=site)) == ()


def test_a_site_is_shown_with_its_sources():
    shown = CliRunner().invoke(command, ["show", "neuron"]).stdout
    for word in ("cas_v100_4", "gpu[10-20]", "field=misc;appl=pytorch-ddp", "ToBeDelete"):
        assert word in shown
    for word in ("KISTI's Neuron guide", "2026-08", "files unread for 15 days are removed"):
        assert word in shown


def test_a_broken_site_has_a_row_and_the_others_are_listed(own):
    (own / "broken.toml").write_text("name = \n")
    (own / "circle.toml").write_text('name = "circle"\nextends = "circle"\n')
    (own / "fine.toml").write_text('name = "fine"\nsummary = "ours"\n')
    listed = CliRunner().invoke(command, ["list"])
    assert listed.exit_code == 0, listed.output
    rows = {line.split()[0]: line for line in listed.stdout.splitlines()}
    assert "ours" in rows["fine"]
    assert "broken: this is not valid TOML" in rows["broken"]
    assert "toolkit site check circle" in rows["circle"]
    objects = json.loads(CliRunner().invoke(command, ["list", "--json"]).stdout)
    assert [each["name"] for each in objects if "error" in each] == ["broken", "circle"]
    assert {one["name"] for one in objects} >= {"fine", *SHIPPED}


_GPU = ClusterNode(name="g01", partitions=("gpu",), state="idle", cpus=64, memory=500000, gpus=4, gpu_type="a100", arch="x86_64")  # fmt: skip
_BIG = ClusterNode(name="b01", partitions=("big.mem",), state="idle", cpus=128, arch="aarch64")
FOUND = Survey(
    slurm="23.11.4",
    cluster="ada",
    plugins="lua",
    partitions=(
        Partition(name="gpu", default=True, hosts="g[01-02]", max_minutes=1440),
        Partition(name="big.mem", hosts="b01"),
    ),
    nodes=(_GPU, replace(_GPU, name="g02", cpus=32, memory=250000, gpus=2), _BIG),
    mpi=("none", "pmix"),
    modules=("apptainer/1.3.0", "cuda/12.4"),
    scratch="$SCRATCH",
    limits={"gpu": Limits(jobs_submitted=8, gpus=16, source="Slurm's QOS")},
    probes={"gpu": NodeProbe(gpus=("NVIDIA A100",) * 4, driver="550.54.15", interfaces=("ib0",))},
)
GPU_PARTITION = SitePartition(
    nodes="g[01-02]",
    cpus=64,
    memory=500000,
    gpus=4,
    gpu="NVIDIA A100",
    jobs_submitted=8,
    gpus_per_user=16,
    max_minutes=1440,
)


def drafted(survey: Survey = FOUND) -> Site:
    return from_toml(draft("ours", survey, date="2026-11-21"), Site)


def test_a_draft_says_what_was_found_and_asks_for_the_rest():
    text, site = draft("ours", FOUND, date="2026-11-21"), drafted()
    assert site == Site(
        name="ours",
        summary="ada, Slurm 23.11.4",
        date="2026-11",
        mpi=("none", "pmix"),
        scratch="$SCRATCH",
        interface="ib0",
        driver="550.54.15",
        modules=("apptainer/1.3.0",),
        available_modules=("apptainer/1.3.0", "cuda/12.4"),
        partitions={
            "gpu": GPU_PARTITION,
            "big.mem": SitePartition(nodes="b01", cpus=128, memory=0, arch="aarch64"),
        },
    )
    for words in ("# of the largest; there are [2, 4]", "# ? jobs_running = 10", "# ? containers"):
        assert words in text
    assert "# ? submit_directory" in text
    assert "job_submit plugins (lua)" in text
    assert [*compare.against(site, FOUND), *compare.within(site)] == []


_FAILED = {"gpu": NodeProbe(problem="no node\nwas free")}


@pytest.mark.parametrize(
    "survey", [FOUND, Survey(), replace(FOUND, probes=_FAILED, modules=None, mpi=(), local=True)]
)
def test_every_line_that_asks_can_be_uncommented(survey):
    text = draft("ours", survey, date="2026-11-21")
    from_toml(text, Site)
    from_toml(text.replace("# ? ", ""), Site)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_names(name):
    node = ClusterNode(name="g01", partitions=(name,), state="idle", cpus=1, gpus=1, gpu_type=name)
    partition = Partition(name=name, hosts=name)
    names = {"cluster": name, "modules": (name,), "probes": {name: NodeProbe(problem=name)}}
    partitions = drafted(Survey(partitions=(partition,), nodes=(node,), **names)).partitions
    assert set(partitions) == {name}
    assert partitions[name].nodes == name


def test_differences_from_the_cluster():
    wrong = {"gpus": 8, "cpus": 16, "max_minutes": 2880, "jobs_submitted": 9, "arch": "aarch64"}
    written = replace(
        drafted(),
        mpi=("pmi2",),
        defaults={"partition": "gone"},
        modules=("singularity/3",),
        partitions={
            "gpu": replace(GPU_PARTITION, nodes="g[01-03]", **wrong),
            "gone": SitePartition(),
            "jupyter": SitePartition(batch=False),
        },
    )
    found = {one.key: one for one in compare.against(written, FOUND)}
    assert {key: one.wrong for key, one in found.items()} == {
        **dict.fromkeys(("partitions.gone", "mpi", "modules", "defaults.partition"), True),
        **dict.fromkeys((f"partitions.gpu.{key}" for key in wrong), True),
        **dict.fromkeys(("partitions.gpu.nodes", "partitions.big.mem"), False),
    }
    assert found["partitions.gpu.max_minutes"].text == "1440 in Slurm, 2880 in the file"


def test_what_a_site_says_against_itself():
    site = Site(
        name="x",
        comment=CommentRule(words=("a",), example="b"),
        required={"mem": OptionRule(why="w")},
        forbidden={"mem": OptionRule(why="w")},
        partitions={"p": SitePartition(nodes="g[01")},
        defaults={"ndoes": 1, "partition": "mian"},
    )
    keys = "comment.example required.mem partitions.p.nodes defaults.ndoes defaults.partition"
    assert {one.key: one.wrong for one in compare.within(site)} == dict.fromkeys(keys.split(), True)


def test_what_commands_say():
    listed = "/apps/modules:\ncuda/12.4(default)\ngcc/13.2 <L>\nsingularity/4.3.4\ndir/\n\n"
    assert modules(listed) == ("cuda/12.4", "gcc/13.2", "singularity/4.3.4")
    config = "ClusterName             = r5\nJobSubmitPlugins        = (null)\nhead\nX = a=b\n"
    assert configuration(config) == {"ClusterName": "r5", "X": "a=b"}
    printed = "gpu 550.54.15, NVIDIA A100\n" * 2 + "interface ib0\ninterface eth0@if3\n"
    gpus = ("NVIDIA A100",) * 2
    probe = NodeProbe(gpus=gpus, driver="550.54.15", interfaces=("ib0", "eth0"))
    assert parse_probe(printed) == probe
    assert parse_probe("") == NodeProbe()


@pytest.mark.parametrize("name", ["ours", "../x", "auto", "a b", ""])
def test_a_site_is_not_written_over_nor_beside(name, own):
    (own / "ours.toml").write_text('name = "ours"\n')
    refused = CliRunner().invoke(command, ["init", name])
    is_there = isinstance(refused.exception, UsageError)
    assert is_there == (name == "ours")
    assert is_there or "is not a name for a site" in refused.output


def test_the_schema_that_is_shipped_is_of_these_models():
    for path, text in schemas().items():
        assert path.read_text(encoding="utf-8") == text, "python -m tools.docs schemas renews it"
        assert r"\\Z" not in text, "editors take a pattern for one of JavaScript, which has no such"
