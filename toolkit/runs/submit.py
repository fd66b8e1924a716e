"""From a plan to a submitted run: its directory, its files, its number."""

from __future__ import annotations

import shutil
from pathlib import Path

from msgspec.structs import replace

from toolkit import scripts
from toolkit.errors import SlurmUnreachableError, SubmissionError
from toolkit.files import write_atomically
from toolkit.images import usage
from toolkit.model.base import to_json
from toolkit.model.plan import Plan
from toolkit.model.run import Attempt, Submission
from toolkit.plan import Inputs, plan
from toolkit.redaction import shows
from toolkit.runs import hidden, once, store
from toolkit.slurm.client import AnswerLostError, Client
from toolkit.slurm.patience import Wait


def write(inputs: Inputs) -> tuple[store.Paths, Plan]:
    """Plan a run, and write its directory under a number that nobody else has.

    Raises:
        PlanError: it could not run; nothing was written.
    """
    decided = plan(inputs)
    while not store.create(Path(decided.run_directory)):
        taken = Path(decided.run_directory)
        free = store.next_directory(taken.parent, taken.name.rsplit("-", 1)[0])
        inputs = inputs._replace(run_directory=str(free))
        decided = plan(inputs)
    directory = Path(decided.run_directory)
    try:
        script = inputs.script if inputs.program else str(Path(inputs.folder) / Path(inputs.script).name)
        values = {name: inputs.job.env[name] for name in decided.secrets}
        if values or shows(inputs.job.arguments):
            directory.chmod(0o700)
        if values:
            hidden.write(directory, decided.container.prefix, values)
        again = replace(
            inputs.job, script=script, after=(), env={name: value for name, value in inputs.job.env.items() if name not in values}
        )
        return store.write(directory, decided, again, scripts.script(decided)), decided
    except BaseException:
        shutil.rmtree(directory)
        raise


def submit(paths: store.Paths, decided: Plan, client: Client, cluster: str | None, wait: Wait | None = None) -> Submission:
    """Hand a written run to Slurm, once.

    Args:
        wait: how long a silent Slurm is waited for; None: not at all.

    Raises:
        SubmissionError, SlurmSilentError: Slurm refused it, or was not there; the run's directory is gone again.
        AnswerLostError: it is not known whether Slurm has it; the directory stays, and `toolkit ps` looks for the job.
    """
    attempt = Attempt(mark=once.new_mark(), site=decided.site, submitted=once.now(), cluster=cluster)
    write_atomically(paths.attempt, to_json(attempt))
    try:
        job_id = once.submit_once(client, paths.script, attempt.mark, wait or Wait())
    except (SubmissionError, SlurmUnreachableError) as error:
        if not isinstance(error, AnswerLostError):
            shutil.rmtree(paths.directory)  # after any other end, such as Ctrl-C, Slurm may have the job: its files stay
        raise
    if decided.container.runtime == "apptainer":
        usage.note(Path(decided.container.image), paths.directory)
    return once.record(paths, attempt, job_id)
