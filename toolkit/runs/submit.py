"""From a plan to a submitted run: its directory, its files, its number."""

from __future__ import annotations

import shutil
from datetime import datetime, timezone
from pathlib import Path

from msgspec.structs import replace

from toolkit import scripts
from toolkit.errors import SlurmUnreachableError, SubmissionError
from toolkit.files import write_atomically
from toolkit.images import usage
from toolkit.model.base import to_json
from toolkit.model.plan import Plan
from toolkit.model.run import Submission
from toolkit.plan import Inputs, plan
from toolkit.runs import store
from toolkit.slurm.client import Client


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
        again = replace(inputs.job, script=script)
        return store.write(directory, decided, again, scripts.script(decided)), decided
    except BaseException:
        shutil.rmtree(directory)
        raise


def submit(paths: store.Paths, decided: Plan, client: Client, cluster: str | None) -> Submission:
    """Hand a written run to Slurm.

    Raises:
        SubmissionError: Slurm refused it; the run's directory is gone again.
    """
    try:
        job_id = client.submit(paths.script)
    except (SubmissionError, SlurmUnreachableError):
        shutil.rmtree(paths.directory)  # after any other end, such as Ctrl-C, Slurm may have the job: its files stay
        raise
    usage.note(Path(decided.container.image), paths.directory)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    submission = Submission(job_id=job_id, site=decided.site, submitted=now, cluster=cluster)
    write_atomically(paths.submission, to_json(submission))
    return submission
