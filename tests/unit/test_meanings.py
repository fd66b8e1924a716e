"""What is proposed for a word that does not exist: the same thing by another name, or a slip of the fingers."""

from __future__ import annotations

import pytest

from tests.unit.test_cli import said
from toolkit.cli.main import cli
from toolkit.cli.run import command
from toolkit.errors import nearest
from toolkit.meanings import instead_of
from toolkit.model.base import field_names
from toolkit.model.job import Job

OPTIONS = [name for parameter in command.params for name in parameter.opts]


@pytest.mark.parametrize(
    ("word", "choices", "expected"),
    [
        ("--output", OPTIONS, None),
        ("--ntasks", OPTIONS, "--ntasks-per-node"),
        ("--num-nodes", OPTIONS, "--nodes"),
        ("--NNODES", OPTIONS, "--nodes"),
        ("--walltime", OPTIONS, "--time"),
        ("--queue", OPTIONS, "--partition"),
        ("--volume", OPTIONS, "--bind"),
        ("--memory", OPTIONS, "--mem"),
        ("--nodse", OPTIONS, "--nodes"),
        ("--job-nam", OPTIONS, "--job-name"),
        ("num_nodes", field_names(Job), "nodes"),
        ("walltime", field_names(Job), "time"),
        ("submit", cli.entries, "run"),
        ("kill", cli.entries, "cancel"),
        ("stop", cli.entries, "cancel"),
        ("list", cli.entries, "ps"),
        ("build", cli.entries, "image"),
        ("down", cli.entries, "cluster"),
        ("-n", OPTIONS, "--ntasks-per-node"),
        ("--Nodes", OPTIONS, "--nodes"),
        ("delete", cli.entries, "rm"),
        ("attach", cli.entries, "logs"),
        ("rnu", cli.entries, "run"),
        ("explian", cli.entries, "explain"),
        ("rm", ["build", "remove", "list"], "remove"),
        ("xyzzy", cli.entries, None),
        ("mian", ["main", "long"], "main"),
        ("pytorch_23.02", ["pytorch_22.03", "ray_cpu"], "pytorch_22.03"),
        ("Name", ["NAME", "other"], "NAME"),
    ],
)
def test_meaning_comes_before_letters(word, choices, expected):
    assert nearest(word, choices) == expected


@pytest.mark.parametrize(
    "option", ["--output", "--chdir", "--wrap", "--nv", "--licenses", "-L", "--gpus-per-task"]
)
def test_what_has_no_counterpart_says_what_there_is(option):
    code, _, error = said("run", option, "x", "train.py")
    assert code == 64
    assert instead_of(option) in error
    assert "close" not in error
