"""Write the directory of a planned run, and submit its job once.

`toolkit run` may be killed, or lose its connection, between sbatch and the record of its job. Then
the next call for the same job takes up that submission.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from toolkit import launchers, runtimes, scripts
from toolkit.config import package_directory
from toolkit.errors import (
    ConfigError,
    ImageMissingError,
    SlurmUnreachableError,
    SubmissionError,
    ToolkitError,
    UntrustedError,
)
from toolkit.files import read_json, write_atomically
from toolkit.images.store import usage
from toolkit.localcluster.access import local_name
from toolkit.model.base import to_json
from toolkit.model.case import Case
from toolkit.model.job import Job
from toolkit.model.plan import Plan
from toolkit.model.run import Outcome, Submission
from toolkit.planning.case import gather
from toolkit.planning.plan import decide
from toolkit.planning.settings import Layer
from toolkit.records import secrets, store
from toolkit.runs import once, status
from toolkit.shell import Progress
from toolkit.slurm.client import Client
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
    from toolkit.records import code, snapshot

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
            _place_hook(directory)
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


def _place_hook(directory: Path) -> None:
    """Copy the modules of the ranks to where the processes of a run import them."""
    target = store.Paths(directory).reports
    target.mkdir(mode=0o700)
    for name in ("sitecustomize.py", "failure.py", "stacks.py"):
        source = package_directory("scripts") / "report" / name
        (target / name).write_bytes(source.read_bytes())


def repeatable(case: Case, decided: Plan) -> Job:
    """Return the settings that repeat a run, without values of secrets and dependencies."""
    target = case.target
    script = target.script if target.is_program else str(Path(target.folder) / target.name)
    if case.tree is not None and case.tree.is_copy:
        script = case.job.script or script  # of the work tree, which --no-snapshot runs
    values = {name: value for name, value in case.job.env.items() if name not in decided.secrets}
    return replace(case.job, script=script, after=(), env=values, pass_env=())


def submit(
    paths: store.Paths, decided: Plan, client: Client, cluster: str | None, wait: Wait
) -> Submission:
    """Submit a written run once. From now on its directory is never removed.

    Args:
        paths: of the run.
        decided: its plan.
        client: of the cluster.
        cluster: name of the local cluster, if it is one.
        wait: patience with a Slurm that does not answer.

    Raises:
        SubmissionError: Slurm refused the job; `toolkit ps` lists the run as refused.
        SlurmSilentError: no controller was reached; `toolkit ps` lists the run as not submitted.
        AnswerLostError: it is not known whether Slurm has the job; `toolkit ps` searches for it.
        UnrecordedError: Slurm has the job, but its number could not be recorded; `toolkit ps` does.
    """
    with once.begun(paths, decided.site, cluster) as (attempt, lock):
        try:
            job_id = once.submit_once(client, paths.script, once.began(attempt), lock, wait)
        except (SubmissionError, SlurmUnreachableError) as error:
            if not isinstance(error, AnswerLostError):
                not_submitted(paths, error)
            raise
        submission = once.record(paths, attempt, job_id)
    if runtimes.get(decided.container.runtime).image == "sif":
        use = usage.Use(paths.directory, submission.job_id, cluster)
        usage.note(Path(decided.container.image), use)
    return submission


def not_submitted(paths: store.Paths, error: ToolkitError) -> None:
    """Record that Slurm does not have a run, and why if it refused the job."""
    if isinstance(error, SubmissionError):
        message = "; ".join((error.cause, *error.details))
        refused = Outcome(
            state="REFUSED", kind="refused", exit_code=error.exit_code, seconds=0.0, message=message
        )
        write_atomically(paths.outcome, to_json(refused))
    paths.attempt.unlink(missing_ok=True)
    run = f"{paths.directory.parent.name}/{paths.name}"
    again = f"the script is kept; submit it again: toolkit run {run}"
    error.details = (*error.details, again)


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
