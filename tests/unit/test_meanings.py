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
        ("--num-nodes", OPTIONS, "--nodes"),
        ("--NNODES", OPTIONS, "--nodes"),
        ("--Nodes", OPTIONS, "--nodes"),
        ("--nodse", OPTIONS, "--nodes"),
        ("-n", OPTIONS, "--ntasks-per-node"),
        ("--output", OPTIONS, None),
        ("num_nodes", field_names(Job), "nodes"),
        ("submit", cli.entries, "run"),
        ("stop", cli.entries, "cancel"),
        ("rnu", cli.entries, "run"),
        ("rm", ["build", "remove", "list"], "remove"),
        ("xyzzy", cli.entries, None),
        ("pytorch_23.02", ["pytorch_22.03", "ray_cpu"], "pytorch_22.03"),
        ("Name", ["NAME", "other"], "NAME"),
    ],
)
def test_meaning_comes_before_letters(word, choices, expected):
    assert nearest(word, choices) == expected


@pytest.mark.parametrize("option", ["--output", "--nv", "-L", "--gpus-per-task"])
def test_what_has_no_counterpart_says_what_there_is(option):
    code, _, error = said("run", option, "x", "train.py")
    assert code == 64
    assert instead_of(option) in error
    assert "close" not in error
