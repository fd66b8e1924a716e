"""Settings: default < site < project < job < environment < flag, for each value, option of sbatch and variable."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from tests.unit.samples import make_case
from toolkit.cli.main import cli
from toolkit.cli.options import flags, job_options
from toolkit.cli.run import explanation
from toolkit.errors import ToolkitError, UsageError
from toolkit.model.base import from_toml
from toolkit.model.job import Job
from toolkit.planning import settings
from toolkit.planning.plan import decide
from toolkit.planning.settings import DEFAULTS, Layer, demands, from_environment, layer, merge


def test_each_layer_has_its_say_and_is_remembered():
    layers = [
        layer("default", DEFAULTS),
        Layer("site neuron", {"partition": "a", "comment": "site", "nodes": 2}),
        layer("toolkit.toml", Job(comment="project", nodes=3)),
        layer("job.toml", Job(nodes=4, gpus=1)),
        Layer("environment", {"nodes": 5}),
        Layer("flag", {"nodes": 6}),
    ]
    origins = (None, "site neuron", "toolkit.toml", "job.toml", "environment", "--nodes")
    for count, origin in enumerate(origins, 1):
        nodes = count if origin else None
        merged = merge(layers[:count])
        assert (merged.job.nodes, merged.origins.get("nodes")) == (nodes, origin)
    assert (merged.job.partition, merged.job.comment) == ("a", "project")
    assert merged.origins["gpus"] == "job.toml"


def test_precedence_holds_for_each_option_of_sbatch():
    layers = [
        Layer("site x", {"slurm": {"licenses": "site", "nice": 1, "hold": True, "wckey": "site"}}),
        layer("toolkit.toml", from_toml('[slurm]\nlicenses = "project"\nhold = false', Job)),
        layer("job.toml", from_toml('[slurm]\nlicenses = "job"\ntmp = "1G"', Job)),
        from_environment({"TOOLKIT_SLURM_LICENSES": "shell", "TOOLKIT_SLURM_CONTIGUOUS": "yes"}),
        flags({"slurm": ("nice=7", "mail-user=", "--tmp=2G")}, ()),
    ]
    merged = merge(layers)
    options = {"licenses": "shell", "nice": "7", "wckey": "site", "tmp": "2G", "mail-user": ""}
    assert merged.job.slurm == {**options, "contiguous": True}
    origins = [merged.origins[f"slurm {name}"] for name in ("licenses", "nice", "wckey")]
    assert origins == ["environment", "--slurm", "site x"]
    assert merge(layers[:3]).origins["slurm tmp"] == "job.toml"
    decided = decide(make_case({"slurm": merged.job.slurm}))
    table = explanation(replace(decided, origins={**decided.origins, **merged.origins}))
    assert re.search(r"(?m)^slurm wckey +site +site x$", table)


def test_arguments_and_binds_are_joined_and_variables_by_name():
    job = {"arguments": ("--epochs", "12"), "bind": ("/a:/a",), "env": {"A": "1", "B": "1"}}
    flag = {"arguments": ("--lr", "1"), "bind": ("/b:/b",), "env": {"B": "2"}}
    again = Layer("a repetition", {"bind": ("/b:/b", "/a:/a")})
    merged = merge([Layer("job.toml", job), Layer("flag", flag), again])
    assert merged.job.arguments == ("--epochs", "12", "--lr", "1")
    assert merged.job.bind == ("/a:/a", "/b:/b")
    assert merged.job.env == {"A": "1", "B": "2"}


@pytest.mark.parametrize(
    ("said", "ranks"),
    [({"gpus": "2,1"}, None), ({"gpus": "2"}, 2), ({"gpus": "2,1", "ntasks_per_node": 3}, 3)],
)
def test_gpus_of_each_node_say_how_many_ranks_it_starts_whatever_the_job_says_of_all(said, ranks):
    merged = merge([layer("job.toml", Job(ntasks_per_node=2)), Layer("flag", said)])
    assert merged.job.ntasks_per_node == ranks
    assert ("ntasks_per_node" in merged.origins) == (ranks is not None)


STRICT = {"require_signed": True, "signature_key": "/etc/site.pub", "nodes": 2}
MINE = {"require_signed": False, "signature_key": "mine.pub", "nodes": 3}


@pytest.mark.parametrize(
    ("site", "signed", "key"),
    [
        (STRICT, True, "/etc/site.pub"),
        ({"require_signed": True}, True, "mine.pub"),
        ({"require_signed": False, "signature_key": "/etc/site.pub"}, False, "mine.pub"),
        ({}, False, "mine.pub"),
    ],
)
@pytest.mark.parametrize("origin", ["toolkit.toml", "environment", "flag"])
def test_nobody_relaxes_what_a_site_demands(origin, site, signed, key):
    below = Layer("site x", site)
    merged = merge([layer("default", DEFAULTS), below, Layer(origin, MINE), demands(below)])
    job = merged.job
    assert (job.require_signed, job.signature_key, job.nodes) == (signed, key, 3)
    assert (merged.origins["require_signed"] == "site x") is signed


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        ("partition=long", "partition", "long"),
        ("exclusive", "exclusive", True),
        ("exclusive=user", "exclusive", "user"),
    ],
)
def test_an_option_with_a_flag_of_its_own_is_that_flag(given, key, value):
    merged = merge([Layer("job.toml", {key: "other"}), flags({"slurm": (given,)}, ())])
    assert getattr(merged.job, key) == value
    assert merged.origins[key] == f"--{key.replace('_', '-')}"
    assert merged.job.slurm == {}


def test_one_option_cannot_have_two_values():
    with pytest.raises(UsageError, match="contradicts"):
        merge([flags({"partition": "a", "slurm": ("partition=b",)}, ())])
    with pytest.raises(UsageError, match="given twice"):
        flags({"slurm": ("nice=1", "nice=2")}, ())


def variables(**values: str) -> Layer:
    return from_environment({f"TOOLKIT_{name}": value for name, value in values.items()})


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("NODES", "3", {"nodes": 3}),
        ("IMAGES", "/x", {}),
        ("BIND", "/a:/a '/b c:/b':ro", {"bind": ("/a:/a", "/b c:/b:ro")}),
        ("ENV", "A=1 'B=x y' C", {"env": {"A": "1", "B": "x y"}, "pass_env": ("C",)}),
        ("MODULE", "cuda/12 gcc", {"modules": ("cuda/12", "gcc")}),
        ("SLURM", "licenses=m:1 hold", {"slurm": {"licenses": "m:1", "hold": True}}),
    ],
)
def test_a_variable_is_a_setting_and_that_of_a_repeatable_option_is_words(name, text, values):
    assert variables(**{name: text}).values == values


@click.command()
@job_options
def job_command() -> None: ...


@pytest.mark.parametrize(
    "option", [name for option in job_command.params for name in option.opts if "--" in name]
)
def test_each_option_of_a_job_has_its_variable(option):
    assert "TOOLKIT_" + option.lstrip("-").upper().replace("-", "_") in settings.variables()


SWITCHES = ("REQUEUE", "SNAPSHOT", "REQUIRE_SIGNED", "PTY")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *((name, text) for name in SWITCHES for text in ("maybe", "2")),
        *[("NODES", "many"), ("NODES", "0"), ("GPUS", "-1")],
        ("BIND", "'/a:/a"),
        ("ENV", "=1"),
        ("SLURM", "licenses=a licenses=b"),
        ("INIT", "mpi"),
    ],
)
def test_a_variable_that_is_not_understood_is_refused_by_its_name(name, text):
    with pytest.raises(UsageError) as caught:
        variables(**{name: text})
    assert caught.value.place == f"TOOLKIT_{name}"
    step = f"TOOLKIT_{name}=on, or TOOLKIT_{name}=off"
    assert (caught.value.next_step == step) is (name in SWITCHES)


def test_every_variable_of_the_source_is_known():
    root = Path(settings.__file__).parents[2]
    files = [path for name in ("toolkit", "tests", "tools") for path in (root / name).rglob("*.*")]
    named = {
        name
        for path in files
        if path.suffix in (".py", ".j2", ".bashrc", ".toml") and path != Path(__file__)
        for name in re.findall(r"\bTOOLKIT_[A-Z_]*[A-Z]\b(?!\*)", path.read_text(errors="replace"))
    }
    assert {"TOOLKIT_TRUST", "TOOLKIT_TOKEN"} < named
    assert settings.unknown_variables(named) == []


def test_a_variable_that_means_nothing_is_warned_of_once_and_stdout_is_clean(monkeypatch):
    monkeypatch.setenv("TOOLKIT_IMAGE_STORE", "/x")
    done = CliRunner().invoke(cli, ["docs"])
    assert done.exit_code == 0
    assert done.stderr.count("TOOLKIT_IMAGE_STORE") == 1
    assert "TOOLKIT_IMAGE_STORE" not in done.stdout


@pytest.mark.parametrize("verb", ["logs", "explain", "cancel", "rm", "results", "top", "forward"])
def test_every_command_looks_for_runs_where_the_settings_put_them(verb, tmp_path, monkeypatch):
    def cause(*options: str) -> str:
        words = (verb, "nothing-0001", *(["8888"] if verb == "forward" else []), *options)
        return str(CliRunner().invoke(cli, words).exception)

    monkeypatch.chdir(tmp_path)
    (tmp_path / "toolkit.toml").write_text('runs = "kept"\n')
    assert "in the directory kept" in cause()
    monkeypatch.setenv("TOOLKIT_RUNS", "other")
    assert "in the directory other" in cause()
    assert "in the directory own" in cause("--runs", "own")


def passed(*names: str, **given: Any) -> tuple[Job, list[ToolkitError]]:
    return settings.with_variables(merge([Layer("below", given), flags({"env": names}, ())]).job)


def test_env_with_a_name_alone_passes_the_variable_on(monkeypatch):
    monkeypatch.setenv("OPTION_A", "line one\nline 'two'")
    monkeypatch.setenv("OPTION_EMPTY", "")
    monkeypatch.delenv("OPTION_B", raising=False)
    found, wrong = passed("OPTION_A", "OPTION_EMPTY", "X=1", env={"OPTION_A": "of the project"})
    assert found.env == {"OPTION_A": "line one\nline 'two'", "OPTION_EMPTY": "", "X": "1"}
    assert not wrong
    _, (finding,) = passed("OPTION_B")
    assert finding.place == "--env"
    assert finding.cause == "the variable OPTION_B is not set in this shell"


@pytest.mark.parametrize(
    ("names", "below", "environment", "unset"),
    [
        (("OPTION_A", "torch"), None, "torch", []),
        (("torch", "vision"), None, "torch", ["the variable vision is not set in this shell"]),
        (("OPTION_A",), "base", "base", []),
    ],
)
def test_with_conda_a_name_that_is_no_variable_is_the_environment(
    names, below, environment, unset, monkeypatch
):
    monkeypatch.setenv("OPTION_A", "a")
    found, wrong = passed(*names, runtime="conda", conda_env=below)
    assert (found.conda_env, [one.cause for one in wrong]) == (environment, unset)
    assert found.env == ({"OPTION_A": "a"} if "OPTION_A" in names else {})
