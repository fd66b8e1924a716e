"""One run of a study: its settings, the hook in its ranks, and what it leaves to be measured."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path

from msgspec.structs import replace

from toolkit.api.run import CompletedRun
from toolkit.bench.scale import rank_files
from toolkit.bench.scale.measurement import Evidence
from toolkit.bench.scale.model import Options, Point
from toolkit.bench.scale.points import scaled_arguments
from toolkit.config import package_directory
from toolkit.files import read_text
from toolkit.model.case import Case
from toolkit.model.plan import Plan
from toolkit.planning.plan import decide
from toolkit.planning.settings import Layer
from toolkit.runs.logs import Tail
from toolkit.slurm.hostlist import expand

HOOK = package_directory("bench/inside") / "sitecustomize.py"
_RECORDS = "scale"  # of a run's directory: the hook, and a file for each process
_MOST_BYTES = 16 << 20  # of a rank's file
_MOST_LINES = 200_000  # that are kept of a run, of those with a measured value


def now() -> str:
    """Return the present time: UTC, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def layer(options: Options, point: Point) -> Layer:
    """Return the settings of the job at a point, without arguments that depend on its ranks."""
    values = {**options.job, "nodes": point.nodes}
    values.setdefault("job_name", f"scale-{Path(options.target).stem}"[:60])
    if point.ntasks_per_node:
        values["ntasks_per_node"] = point.ntasks_per_node
    if point.launcher:
        values["launcher"] = point.launcher
    if options.arguments:
        values["arguments"] = options.arguments
    return Layer("bench scale", values)


def adapted(options: Options, point: Point, given: Case) -> Case:
    """Return the case of a run with the arguments for its ranks, and with the hook. Pure."""
    planned = decide(given)
    ranks = planned.nodes * planned.ranks_per_node
    words = scaled_arguments(options, point.mode, ranks)
    env = dict(given.job.env)
    if options.hook:
        records = f"{given.run}/{_RECORDS}"
        before = f":{env['PYTHONPATH']}" if env.get("PYTHONPATH") else ""
        env |= {"PYTHONPATH": f"{records}{before}", "TOOLKIT_SCALE": records}
        if options.gradient_size:
            env["TOOLKIT_SCALE_BYTES"] = str(options.gradient_size)
    job = replace(given.job, arguments=(*given.job.arguments, *words), env=env)
    return given._replace(job=job)


def place_hook(options: Options, decided: Plan) -> None:
    """Copy the hook to where the ranks see it, inside of containers as well."""
    if options.hook:
        target = Path(decided.run_directory) / _RECORDS
        target.mkdir(exist_ok=True)
        shutil.copyfile(HOOK, target / HOOK.name)


def evidence(options: Options, ran: CompletedRun) -> Evidence:
    """Read what a run that has succeeded printed and recorded."""
    words = (options.metric, "busy_seconds")
    lines = (
        line for line in Tail(ran.run).read(last=True) if any(word in line.text for word in words)
    )
    records = ran.run.directory / _RECORDS
    return Evidence(
        plan=ran.run.plan,
        results=ran.outcome.results,
        lines=list(islice(lines, _MOST_LINES)),
        files=_rank_files(records),
        machines=_machines(records) or _local_machines(ran),
        nodelist=ran.outcome.nodes,
        job_id=ran.run.job_id,
        ended=now(),
        name=ran.run.name,
    )


def _local_machines(ran: CompletedRun) -> dict[str, tuple[str, int]]:
    """Return this machine as that of all nodes, if they are of a local cluster."""
    job = ran.run.job
    if job is None or job.cluster is None:
        return {}
    return {node: ("local", os.cpu_count() or 1) for node in expand(ran.outcome.nodes)}


def _rank_files(records: Path) -> list[rank_files.RankFile]:
    files = []
    for path in sorted(records.glob("*.jsonl")):
        with suppress(OSError, UnicodeDecodeError):
            if (file := rank_files.parse(read_text(path, _MOST_BYTES))) is not None:
                files.append(file)
    return files


def _machines(records: Path) -> dict[str, tuple[str, int]]:
    machines: dict[str, tuple[str, int]] = {}
    for path in sorted(records.glob("machine-*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            data = json.loads(read_text(path))
            machines[path.stem] = (str(data["boot"]), int(data["cores"]))
    return machines
