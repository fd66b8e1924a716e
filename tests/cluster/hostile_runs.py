"""Make a directory of runs that is hostile in every file and field; run by its attacker, with nothing but Python.

Standard input is JSON: ``directory``, a good ``plan``, the victim's jobs ``running`` and ``ended`` (what is
in their run.json), the victim's private file ``secret``, and their ``writable`` directory.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GIVEN: dict[str, Any] = json.load(sys.stdin)
TOP = Path(GIVEN["directory"])
SECRET, WRITABLE = GIVEN["secret"], GIVEN["writable"]
RUNNING, ENDED = GIVEN["running"], GIVEN["ended"]
JOB = ENDED["job_id"]
DEEP = "[" * 200_000
NINES = "9" * 60_000
OUTCOME = {"state": "COMPLETED", "exit_code": 0, "seconds": 1.0}


def listening(path: Path) -> None:
    os.chdir(path.parent)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


def huge(path: Path) -> None:
    path.write_text("{")
    os.truncate(path, 1 << 40)


def text(value: object) -> Any:
    return lambda path: path.write_text(value if isinstance(value, str) else json.dumps(value))


# What can be instead of any file.
THINGS = {
    "fifo": os.mkfifo,
    "socket": listening,
    "link": lambda path: path.symlink_to(SECRET),
    "folder": Path.mkdir,
    "huge": huge,
    "deep": text(DEEP),
    "list": text([1]),
    "words": text("\x1b]0;owned\x07 no JSON"),
    "large": text({"name": ["x"] * 3_000_000}),
    "number": text("9" * 100_000),
}
FILES = (
    "plan.json run.json outcome.json job.json attempt.json place.json token secrets code.json "
    f"snapshot.json points logs/{JOB}.log logs/{JOB}-0-nid001.log logs report report/a.process"
).split()


def run(name: str, plan: dict[str, Any] | None = None, **files: object) -> Path:
    """A run of the victim's job that has ended, with these files (``_`` stands for a dot, ``__`` for a slash)."""
    made = TOP / "runs" / name
    for folder in ("logs", "report"):
        (made / folder).mkdir(parents=True)
    # The victim's own directory: by it the victim's job seems to be this run's.
    own = {**GIVEN["plan"], "name": name, "run_directory": WRITABLE, **(plan or {})}
    base = {"plan.json": own, "run.json": ENDED, "job.json": {"script": "train.py"}}
    given = {key.replace("__", "/").replace("_", "."): value for key, value in files.items()}
    for file, value in (base | given).items():
        if value is not None:
            text(value)(made / file)
    return made


def every_file_is_something_else() -> None:
    for file in FILES:
        for name, make in THINGS.items():
            if file in ("logs", "report", "points") and name not in ("fifo", "link", "huge"):
                continue
            path = run(f"{name}-{file.replace('/', '-')}") / file
            if path.is_dir():
                path.rmdir()
            path.unlink(missing_ok=True)
            make(path)


def submissions() -> Iterator[dict[str, Any]]:
    yield from (RUNNING, {**ENDED, "cluster": "../../evil"}, {**ENDED, "cluster": "x" * 999})
    for number in (-1, 0, 1 << 40, "7", None, [7], 1.5, True):
        yield {**ENDED, "job_id": number}


def plans() -> Iterator[dict[str, Any]]:
    for array in ("0-999999999", "0-9:0", "9" * 5000, "-3--1", "0-4000000,0-4000000,0-4000000"):
        points = [{"number": -1, "values": [["lr", "1"]], "arguments": []}]
        yield {"array": True, "directives": [["array", array]]}
        yield {"array": True, "directives": [["array", array]], "points": points}
    for name in ("../../evil", "", "no such", "\x1b[2J"):
        yield {"launch": {**GIVEN["plan"]["launch"], "launcher": name}}
        yield {"container": {**GIVEN["plan"]["container"], "runtime": name}}
    yield from ({"nodes": -(1 << 62)}, {"gpus_by_node": [1] * 100_000}, {"gpu_type": "x\n" * 9})


def outcomes() -> Iterator[dict[str, Any]]:
    wrong = {"state": "x\ny\x1b[2J", "seconds": 1e300, "exit_code": 1 << 62, "kind": "?"}
    for key, value in wrong.items():
        yield {**OUTCOME, key: value}
    yield {**OUTCOME, "message": "m" * 5_000_000, "results": {"a\nb": [[1]]}}
    yield {**OUTCOME, "points": [{"number": -1, "state": "x"}]}
    odd = {"number": 1, "began": -(1 << 62), "nodes": "\x1b", "ended": 1 << 62}
    yield {**OUTCOME, "stints": [odd, odd], "exit_code": 3, "kind": "failed"}


LINES = (
    "toolkit: attempt 1 of at most 2 begins 2026-99-99T99:99:99Z on nid[0-999999999]",
    f"toolkit: attempt {NINES} of at most 2 begins 2026-01-01T00:00:00Z",
    f"srun: error: nid001: task {NINES}: Exited with exit code {NINES}",
    "srun: error: Node failure on n[0-999999999]" + "[0-999]" * 20,
    f"[rank{NINES}]: KeyError: 1\n[default{NINES}]:x\n{NINES}| x",
    f"elastic: failed: rank {NINES} on nid001: exit code {NINES}",
    f"process {NINES} terminated with exit code {NINES}",
    f"mpirun noticed that process rank {NINES} with PID 1 on node a exited on signal {NINES}",
    f"Exit code: {NINES}\nMPI_ABORT was invoked on rank {NINES}\nwith errorcode {NINES}",
    '{"a": ' + "[" * 50_000,
    '{"' + "x" * 60_000 + '": 1}',
)
# Files that processes of the job seem to have written.
_HEAD = f"host=nid001\npid=1\nenv.SLURM_JOB_ID={JOB}\nenv.RANK={'9' * 5000}\n\n"
_ERROR = {"type": "E", "message": f"exit code {NINES}", "line": -1}
RECORDS = [{"kind": "exception", "time_ns": 1, "chain": chain} for chain in ([], [_ERROR])]


def every_field_is_something_else() -> None:
    """Files that are whole, with values that no toolkit writes."""
    requeue = {"requeue": {"signal": "USR1", "seconds": 1, "wait": 1, "times": 1}}
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        *(({}, plan) for plan in plans()),
        *(({"run_json": job}, {}) for job in submissions()),
        *(({"run_json": None, "attempt_json": job}, {}) for job in submissions()),
        *(({"outcome_json": outcome}, {"array": "points" in outcome}) for outcome in outcomes()),
        *(({f"logs__{JOB}_log": line, f"logs__{JOB}-0-nid001_log": line}, requeue) for line in LINES),
        *(({"report__a_process": _HEAD + json.dumps(record)}, {}) for record in RECORDS),
    ]  # fmt: skip
    for number, (files, plan) in enumerate(cases):
        run(f"fields-{number}", plan, **files)


def links() -> None:
    """Links to the victim's run, and names that mislead."""
    for name in ("logs", "report"):
        made = run(f"out-{name}")
        (made / name).rmdir()
        (made / name).symlink_to(WRITABLE)
    (run("out-points", {"array": True}) / "points").symlink_to(WRITABLE)
    for number, target in enumerate((f"{WRITABLE}/run.json", "../circle-1/run.json")):
        (run(f"circle-{number}", run_json=None) / "run.json").symlink_to(target)
    (TOP / "runs/whole").symlink_to(WRITABLE)
    job = str(RUNNING["job_id"])
    for name in ("a\nb", os.fsdecode(b"x\xff"), "--force", "\x1b]0;x\x07", "4711", job):
        run(name)


def beside_the_runs() -> None:
    """Other files that a victim names, or that lie where they stand."""
    for folder in ("images", "study", "workshop", "study/runs"):
        (TOP / folder).mkdir()
    fifos = "fifo fifo.toml .workshop.json images/fifo.sif images/fifo.toml images/.fifo.lock"
    fifos += " study/study.json workshop/workshop.toml workshop/results workshop/exercises"
    for name in fifos.split():
        os.mkfifo(TOP / name)
    for name in ("link", "images/link.sif"):
        (TOP / name).symlink_to(SECRET)
    (TOP / "log").write_text("Traceback\nKeyError: 1\n" * 1000)
    (TOP / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=-1\nsrun --mpi=list\n")
    sif = b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0" + b"9" * 5000
    (TOP / "images/broken.sif").write_bytes(sif)
    (TOP / "images/broken.json").write_text(DEEP)


os.umask(0)
every_file_is_something_else()
every_field_is_something_else()
links()
beside_the_runs()
