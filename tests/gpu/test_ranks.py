"""Ranks on GPUs: each has its own, and they add up over NCCL."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from tests.gpu.conftest import ROOT, SCRIPTS, Ran, compiled
from toolkit.bench.allreduce import nccl_tests


def printed(ran: Ran, word: str) -> list[Any]:
    """Return what ranks printed as JSON behind a word, in any order."""
    lines = (line.partition(f"{word} ")[2] for line in ran.text.splitlines())
    return [json.loads(line) for line in lines if line.startswith(("{", "["))]


def test_each_rank_has_its_own_gpu(start, gpus):
    """As many ranks as GPUs: each has its own, and computes on it."""
    ran = start(SCRIPTS / "binding.py", ranks=gpus, gpus=gpus)
    assert ran.code == 0, ran.text
    bound = printed(ran, "BOUND")
    assert sorted(each["rank"] for each in bound) == list(range(gpus))
    assert len({each["uuid"] for each in bound}) == gpus
    assert all(each["right"] for each in bound)


def test_ranks_add_up_over_nccl(start, gpus, record_property):
    """All-reduce over NCCL with as many ranks as GPUs (one is a world of one)."""
    ran = start(SCRIPTS / "allreduce.py", ranks=gpus, gpus=gpus)
    assert ran.code == 0, ran.text
    (result,) = printed(ran, "SUM")
    assert result["ranks"] == gpus
    assert result["right"]
    record_property("ranks", gpus)
    record_property("GB/s of 256 MiB", round(result["bytes_per_second"] / 1e9, 1))


@pytest.mark.usefixtures("gpus")
def test_two_ranks_on_one_gpu_are_refused(start):
    """Two ranks on one GPU are refused by NCCL, and explain names the reason."""
    ran = start(SCRIPTS / "allreduce.py", "--one-gpu", ranks=2, gpus=1)
    assert ran.code != 0, ran.text
    assert ran.explain()["match"]["rule"] == "duplicate-gpu", ran.text


def test_gpu_count(start, facts):
    """The exercise gpu-count: what Slurm gave is what PyTorch can use."""
    count = max(1, len(facts.gpus))
    ran = start(ROOT / "jobs" / "gpu-count" / "train.py", ranks=1, gpus=count)
    assert ran.code == 0, ran.text
    result = json.loads(ran.text[ran.text.index('{"nodes"') :].splitlines()[0])
    assert result["gpus_given"] == count
    assert result["gpus_usable"] == len(facts.gpus)
    assert (result["wrong"], result["all_reduce"]) == (0, True)


def test_the_table_of_nccl_tests(gpus, place, record_property):
    """NVIDIA's all_reduce_perf, compiled here: bench allreduce reads each row of its table."""
    built = compiled("nccl-tests", place)
    sizes = "--minbytes 1K --maxbytes 256M --stepfactor 4 --check 1 --ngpus".split()
    ended = subprocess.run(
        [str(built / "all_reduce_perf"), *sizes, str(gpus)],
        env=os.environ | {"LD_LIBRARY_PATH": str(built / "nccl/lib")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = nccl_tests(ended.stdout.splitlines(), gpus)
    assert [row.bytes for row in rows] == [1 << power for power in range(10, 30, 2)], ended.stdout
    assert not any(row.wrong for row in rows)
    record_property("GB/s of 256 MiB", round(rows[-1].algorithm_gb_per_s, 1))
