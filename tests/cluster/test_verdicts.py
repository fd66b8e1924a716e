"""How a run came out is decided by what happened while it ran: nodes that fail while and after it runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.ranks import logs_of, outcome, row, wait_for

pytestmark = pytest.mark.usefixtures("cluster")

RUN = ("run", "--detach", "--runtime", "none", "--launcher", "none")
# Rank 0 hears of the end of rank 1 by its connection, and fails for it, long before Slurm notices
# that the node is gone.
PEERS = """\
import os, socket, time
if os.environ["SLURM_PROCID"] == "1":
    server = socket.create_server(("", 23456))
    connection, _ = server.accept()
    print("met", flush=True)
    time.sleep(300)
for _ in range(100):
    try:
        peer = socket.create_connection(("nid002", 23456))
        break
    except OSError:
        time.sleep(0.2)
for option, value in ((4, 1), (5, 1), (6, 2)):
    peer.setsockopt(socket.IPPROTO_TCP, option, value)
peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
print("met", flush=True)
peer.recv(1)
raise RuntimeError("peer closed the connection")
"""


def ask(toolkit: Any, words: str) -> str:
    """What a program of Slurm itself answers."""
    return str(toolkit("cluster", "exec", "--", *words.split()).stdout.strip())


def state(toolkit: Any, job: int) -> str:
    return ask(toolkit, f"squeue --noheader --states=all --jobs={job} --format=%T")


def back(toolkit: Any, name: str) -> bool:
    """Resume a node, and tell whether it takes jobs.

    Slurm refuses to resume a node that has registered meanwhile: it is back by itself
    (ReturnToService=2).
    """
    ask(toolkit, f"scontrol update nodename={name} state=resume")
    return ask(toolkit, f"sinfo --noheader --nodes={name} --format=%T") == "idle"


@pytest.fixture
def nid002(toolkit: Any) -> Iterator[str]:
    """A node that a test takes down, and that is up again afterwards."""
    yield "nid002"
    wait_for(lambda: back(toolkit, "nid002"), "the node to take jobs again")


def test_a_node_that_goes_down_after_the_end_changes_nothing(nid002, toolkit, shared_dir):
    (shared_dir / "x.py").write_text("import sys; sys.exit(3)\n")
    assert toolkit(*RUN, "--nodelist", nid002, "x.py", cwd=shared_dir).returncode == 0
    job = json.loads((shared_dir / "runs/x-0001/run.json").read_text())["job_id"]
    wait_for(lambda: state(toolkit, job) == "FAILED", "the end of the job")
    ask(toolkit, f"scontrol update nodename={nid002} state=down reason=maintenance")
    found = row(toolkit, shared_dir, "x-0001")
    assert (found["state"], found["exit_code"]) == ("FAILED", 3)
    recorded = outcome(shared_dir, "x-0001")
    assert (recorded["kind"], recorded.get("unwell")) == ("failed", None)


def test_a_node_that_fails_is_the_cause_and_not_the_rank_that_hears_of_it_first(
    toolkit, shared_dir
):
    """Also when the node is back before somebody looks: the job's own log names it."""
    (shared_dir / "peers.py").write_text(PEERS)
    shape = ("--nodes", "2", "--nodelist", "nid001,nid002")
    assert toolkit(*RUN, *shape, "peers.py", cwd=shared_dir).returncode == 0
    job = json.loads((shared_dir / "runs/peers-0001/run.json").read_text())["job_id"]
    wait_for(lambda: logs_of(shared_dir, "peers-0001").count("met") == 2, "the ranks to meet")
    assert toolkit("cluster", "cut", "nid002").returncode == 0
    try:
        wait_for(lambda: state(toolkit, job) == "NODE_FAIL", "Slurm to notice", seconds=120)
    finally:
        assert toolkit("cluster", "join", "nid002").returncode == 0
    found = row(toolkit, shared_dir, "peers-0001")
    assert (found["exit_code"], "nid002" in found["message"]) == (87, True)
    why = toolkit("explain", "peers-0001", cwd=shared_dir).stdout
    assert why.splitlines()[0].split(maxsplit=1)[1].startswith("node nid002 failed"), why
    assert "--exclude nid002" in why
