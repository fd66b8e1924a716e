"""Make a directory of runs that is hostile in every file and field; run by its attacker, with nothing but Python.

Standard input is JSON: ``directory``, a good ``plan``, the victim's jobs ``running`` and ``ended`` (what is
in their run.json), the victim's private file ``secret``, their ``writable`` directory and their ``thesis``.
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
OUTCOME = {"state": "COMPLETED", "exit_code": 0, "seconds": 1.0}
RECORD = {"kind": "exception", "time_ns": 1, "host": "nid001", "pid": 1}
RECORD["env"] = {"SLURM_JOB_ID": str(JOB), "RANK": "9" * 5000}


def fifo(path: Path) -> None:
    os.mkfifo(path, 0o666)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(path.parent)
        made.bind(path.name)
        os.chdir(here)


def link(path: Path) -> None:
    path.symlink_to(SECRET)


def folder(path: Path) -> None:
    path.mkdir()


def huge(path: Path) -> None:
    path.write_text("{")
    os.truncate(path, 1 << 40)


def text(value: object) -> Any:
    return lambda path: path.write_text(value if isinstance(value, str) else json.dumps(value))


# What can be instead of any file.
THINGS = {
    **{"fifo": fifo, "socket": listening, "link": link, "folder": folder, "huge": huge},
    **{"deep": text(DEEP), "list": text([1]), "words": text("\x1b]0;owned\x07 no JSON")},
    **{"large": text({"name": ["x"] * 3_000_000}), "number": text("9" * 100_000)},
}
FILES: tuple[str, ...] = (
    "plan.json",
    "run.json",
    "outcome.json",
    "job.json",
    "attempt.json",
    "part.json",
)
FILES += ("place.json", "token", "secrets", "code.json", "snapshot.json", "points")
FILES += (f"logs/{JOB}.log", f"logs/{JOB}-0-nid001.log", "logs", "report", "report/a.json")


def run(name: str, plan: dict[str, Any] | None = None, **files: object) -> Path:
    """A run of the victim's job that has ended, with these files (``_`` stands for a dot, ``__`` for a slash)."""
    made = TOP / "runs" / name
    (made / "logs").mkdir(parents=True)
    (made / "report").mkdir()
    # The victim's own directory: by it, or by the mark, the victim's job seems to be this run's.
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
            made = run(f"{name}-{file.replace('/', '-')}")
            path = made / file
            if path.is_dir():
                path.rmdir()
            elif path.exists():
                path.unlink()
            make(path)


def fields() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Files and plans that are whole, with values that no toolkit writes."""
    for job in (
        RUNNING,
        ENDED,
        {**ENDED, "cluster": "../../evil"},
        {**ENDED, "cluster": "x" * 999},
    ):
        yield {"run_json": job}, {}
    for number in (-1, 0, 1 << 40, "7", None, [7], 1.5, True):
        yield {"run_json": {**ENDED, "job_id": number}}, {}
    for mark in ("../" * 9 + GIVEN["thesis"].lstrip("/"), "x\n", "--all"):
        yield {"run_json": {**RUNNING, "mark": mark}}, {}
        yield {"run_json": None, "attempt_json": {"mark": mark, "site": "s", "submitted": "x"}}, {}
    for script in (f"{WRITABLE}/job.sbatch", "x\n", "--all"):
        yield {"run_json": {**RUNNING, "script": script}}, {}
        yield {"run_json": None, "attempt_json": {**ENDED, "job_id": None, "script": script}}, {}
    attempt = {key: RUNNING.get(key) for key in ("mark", "site", "submitted", "cluster")}
    yield {"run_json": None, "attempt_json": attempt}, {}
    yield {"run_json": None, "attempt_json": {**attempt, "pid": -1, "host": "../x"}}, {}
    for array in ("0-999999999", "0-9:0", "9" * 5000, "-3--1", "0-4000000,0-4000000,0-4000000"):
        directives = [["array", array]]
        points = [{"number": -1, "values": [["lr", "1"]], "arguments": []}]
        yield {}, {"array": True, "directives": directives}
        yield {}, {"array": True, "directives": directives, "points": points}
    for name in ("../../evil", "", "no such", "\x1b[2J"):
        yield {}, {"launch": {**GIVEN["plan"]["launch"], "launcher": name}}
        yield {}, {"container": {**GIVEN["plan"]["container"], "runtime": name}}
    for more in ({"nodes": -(1 << 62)}, {"gpus_by_node": [1] * 100_000}, {"gpu_type": "x\n" * 9}):
        yield {}, more
    wrong = {"state": "x\ny\x1b[2J", "seconds": 1e300, "exit_code": 1 << 62, "kind": "?"}
    for key, value in wrong.items():
        yield {"outcome_json": {**OUTCOME, key: value}}, {}
    yield {"outcome_json": {**OUTCOME, "message": "m" * 5_000_000, "results": {"a\nb": [[1]]}}}, {}
    yield {"outcome_json": {**OUTCOME, "points": [{"number": -1, "state": "x"}]}}, {"array": True}
    odd = {"number": 1, "began": -(1 << 62), "nodes": "\x1b", "ended": 1 << 62}
    yield {"outcome_json": {**OUTCOME, "stints": [odd, odd], "exit_code": 3, "kind": "failed"}}, {}
    requeue = {"requeue": {"signal": "USR1", "seconds": 1, "wait": 1, "times": 1}}
    nines = "9" * 60_000
    for line in (
        "toolkit: attempt 1 of at most 2 begins 2026-99-99T99:99:99Z on nid[0-999999999]",
        f"toolkit: attempt {nines} of at most 2 begins 2026-01-01T00:00:00Z",
        f"srun: error: nid001: task {nines}: Exited with exit code {nines}",
        "srun: error: Node failure on n[0-999999999]" + "[0-999]" * 20,
        f"[rank{nines}]: KeyError: 1\n[default{nines}]:x\n{nines}| x",
        f"elastic: failed: rank {nines} on nid001: exit code {nines}",
        f"process {nines} terminated with exit code {nines}",
        f"mpirun noticed that process rank {nines} with PID 1 on node a exited on signal {nines}",
        f"Exit code: {nines}\nMPI_ABORT was invoked on rank {nines}\nwith errorcode {nines}",
        '{"a": ' + "[" * 50_000,
        '{"' + "x" * 60_000 + '": 1}',
    ):
        yield {f"logs__{JOB}_log": line, f"logs__{JOB}-0-nid001_log": line}, requeue
    for errors in ([], [{"type": "E", "message": f"exit code {nines}", "line": -1}]):
        yield {"report__a_json": {**RECORD, "errors": errors}}, {}
    yield {"part_json": {"start": -1, "nodes": "n[0-999999999]", "end": 1 << 62}}, {}


def parts() -> None:
    """Submissions that are links, as those of parts of an allocation: to the secret, to the victim's run, into a circle."""
    targets: tuple[str, ...] = (
        SECRET,
        f"../../../..{SECRET}",
        f"{WRITABLE}/run.json",
        "../parts-0/run.json",
    )
    targets += ("../../run.json", "../parts-5/run.json", "../fields-0/run.json")
    mark = "x/" + "../" * 9 + GIVEN["thesis"].lstrip("/")
    run("part-holder", run_json={**RUNNING, "mark": mark})
    for number, target in enumerate((*targets, "../part-holder/run.json")):
        ended = {"start": 1, "nodes": "n[0-999999999]" if number == 6 else "nid001", "end": 2}
        made = run(f"parts-{number}", run_json=None, part_json=ended)
        (made / "run.json").symlink_to(target)
    (TOP / "runs" / "whole").symlink_to(WRITABLE)


def links_of_folders() -> None:
    for name in ("logs", "report"):
        made = run(f"out-{name}")
        (made / name).rmdir()
        (made / name).symlink_to(WRITABLE)
    (run("out-points", {"array": True}) / "points").symlink_to(WRITABLE)
    for name in (
        "a\nb",
        os.fsdecode(b"x\xff"),
        "--force",
        "\x1b]0;x\x07",
        "4711",
        str(RUNNING["job_id"]),
    ):
        run(name)


def beside_the_runs() -> None:
    """Other files that a victim names, or that lie where they stand."""
    for name in ("fifo", "fifo.toml"):
        fifo(TOP / name)
    link(TOP / "link")
    (TOP / "log").write_text("Traceback\nKeyError: 1\n" * 1000)
    (TOP / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=-1\nsrun --mpi=list\n")
    for name in ("images", "study", "workshop", "study/runs"):
        (TOP / name).mkdir()
    for place, names in {
        "images": ("fifo.sif", "fifo.toml", ".fifo.lock"),
        "study": ("study.json", "fifo.json", "samples.json"),
        "workshop": ("workshop.toml", "results", "exercises"),
    }.items():
        for name in names:
            fifo(TOP / place / name)
    link(TOP / "images/link.sif")
    (TOP / "images/broken.sif").write_bytes(
        b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0" + b"9" * 5000
    )
    (TOP / "images/broken.json").write_text(DEEP)
    fifo(TOP / ".workshop.json")


os.umask(0)
every_file_is_something_else()
for number, (files, plan) in enumerate(fields()):
    run(f"fields-{number}", plan, **files)
parts()
links_of_folders()
beside_the_runs()
