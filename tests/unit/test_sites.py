"""Sites as data: what is shipped can be read, extends works, and a site's comment rule finds what is wrong."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from toolkit import sites
from toolkit.cli.site import command
from toolkit.errors import ConfigError, UnknownSiteError
from toolkit.lint.linter import lint
from toolkit.lint.script import Context
from toolkit.model.case import Case
from toolkit.model.job import Job
from toolkit.model.site import CommentRule, Site
from toolkit.planning import case as gathering
from toolkit.preflight.rules.site_options import check_comment
from toolkit.sites.comment import problem
from toolkit.slurm import hostlist

SHIPPED = ("generic", "local", "neuron", "neuron-2022", "perlmutter-like")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    directory = tmp_path / "toolkit" / "sites"
    directory.mkdir(parents=True)
    return directory


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_shipped_says_its_own_name(name: str) -> None:
    assert sites.load(name).name == name


def test_neuron_is_as_its_guide_has_it() -> None:
    site = sites.load("neuron")
    partition = site.partitions["cas_v100_4"]
    assert isinstance(partition.nodes, str)
    assert (
        len(hostlist.expand(partition.nodes)),
        partition.gpus,
        partition.cpus,
        partition.gpus_per_user,
    ) == (11, 4, 40, 44)
    assert site.partitions["gh200_1"].arch == "aarch64"
    assert not site.partitions["jupyter"].batch
    assert site.submit_directory == "/scratch/$USER"
    assert "mem" in site.forbidden


def test_a_site_says_only_what_is_different(own: Path) -> None:
    (own / "mine.toml").write_text(
        'name = "mine"\nextends = "neuron"\nmax_minutes = 60\n[partitions.cas_v100_4]\ngpus = 2\n[datasets]\ndigits = "/data/digits"\n'
    )
    site = sites.load("mine")
    assert (site.name, site.max_minutes, site.submit_directory) == ("mine", 60, "/scratch/$USER")
    assert site.partitions["cas_v100_4"].gpus == 2
    assert site.partitions["amd_h100_2"].gpus == 2
    assert set(site.datasets) == {"imagenet", "digits"}


def test_circles_and_unknown_names_are_refused(own: Path) -> None:
    (own / "one.toml").write_text('name = "one"\nextends = "two"\n')
    (own / "two.toml").write_text('name = "two"\nextends = "one"\n')
    with pytest.raises(ConfigError, match="circle: one -> two -> one"):
        sites.load("one")
    (own / "three.toml").write_text('name = "three"\nextends = "neurn"\n')
    with pytest.raises(UnknownSiteError) as raised:
        sites.load("three")
    assert raised.value.close == "neuron"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("field=nlp;appl=pytorch", None),
        ("appl=pytorch;field=nlp", None),
        (None, "requires a comment"),
        ("", "requires a comment"),
        ("pytorch", "is not <key>=<value>"),
        ("field=nlp", "appl= is missing"),
        ("field=nlpp;appl=pytorch", "close: nlp"),
        ("field=nlp;appl=pytorch;x=y", "knows no 'x'"),
    ],
)
def test_a_comment_of_fields(value: str | None, said: str | None) -> None:
    rule = sites.load("neuron").comment
    assert rule is not None
    found = problem(rule, value)
    assert (found is None) if said is None else (found is not None and said in found)


def test_a_comment_of_one_word() -> None:
    rule = CommentRule(words=("pytorch", "etc"))
    assert problem(rule, "etc") is None
    assert problem(rule, "pytroch") == "'pytroch' is not among this site's comments; close: pytorch"
    assert problem(CommentRule(required=False, words=("etc",)), None) is None


@pytest.mark.parametrize(
    "rule",
    [
        CommentRule(words=("pytorch", "etc")),
        CommentRule(words=("two words; it's", "etc")),
        CommentRule(fields={"field": ("nlp", "cv"), "project": ()}),
        CommentRule(words=("pytorch", "etc"), example="jax"),  # breaks its own rule
        CommentRule(),
    ],
)
def test_the_comment_that_is_offered_passes_when_it_is_pasted(rule: CommentRule) -> None:
    site = Site(name="ours", comment=rule)
    (refused,) = check_comment(Case(job=Job(), site=site))
    _, value = shlex.split(refused.fix)
    assert problem(rule, value) is None
    (fault,) = lint("#!/bin/bash\n#SBATCH --nodes=1\nsrun true\n", Context(site=site))
    assert lint(f"#!/bin/bash\n{fault.fix}\nsrun true\n", Context(site=site)) == ()
    assert gathering._example_comment(site).values == {"comment": value}


def test_sites_are_listed_and_shown() -> None:
    listed = CliRunner().invoke(command, ["list", "--json"])
    assert {one["name"] for one in json.loads(listed.stdout)} >= set(SHIPPED)
    shown = CliRunner().invoke(command, ["show", "neuron"]).stdout
    for word in (
        "cas_v100_4",
        "gpu[10-20]",
        "field=misc;appl=pytorch-ddp",
        "ToBeDelete",
        "KISTI's Neuron guide",
        "2026-08",
    ):
        assert word in shown
    assert CliRunner().invoke(command, ["show", "neurn"]).exception.close == "neuron"  # type: ignore[union-attr]


def test_a_broken_site_has_a_row_and_the_others_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "toolkit" / "sites"
    folder.mkdir(parents=True)
    (folder / "broken.toml").write_text("name = \n")
    (folder / "circle.toml").write_text('name = "circle"\nextends = "circle"\n')
    (folder / "fine.toml").write_text('name = "fine"\nsummary = "ours"\n')
    listed = CliRunner().invoke(command, ["list"])
    assert listed.exit_code == 0, listed.output
    rows = {line.split()[0]: line for line in listed.stdout.splitlines()}
    assert {"fine", *SHIPPED} <= set(rows)
    assert "ours" in rows["fine"]
    assert "broken: this is not valid TOML" in rows["broken"]
    assert "toolkit site check circle" in rows["circle"]
    objects = json.loads(CliRunner().invoke(command, ["list", "--json"]).stdout)
    assert [each["name"] for each in objects if "error" in each] == ["broken", "circle"]


def test_a_site_counts_its_days_in_english() -> None:
    shown = CliRunner().invoke(command, ["show", "neuron"]).output
    assert "files unread for 15 days are removed" in shown
