"""Options of sbatch: the table of ours, what a plan refuses, and hostile names and values."""

from __future__ import annotations

import shlex

import pytest
from msgspec.structs import fields, replace

from tests.hostile import HOSTILE, MULTILINE
from tests.unit.samples import findings, make_case
from tests.unit.test_plan import SEEN
from toolkit import scripts
from toolkit.cli.run import command
from toolkit.errors import UsageError
from toolkit.model.job import Job
from toolkit.model.slurm_options import OPTIONS, OWN
from toolkit.planning.plan import decide
from toolkit.quoting import sbatch_option
from toolkit.runs.submit import salloc_command


def test_flags_and_fields_are_those_of_the_table():
    """A new option of ours is a row of the table and a field of ``Job``; this says which one is missing."""
    others = """summary script arguments image runtime conda_env modules site launcher bind datasets env pass_env secret runs
    max_restarts init max_requeues notify retry interactive pty sweep rerun_of after require_signed signature_key snapshot stage_image python_module slurm"""
    assert {one.name for one in fields(Job)} - {*others.split()} == {one.field for one in OWN}
    shown = {name: parameter for parameter in command.params for name in parameter.opts}
    # --cluster, which names a local cluster, comes to each command when the command line loads it.
    shown.pop("--cluster", None)
    assert {f"--{one.name}" for one in OWN} <= set(shown)
    assert all(one.help and shown[f"--{one.name}"].help == one.help for one in OWN)
    assert not set(shown) & {f"--{name}" for name, one in OPTIONS.items() if not one.kind}


def test_every_option_that_a_plan_decides_is_refused_with_the_reason():
    decided = {name: option for name, option in OPTIONS.items() if option.refusal}
    assert {"nodes", "ntasks", "gpus", "output", "chdir", "array", "wrap", "export"} <= set(decided)
    for name, option in decided.items():
        (finding,) = findings({"slurm": {name: "1"}}, facts=SEEN)
        assert option.refusal in finding.cause
        assert finding.place == f"--slurm {name}"
        assert finding.next_step == (option.instead or None)


@pytest.mark.parametrize("name", [*(text for text in HOSTILE if text != "plain"), *MULTILINE, ""])
def test_a_hostile_name_is_no_option(name):
    (finding,) = findings({"slurm": {name: "x"}})
    assert "cannot be an option of sbatch" in finding.cause
    with pytest.raises(UsageError):
        sbatch_option(name)
    with pytest.raises(UsageError):  # nor does one of a damaged record reach a script
        scripts.script(replace(decide(make_case()), slurm={name: "x"}))


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_value_reaches_sbatch_as_it_is(value):
    job = {"slurm": {"mail-user": value}}
    text = scripts.script(decide(make_case(job)))
    (line,) = [line for line in text.splitlines() if line.startswith("#SBATCH --mail-user")]
    written = line.removeprefix("#SBATCH --mail-user=")
    if written.startswith('"'):  # sbatch's grammar: a backslash escapes, whatever follows
        body, read = iter(written[1:-1]), ""
        for character in body:
            read += next(body) if character == "\\" else character
        written = read
    assert written == value
    argv = salloc_command(decide(make_case({**job, "interactive": True})), "job.sbatch")
    assert f"--mail-user={value}" in argv
    assert shlex.split(shlex.join(argv)) == list(argv)


def test_salloc_gets_the_options_that_it_has():
    job = {"interactive": True, "time": "30", "after": ("7",), "dependency": "afterok:7"}
    slurm = {"slurm": {"propagate": "ALL", "wckey": "x"}}
    words = salloc_command(decide(make_case({**job, **slurm})), "job.sbatch")
    assert words[0] == "salloc"
    assert {"--time=30", "--wckey=x"} < set(words)
    for name in ("propagate", "kill-on-invalid-dep", "requeue"):
        assert name not in " ".join(words)
