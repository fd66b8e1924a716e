"""What must not happen, tried for real: words that change on their way, secrets that are seen, another user's traps, open ports."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest

from tests.cluster.ranks import wait_for
from tests.hostile import HOSTILE, MULTILINE

pytestmark = pytest.mark.usefixtures("cluster")

TELLING = """\
import json, os, sys
sys.stdout.write(json.dumps({"argv": sys.argv[1:], "environment": dict(os.environ), "directory": os.getcwd()}) + "\\n")
"""
# Beyond the lists: control characters, spaces that are none, a byte order mark, text that runs
# backwards, combining marks.
ODD = (
    "\x01\x1b[31m\x7f",
    "a\rb",
    "\u2028\u00a0\u200b",
    "\ufeffx",
    "\u202egnp.exe",
    "e\u0301\u0000"[:2],
    "\t \v\f",
    "a" * 5000,
)
TOKEN = "hf_oneTWOthreeFOURfiveSIX"
# Tells whether it was given the secret, and whether anybody on its node could read it among the
# words of a process.
SEARCHING = """\
import json, os, pathlib
token = os.environ["HF_TOKEN"]
seen = []
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        seen += [path.parent.name] if token.encode() in path.read_bytes() else []
    except OSError:
        pass
print("the token is", token, flush=True)
print(json.dumps({"length": len(token), "begins": token[:3], "seen": seen}), flush=True)
"""


@pytest.mark.parametrize("launcher", "srun torchrun horovod-gloo horovod-elastic mpirun".split())
def test_words_reach_the_rank_byte_for_byte(launcher, launch, pytorch_image, shared_dir):
    """Through real sbatch, srun and Apptainer; bash alone has those of every launcher in tests/unit."""
    work = shared_dir / "it's $(touch pwned) `x` 한글"
    (work / "my data").mkdir(parents=True)
    (work / "tell me;.py").write_text(TELLING)
    words = [*HOSTILE, *MULTILINE, *ODD, "", "--", "-N", "9", "--help"]
    options = [
        option for index, word in enumerate(words) for option in ("--env", f"V{index}={word}")
    ]
    named = ("--job-name", "a 'b' $(c) # d", "--comment", 'e "f" \\ ; #g')
    bound = ("--bind", "my data:/mnt/my data:ro")
    start = f"--launcher {launcher} --nodes 2"
    done = launch(pytorch_image, start, *named, *bound, *options, "tell me;.py", *words, cwd=work)
    assert done.returncode == 0, done.stderr
    (directory,) = (work / "runs").iterdir()
    told = json.loads((directory / "outcome.json").read_text())["results"]
    assert told["argv"] == words
    assert [told["environment"][f"V{index}"] for index in range(len(words))] == words
    assert told["directory"] == str(work)
    assert not {"TOOLKIT_TOKEN", "OMPI_COMMAND"} & set(told["environment"])
    assert not list(shared_dir.rglob("pwned"))


def test_a_secret_is_seen_by_the_ranks_and_by_nobody_else(
    toolkit, toolkit_env, pytorch_image, shared_dir
):
    (shared_dir / "search.py").write_text(SEARCHING)
    env = {**toolkit_env, "HF_TOKEN": TOKEN}
    words = f"--image {pytorch_image} --launcher none --nodes 2 --secret HF_TOKEN --explain search.py".split()
    dry = toolkit("run", "--dry-run", "--json", *words, cwd=shared_dir, env=env)
    done = toolkit("-v", "run", *words, cwd=shared_dir, env=env)
    assert (dry.returncode, done.returncode) == (0, 0), done.stderr
    directory = shared_dir / "runs/search-0001"
    assert json.loads((directory / "outcome.json").read_text())["results"] == {
        "length": len(TOKEN),
        "begins": TOKEN[:3],
        "seen": [],
    }
    logs = toolkit("logs", "search-0001", cwd=shared_dir)
    known = toolkit(
        "cluster", "exec", "--", "bash", "-c", "scontrol show job; squeue --json --states=all"
    )
    for said in (dry, done, logs, known):
        assert TOKEN not in said.stdout + said.stderr
    assert "the token is ****" in logs.stdout
    holding = {
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if path.is_file() and TOKEN.encode() in path.read_bytes()
    }
    assert {name for name in holding if not name.startswith("logs/")} == {"secrets"}, (
        "a rank's own log is as the rank wrote it"
    )
    subprocess.run(["shellcheck", str(directory / "job.sbatch")], check=True)

    again = toolkit(
        "run", str(directory), cwd=shared_dir, env=toolkit_env
    )  # without the variable: the earlier run's file has it
    assert again.returncode == 0, again.stderr

    modes = {path.stat().st_mode & 0o777 for path in (directory, directory / "secrets")}
    assert modes == {0o700, 0o600}


WAITING = {
    "torchrun": "import torch.distributed as dist\ndist.init_process_group('gloo')\nrank = dist.get_rank()\n",
    "horovod": "import horovod.torch as hvd\nhvd.init()\nrank = hvd.rank()\n",
}


@pytest.mark.parametrize("launcher", WAITING)
def test_nothing_listens_beyond_what_ranks_need(launcher, toolkit, pytorch_image, shared_dir):
    (shared_dir / "wait.py").write_text(
        f"import pathlib, time\n{WAITING[launcher]}pathlib.Path(f'ready-{{rank}}').touch()\n"
        "while not pathlib.Path('stop').exists():\n    time.sleep(0.1)\n"
    )
    before = {node: listening(toolkit, node) for node in ("nid001", "nid002")}
    words = f"--detach --json --image {pytorch_image} --launcher {launcher} --nodes 2 --nodelist nid[001-002]".split()
    submitted = toolkit("run", *words, "wait.py", cwd=shared_dir)
    assert submitted.returncode == 0, submitted.stderr
    try:
        wait_for(
            lambda: len(list(shared_dir.glob("ready-*"))) == 2,
            "both ranks",
            says=lambda: toolkit("logs", "wait-0001", cwd=shared_dir).stdout,
        )
        now = {node: listening(toolkit, node) - before[node] for node in before}
    finally:
        (shared_dir / "stop").touch()
    assert toolkit("logs", "-f", "wait-0001", cwd=shared_dir).returncode == 0
    programs = {program for found in now.values() for _, _, program in found}
    assert "python3" in programs, now
    # Slurm's own for this step, and the ranks. Nobody else, such as a server of files or of
    # numbers.
    assert programs <= {"srun", "slurmstepd", "python3", "pt_elastic"}, now
    if launcher == "torchrun":
        rows = [(node, *row) for node, found in now.items() for row in found]
        open_to_all = [row[0] for row in rows if (row[1], row[3]) == ("*", "pt_elastic")]
        assert len(open_to_all) == 2, "the meeting point of the agents, and that of the ranks"
        assert len(set(open_to_all)) == 1, now
        assert {row[1] for row in rows if row[3] == "python3"} == {"10.77.0.11", "10.77.0.12"}


def listening(toolkit: Any, node: str) -> set[tuple[str, int, str]]:
    """Address, port and program of every open TCP port of a node."""
    said = toolkit("cluster", "exec", "--node", node, "--", "ss", "-Hltnp").stdout
    rows = [
        re.match(r"LISTEN\s+\d+\s+\d+\s+(\S+):(\d+)\s+\S+\s*(?:users:\(\(\"([^\"]+)\")?", line)
        for line in said.splitlines()
    ]
    return {(row[1], int(row[2]), row[3] or "") for row in rows if row}
