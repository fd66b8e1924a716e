"""Run a job: plan it, write its run's directory, submit it once, and wait for its end.

`toolkit run` may be killed, or lose its connection, between sbatch and the record of its job. Then
the next call for the same job takes up that submission.
"""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from toolkit import launchers, scripts
from toolkit.errors import ConfigError, ImageMissingError, ToolkitError, UntrustedError
from toolkit.files import read_json
from toolkit.localcluster.access import local_name
from toolkit.model.case import Case
from toolkit.model.job import Job
from toolkit.model.plan import Plan
from toolkit.model.run import Outcome, Submission
from toolkit.planning.case import gather
from toolkit.planning.plan import decide
from toolkit.planning.settings import Layer
from toolkit.runs import once, secrets, status, store
from toolkit.runs.follow import Event, follow
from toolkit.runs.submit import place_hook, submit
from toolkit.shell import Progress
from toolkit.slurm.failures import AnswerLostError
from toolkit.slurm.patience import Wait
from toolkit.text import shows
from toolkit.trust import require_trusted

Adapt = Callable[[Case], Case]


def unchanged(case: Case) -> Case:
    """Return the case as it is."""
    return case


def write(case: Case, adapt: Adapt = unchanged) -> tuple[store.Paths, Plan]:
    """Plan a run, and write its directory under a number that no other run has.

    Args:
        case: of the plan.
        adapt: changes them for the directory that the run gets; it may be called several times.

    Raises:
        PlanError: it could not run; nothing was written.
        ImageMissingError: the image of a registry has not been fetched.
    """
    from toolkit.runs import code, snapshot

    given, case = case, adapt(case)
    decided = decide(case)
    if case.image.to_fetch:
        name = Path(case.image.path).name.removesuffix(".sif")
        step = f"toolkit image pull {case.image.to_fetch} --name {name}"
        raise ImageMissingError(
            f"{case.image.to_fetch} has not been fetched", place="--image", next_step=step
        )
    while not store.create(Path(decided.run_directory)):
        taken = Path(decided.run_directory)
        free = store.next_directory(taken.parent, taken.name.rsplit("-", 1)[0])
        case = adapt(given._replace(run=str(free)))
        decided = decide(case)
    directory = Path(decided.run_directory)
    try:
        values = {name: case.job.env[name] for name in decided.secrets}
        is_server = launchers.get(decided.launch.launcher).is_server
        if values or is_server or shows(case.job.arguments):
            directory.chmod(0o700)
        if decided.reports:
            place_hook(directory)
        if values:
            secrets.write(directory, decided.container.prefix, values)
        # The plan comes first: a run whose submission is killed is listed, and can be removed.
        paths = store.write(directory, decided, repeatable(case, decided), scripts.script(decided))
        if case.tree is not None:
            snapshot.take(paths, case.tree, case.target.cwd, case.target.folder)
        if case.tree is not None and case.tree.is_copy:
            code.repeat(Path(case.tree.root).parent, paths)
        else:
            code.record(paths, case.script_file, Path(case.target.folder), values.values())
        return paths, decided
    except BaseException:
        shutil.rmtree(directory)
        raise


def gather_run(
    target: str, flags: Layer, cwd: Path, *, dry_run: bool = False, is_command: bool = False
) -> Case:
    """Gather the case of a run, with the jobs that ``--after`` names and errors in these names.

    Planning does not know the states of other runs: its ``gather_inputs`` leaves ``--after`` open.
    """
    case = gather(target, flags, cwd, dry_run=dry_run, is_command=is_command)
    if not case.job.after:
        return case
    return _with_dependencies(case)


def fetch_image(case: Case, progress: Progress) -> None:
    """Fetch the image of a registry for a job that could run, as far as is known without the image.

    Raises:
        PlanError: the job could not run; nothing was fetched.
    """
    from toolkit.images.registry import transfer

    decide(case)
    transfer.fetch(case.image.to_fetch, progress)


def _with_dependencies(case: Case) -> Case:
    from toolkit.runs.dependencies import dependencies

    cluster = local_name(case.site)
    after, findings = dependencies(case.job.after, Path(case.run).parent, cluster)
    return case._replace(after=after).with_findings(*findings)


def repeatable(case: Case, decided: Plan) -> Job:
    """Return the settings that repeat a run, without values of secrets and dependencies."""
    target = case.target
    script = target.script if target.is_program else str(Path(target.folder) / target.name)
    if case.tree is not None and case.tree.is_copy:
        script = case.job.script or script  # of the work tree, which --no-snapshot runs
    values = {name: value for name, value in case.job.env.items() if name not in decided.secrets}
    return replace(case.job, script=script, after=(), env=values, pass_env=())


def resume(case: Case, wait: Wait) -> tuple[store.Paths, Plan, Submission] | None:
    """Return the run of the same job whose submission was interrupted, if Slurm has its job.

    Any other interrupted run is left to `toolkit ps`. A submission that goes on is waited for.

    Raises:
        AnswerLostError: it does not end.
    """
    for file in sorted(Path(case.run).parent.glob("*/attempt.json")):
        paths = store.Paths(file.parent)
        if not _is_same(paths, case):
            continue
        wait.notify(
            f"the submission of {paths.name} did not end; asking Slurm whether it has the job"
        )
        if not once.is_over(paths, once.SBATCH_SECONDS):
            raise AnswerLostError(
                f"{paths.name}, the same job, is still being submitted",
                place=str(paths.directory),
                next_step="wait for it: toolkit ps",
            )
        attempt = once.read(paths)
        if attempt is None:  # another process has submitted it meanwhile
            continue
        submission = once.search(partial(status.known_submission, paths), wait)
        if submission is not None:
            return paths, paths.read_plan(), submission
        if once.is_settled(attempt):
            paths.attempt.unlink()
    return None


def _is_same(paths: store.Paths, case: Case) -> bool:
    """Return whether a run is of the same settings and of a script that has not changed since."""
    try:
        require_trusted(paths.directory)
        before, attempt = read_json(paths.job, Job), once.read(paths)
        changed = 0.0 if case.target.is_program else Path(before.script or "").stat().st_mtime
    except (ConfigError, UntrustedError, OSError):
        return False
    if attempt is None or before != repeatable(case, decide(case)):
        return False
    return changed <= once.began(attempt) + 1


class CompletedRun(NamedTuple):
    """A run whose job has ended."""

    paths: store.Paths
    plan: Plan
    job_id: int
    outcome: Outcome


def complete(
    case: Case,
    wait: Wait,
    *,
    adapt: Adapt = unchanged,
    on_plan: Callable[[Plan], object] = bool,
    on_event: Callable[[Event], object] = bool,
    on_cancel: Callable[[int], object] = bool,
    until: float = math.inf,
) -> CompletedRun:
    """Plan and submit a run, and follow it until its job has ended.

    A job that fails is no error; see ``outcome``.

    Args:
        case: of the plan.
        wait: patience with a Slurm that does not answer the submission.
        adapt: changes the case for the directory that the run gets.
        on_plan: is called with the plan before it is submitted.
        on_event: is called with each event but the outcome.
        on_cancel: is called with the job's id after it was cancelled.
        until: a time of ``time.monotonic``.

    Raises:
        ToolkitError: the run could not be planned, submitted or followed.
        TimeoutError: the job had not ended at ``until``, and was cancelled.
        KeyboardInterrupt: the job was cancelled.
    """
    paths, plan = write(case, adapt)
    on_plan(plan)
    job_id = submit(paths, plan, case.client, local_name(case.site), wait).job_id
    try:
        for event in follow(case.client, paths, plan, job_id, until=until):
            if isinstance(event, Outcome):
                return CompletedRun(paths, plan, job_id, event)
            on_event(event)
    except BaseException:
        with contextlib.suppress(ToolkitError):  # a Slurm that is silent does not cancel either
            case.client.cancel(job_id)
            on_cancel(job_id)
        raise
    raise AssertionError("a run that is followed ends with an outcome")
