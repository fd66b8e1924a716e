"""From a plan to a submitted run: its directory, its files, its job."""

from __future__ import annotations

import shutil
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from toolkit import runtimes, scripts
from toolkit.errors import ImageMissingError, SlurmUnreachableError, SubmissionError, ToolkitError
from toolkit.files import write_atomically
from toolkit.images.store import usage
from toolkit.localcluster.access import default_name
from toolkit.model.base import to_json
from toolkit.model.job import Job
from toolkit.model.plan import Plan
from toolkit.model.run import Outcome, Submission
from toolkit.planning.inputs import Inputs
from toolkit.planning.plan import plan
from toolkit.records import secrets, store
from toolkit.redaction import shows
from toolkit.runs import once, reports
from toolkit.slurm.client import AnswerLostError, Client
from toolkit.slurm.patience import Wait


def write(inputs: Inputs) -> tuple[store.Paths, Plan]:
    """Plan a run, and write its directory under a number that no other run has.

    Raises:
        PlanError: it could not run; nothing was written.
        ImageMissingError: the image of a registry has not been fetched.
    """
    from toolkit.records import code, snapshot

    decided = plan(frozen(inputs))
    if inputs.to_fetch:
        step = f"toolkit image pull {inputs.to_fetch} --name {Path(inputs.image).name.removesuffix('.sif')}"
        raise ImageMissingError(
            f"{inputs.to_fetch} has not been fetched", place="--image", next_step=step
        )
    while not store.create(Path(decided.run_directory)):
        taken = Path(decided.run_directory)
        free = store.next_directory(taken.parent, taken.name.rsplit("-", 1)[0])
        inputs = inputs._replace(run_directory=str(free))
        decided = plan(frozen(inputs))
    directory = Path(decided.run_directory)
    try:
        values = {name: inputs.job.env[name] for name in decided.secrets}
        if values or shows(inputs.job.arguments):
            directory.chmod(0o700)
        if decided.reports:
            reports.place_hook(directory)
        if values:
            secrets.write(directory, decided.container.prefix, values)
        # The plan comes first: a run whose submission is killed is listed, and can be removed.
        paths = store.write(
            directory, decided, repeatable(inputs, decided), scripts.script(decided)
        )
        if inputs.tree is not None:
            snapshot.take(paths, inputs.tree, inputs.directory, inputs.folder)
        if inputs.tree is not None and inputs.tree.is_copy:
            code.repeat(Path(inputs.tree.root).parent, paths)
        else:
            code.record(paths, inputs.script_file, Path(inputs.folder), values.values())
        return paths, decided
    except BaseException:
        shutil.rmtree(directory)
        raise


def frozen(inputs: Inputs) -> Inputs:
    """Return the inputs of a job as it runs in the snapshot of its run's directory. Pure."""
    if inputs.tree is None:
        return inputs
    code = PurePosixPath(inputs.run_directory) / "code"
    root = PurePosixPath(inputs.tree.root)

    def moved(path: str) -> str:
        place = PurePosixPath(path)
        return str(code / place.relative_to(root)) if place.is_relative_to(root) else path

    script = inputs.script
    is_inside = PurePosixPath(inputs.directory).is_relative_to(root)
    if not inputs.program and (script.startswith("/") or not is_inside):
        script = moved(str(PurePosixPath(inputs.folder) / PurePosixPath(script).name))
    return inputs._replace(
        directory=moved(inputs.directory),
        folder=moved(inputs.folder),
        script=script,
        script_file=None,
    )


def with_dependencies(inputs: Inputs) -> Inputs:
    """Return the inputs with the jobs that ``--after`` names, and what is wrong with these."""
    if not inputs.job.after:
        return inputs
    from toolkit.runs.dependencies import dependencies

    cluster = default_name() if inputs.site.access == "local-cluster" else None
    after, findings = dependencies(inputs.job.after, Path(inputs.run_directory).parent, cluster)
    return inputs._replace(after=after, findings=[*inputs.findings, *findings])


def repeatable(inputs: Inputs, decided: Plan) -> Job:
    """Return the settings by which a run can be repeated: without the values of secrets, and without what it waits for."""
    script = (
        inputs.script if inputs.program else str(Path(inputs.folder) / Path(inputs.script).name)
    )
    if inputs.tree is not None and inputs.tree.is_copy:
        script = inputs.job.script or script  # of the work tree, which --no-snapshot runs
    values = {name: value for name, value in inputs.job.env.items() if name not in decided.secrets}
    return replace(inputs.job, script=script, after=(), env=values, pass_env=())


def submit(
    paths: store.Paths, decided: Plan, client: Client, cluster: str | None, wait: Wait | None = None
) -> Submission:
    """Submit a written run, once. From here on its directory is never removed.

    Args:
        paths: of the run.
        decided: its plan.
        client: of the cluster.
        cluster: name of the local cluster, if it is one.
        wait: how long a silent Slurm is waited for; None: not at all.

    Raises:
        SubmissionError: Slurm refused the job; `toolkit ps` lists the run as refused.
        SlurmSilentError: no controller was reached; `toolkit ps` lists the run as not submitted.
        AnswerLostError: it is not known whether Slurm has the job, and `toolkit ps` looks for it.
        UnrecordedError: Slurm has the job, and this could not be written down; `toolkit ps` looks for it.
    """
    attempt = once.begin(paths, decided, cluster)
    try:
        submitted = once.submit_once(client, paths.script, attempt.mark, wait or Wait())
    except (SubmissionError, SlurmUnreachableError) as error:
        if not isinstance(error, AnswerLostError):
            not_submitted(paths, error)
        raise
    submission = once.record(paths, attempt, submitted)
    if runtimes.get(decided.container.runtime).image == "sif":
        use = usage.Use(paths.directory, submission.job_id, cluster, attempt.mark)
        usage.note(Path(decided.container.image), use)
    return submission


def not_submitted(paths: store.Paths, error: ToolkitError) -> None:
    """Write down that Slurm does not have a run, and why if it refused it."""
    if isinstance(error, SubmissionError):
        words = "; ".join((error.cause, *error.details))
        refused = Outcome(
            state="REFUSED", kind="refused", exit_code=error.exit_code, seconds=0.0, message=words
        )
        write_atomically(paths.outcome, to_json(refused))
    paths.attempt.unlink(missing_ok=True)
    again = f"the script is kept; submit it again: toolkit run {paths.directory.parent.name}/{paths.name}"
    error.details = (*error.details, again)
