"""Parse Slurm's times, partitions, MPI types and host lists."""

from __future__ import annotations

import pytest

from toolkit.slurm import parse
from toolkit.slurm.client import without_slurm_defaults
from toolkit.slurm.hostlist import expand


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30", 30),
        ("30:01", 31),
        ("2:00:00", 120),
        ("1-0", 1440),
        ("1-12:30", 2190),
        ("1-12:30:00", 2190),
        ("infinite", None),
        ("UNLIMITED", None),
    ],
)
def test_times(text: str, expected: int | None) -> None:
    assert parse.minutes(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "1:2:3:4", "-5", "1 h"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="not a time"):
        parse.minutes(text)


def test_partitions_of_sinfo() -> None:
    text = (
        "main*|up|1-00:00:00|1-infinite|2|idle|8|16000|gpu:v100:2(S:0)\n"
        "main*|up|1-00:00:00|1-infinite|1|down*|8|16000|gpu:v100:4\n"
        "big|inact|infinite|1-2|3|mix|40+|190000+|(null)\n"
    )
    main, big = parse.partitions(text)
    assert (main.name, main.default, main.nodes, main.cpus, main.gpus, main.gpu_type) == (
        "main",
        True,
        2,
        8,
        4,
        "v100",
    )
    assert (main.max_minutes, main.max_nodes) == (1440, None)
    assert (big.nodes, big.cpus, big.memory, big.gpus, big.max_nodes, big.available) == (
        3,
        40,
        190000,
        0,
        2,
        False,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("srun: MPI types are...\nsrun: none\nsrun: pmi2\nsrun: pmix\nsrun: pmix_v4\n", ("none", "pmi2", "pmix", "pmix_v4")),
        ("MPI plugin types are...\n\tnone\n\tcray_shasta\n\tpmi2\n\tpmix\nspecific pmix plugin versions available: pmix_v4,pmix_v5\n",
         ("none", "cray_shasta", "pmi2", "pmix", "pmix_v4", "pmix_v5")),
        ("MPI plugin types are...\n\tpmix\n\tcray_shasta\n\tnone\nspecific pmix plugin versions available: pmix_v4\n",
         ("pmix", "cray_shasta", "none", "pmix_v4")),
    ],
)  # fmt: skip
def test_mpi_types(text: str, expected: tuple[str, ...]) -> None:
    assert parse.mpi_types(text) == expected


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("nid001", ("nid001",)),
        ("nid[001-003,007]", ("nid001", "nid002", "nid003", "nid007")),
        ("a1,b[2-3],c", ("a1", "b2", "b3", "c")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("", ()),
    ],
)
def test_host_lists(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", ["nid[001", "nid[3-1]", "nid[a]"])
def test_broken_host_lists(text: str) -> None:
    with pytest.raises(ValueError, match="host list"):
        expand(text)


def test_variables_that_change_what_commands_do_do_not_reach_them() -> None:
    given = {"SBATCH_PARTITION": "x", "SQUEUE_STATES": "PD", "SACCT_FORMAT": "x", "SLURM_CONF": "y"}
    assert without_slurm_defaults(given) == {"SLURM_CONF": "y"}


def test_pieces_of_lines_of_several_tasks_are_put_together() -> None:
    text = " 0: one: a\n11: eleven \n 0:  and more\nsrun: a warning\n11:  \n 0: .\n"
    assert parse.labelled(text) == ["one: a and more.", "eleven  "]
    assert parse.labelled("") == []
