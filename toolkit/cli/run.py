"""`toolkit run`."""

from __future__ import annotations

import json
import os
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli import console
from toolkit.cli.options import flags, job_options
from toolkit.cli.shared import cluster_option, pattern, with_image
from toolkit.errors import UsageError
from toolkit.model.base import to_json
from toolkit.model.case import Case
from toolkit.model.run import Bind, Plan
from toolkit.planning.case import gather
from toolkit.planning.plan import decide
from toolkit.slurm.client import PATIENCE, Wait, patiently
from toolkit.text import HIDDEN
from toolkit.units import counted, human_size

if TYPE_CHECKING:
    from toolkit.runs.run import Run


@click.command(
    "run",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
)
@job_options
@click.option(
    "-m",
    "as_module",
    is_flag=True,
    help="Run SCRIPT as a module, such as pkg.train, as `python -m` does.",
)
@click.option("--dry-run", is_flag=True, help="Print the script that would be submitted, and stop.")
@click.option(
    "--force",
    metavar="REASON",
    type=pattern("a reason", r"(?s).*\S.*", '"the limit was raised for us"'),
    help="Submit a job that a rule of the site refuses; the reason is recorded with the run.",
)
@click.option("--explain", is_flag=True, help="Print every value of the plan, and its source.")
@click.option(
    "--failed",
    is_flag=True,
    help="Run only the failed points of an earlier sweep; SCRIPT is its run.",
)
@click.option(
    "--interactive",
    is_flag=True,
    default=None,
    help="Wait for the nodes here, with salloc, and run on them; Ctrl-C ends the job, too.",
)
@click.option("--detach", "-d", is_flag=True, help="Submit, and return without following.")
@click.option(
    "--wait-for-slurm",
    metavar="SECONDS",
    type=click.IntRange(0),
    default=int(PATIENCE),
    show_default=True,
    help="How long to retry while Slurm's controller does not answer; a dry run does not retry.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the result as JSON; everything else goes to standard error.",
)
# A rule has the better message about a script that cannot be read.
@click.argument("script", type=click.Path(readable=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@cluster_option
@console.json_too
def command(
    script: str,
    arguments: tuple[str, ...],
    dry_run: bool,
    force: str | None,
    explain: bool,
    failed: bool,
    detach: bool,
    wait_for_slurm: int,
    as_json: bool,
    as_module: bool,
    **options: Any,
) -> int:
    """Run a training script on the nodes of a cluster, in an image.

    SCRIPT is a training script, a folder with a job.toml, or the directory of an earlier run.
    Everything after it is passed to it. It runs in an image or an environment. The exit code is
    the job's.

    \b
    Examples:
      toolkit run --image pytorch_cpu --nodes 2 --ntasks-per-node 2 train.py --epochs 12
      toolkit run --image pytorch_22.03 --nodes 2 --gpus-per-node 4 --time 2:00:00 train.py
      toolkit run jobs/digits-horovod
      toolkit run --image pytorch_cpu --nodes 2 -m pkg.train --epochs 3
      toolkit run runs/train-0007                   the same again
      toolkit run --nodes 1:4 jobs/digits-ddp-elastic
      toolkit run --image pytorch_cpu --launcher none --array 0-9 -- hostname
      toolkit run --secret HF_TOKEN --wait-for-slurm 600 --image pytorch_cpu train.py
      toolkit run --dry-run --explain jobs/digits-ddp
      toolkit run --site neuron --dry-run --image pytorch_22.03 --nodes 2 --gpus-per-node 4 train.py
      toolkit run --runtime conda --env torch --module cuda/11.4 --gpus-per-node 4 train.py
      toolkit run --runtime docker --image pytorch/pytorch:2.7.1 --gpus-per-node 2 train.py
      toolkit run --image docker://python:3.11 --launcher none -- python3 --version
      toolkit run --sweep lr=0.1,0.01 --sweep batch-size=32,64 jobs/digits-ddp
      toolkit run --failed runs/digits-ddp-0007
      toolkit run --detach --after train-0007 evaluate.py
      toolkit run --requeue --time 4:00:00 jobs/digits-ddp-elastic
      toolkit run --interactive --pty --image pytorch_cpu -- debug.py

    Ctrl-C detaches and leaves the job running; a second one cancels it.
    """
    options |= _failed_points(script) if failed else {}
    options |= {"python_module": script} if as_module else {}
    wait = Wait(0 if dry_run else wait_for_slurm, partial(console.say, "waiting"))
    is_command = ("--", script) in pairwise(click.get_current_context().meta["words"])

    def gathered() -> Case:
        layer, cwd = flags(options, arguments), Path.cwd()
        case = gather(script, layer, cwd, dry_run=dry_run, is_command=is_command)
        return case._replace(force=force)

    case = patiently(gathered, wait)
    if dry_run:
        _show_script(case, explain=explain, as_json=as_json)
        return 0
    case = with_image(case, lambda: patiently(gathered, wait))
    if case.job.interactive:
        from toolkit.cli.connect import run_interactively

        return run_interactively(case, detach=detach, as_json=as_json)
    run = _submitted(case, wait, explain=explain)
    console.say("script", os.path.relpath(run.script))
    if not detach:
        from toolkit.cli.follow import follow_run

        return follow_run(run, as_json=as_json)
    _show_queued(run, as_json=as_json)
    return 0


def _show_queued(run: Run, *, as_json: bool) -> None:
    console.say("queued", f"job {run.job_id}   follow: toolkit logs -f {run.word}")
    if as_json:
        answer = {"run": run.name, "job_id": run.job_id, "directory": str(run.directory)}
        console.out_json(answer)
    elif not console.on_terminal():
        console.document(run.name)


def _failed_points(name: str) -> dict[str, Any]:
    """Return the settings that run only the failed points of an earlier sweep.

    Raises:
        UsageError: the run is not a sweep, or none of its points has failed.
        UntrustedError: another user could have written the run.
    """
    from toolkit.planning.settings import chosen
    from toolkit.runs import outcome, status
    from toolkit.runs.run import find
    from toolkit.trust import require_trusted

    run = find(name, Path(chosen(Path.cwd()).runs or "runs"))
    require_trusted(run.directory)
    numbers = outcome.failed_points(status.elements(run))
    if not numbers:
        raise UsageError(
            f"no point of {run.name} has failed",
            place="--failed",
            next_step=f"toolkit results {run.name}",
        )
    return {"array": ",".join(map(str, numbers)), "rerun_of": run.name}


def _show_script(case: Case, *, explain: bool, as_json: bool) -> None:
    from toolkit import scripts

    decided = decide(case)
    text = scripts.script(decided)
    if explain:
        console.note(explanation(decided))
    console.warn(decided)
    if as_json:
        console.out_json({"plan": json.loads(to_json(decided)), "script": text})
    else:
        console.document(text)


def _submitted(case: Case, wait: Wait, *, explain: bool) -> Run:
    """Submit a job, unless the same one was submitted by a command that was interrupted."""
    from toolkit.api.run import resume, write
    from toolkit.localcluster.access import local_name
    from toolkit.runs.code import snapshot_of
    from toolkit.runs.submit import submit

    if (run := resume(case, wait)) is not None:
        text = f"job {run.job_id} is in the queue already, as {run.name}"
        console.say("resumed", f"{text}; it is not submitted again")
        return run
    run = write(case)
    if explain:
        console.note(explanation(run.plan))
    console.announce(run.plan)
    if (taken := snapshot_of(run)) is not None:
        names, more = taken.left_out[:5], len(taken.left_out) - 5
        left = f"; left out: {', '.join(names)}" if names else ""
        left += f" and {more} more" if more > 0 else ""
        size = f"{counted(len(taken.files), 'file')}, {human_size(taken.size)}"
        console.say("snapshot", f"{size}{left}")
    submit(run, local_name(case.site), wait)
    return run


def explanation(decided: Plan) -> str:
    """Return a table of the plan's values and their sources."""
    directives = dict(decided.directives)
    gpus = ",".join(map(str, decided.gpus_by_node)) or str(decided.gpus_per_node)
    values: dict[str, object] = {
        "runtime": decided.container.runtime,
        "image": decided.container.image,
        "modules": " ".join(decided.modules),
        "site": decided.site,
        "launcher": decided.launch.launcher,
        "nodes": directives["nodes"],
        "ntasks_per_node": decided.ranks_per_node,
        "gpus_per_node": f"{decided.gpu_type}:{gpus}" if decided.gpu_type else gpus,
        "cpus_per_task": decided.cpus_per_rank,
        "job_name": decided.name,
        **{name: directives.get(name) for name in ("partition", "time", "comment")},
        **{f"slurm {name}": value for name, value in decided.slurm.items()},
        **{f"bind {bind.target}": bind for bind in decided.container.binds},
        **{f"env {name}": value for name, value in sorted(decided.environment.items())},
        **{f"env {name}": HIDDEN for name in decided.secrets},
    }
    rows = [
        (
            "bind" if isinstance(value, Bind) else name,
            "-" if value in (None, "") and not name.startswith("env ") else value,
            decided.origins.get(name, "unset"),
        )
        for name, value in values.items()
    ]
    return console.table(("NAME", "VALUE", "SOURCE"), rows)
