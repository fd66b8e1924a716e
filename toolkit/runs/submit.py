"""Submit the job of a written run once."""

from __future__ import annotations

from pathlib import Path

from toolkit import runtimes
from toolkit.config import package_directory
from toolkit.errors import SlurmUnreachableError, SubmissionError, ToolkitError
from toolkit.files import write_atomically
from toolkit.images.store import usage
from toolkit.model.base import to_json
from toolkit.model.plan import Plan
from toolkit.model.run import Outcome, Submission
from toolkit.runs import once, store
from toolkit.slurm.client import Client
from toolkit.slurm.failures import AnswerLostError
from toolkit.slurm.patience import Wait


def place_hook(directory: Path) -> None:
    """Copy the module of the ranks to where the processes of a run import it."""
    target = store.Paths(directory).reports
    target.mkdir(mode=0o700)
    source = package_directory("scripts") / "report" / "sitecustomize.py"
    (target / source.name).write_bytes(source.read_bytes())


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
