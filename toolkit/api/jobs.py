"""The jobs that ``toolkit.submit`` returns: submitit's, that ask our own client how they are and find our logs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from submitit.core import core, utils

from toolkit.errors import SlurmUnreachableError, SubmissionError
from toolkit.launchers.submitit import FOLDER, SIGNAL
from toolkit.records import store
from toolkit.slurm.client import Client

_MISSES = 3  # looks in a row that do not find a job, until it counts as lost


class Watcher(core.InfoWatcher):
    """Asks for the states of all jobs of one cluster at once; works without accounting, which submitit's own needs."""

    def __init__(self, client: Client) -> None:
        super().__init__(delay_s=30)
        self._client = client
        self._missed: dict[str, int] = {}

    def update(self) -> None:
        """Look, unless all have ended; a job that Slurm does not know any more has, since nobody can tell how."""
        asked = sorted(self._registered - self._finished, key=int)
        self._last_status_check = time.time()
        if not asked:
            return
        self._num_calls += 1
        try:
            states = self._client.jobs([int(number) for number in asked])
        except SlurmUnreachableError:
            return  # a controller that restarts is asked again; until then all is as it was
        for number in asked:
            found = states.get(int(number))
            self._missed[number] = 0 if found else self._missed.get(number, 0) + 1
            if found:
                self._info_dict[number] = {"State": found.state, "NodeList": found.nodes}
            elif self._missed[number] >= _MISSES:
                self._info_dict[number] = {"State": "LOST"}
            if self.is_done(number, mode="cache"):
                self._finished.add(number)

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """``PENDING``, ``RUNNING``, ..., ``LOST``; ``UNKNOWN`` before the first look."""
        return self.get_info(job_id, mode=mode).get("State", "UNKNOWN")


class Paths(utils.JobPaths):
    """The files of a task; its output is in the run's logs, standard output and errors in one file."""

    def __init__(self, run: store.Paths, job_id: str, task_id: int | None) -> None:
        super().__init__(run.directory / FOLDER, job_id=job_id, task_id=task_id)
        self._run = run

    @property
    def stdout(self) -> Path:
        logs = [
            log.path for log in self._run.logs_of(int(self.job_id or 0)) if log.task == self.task_id
        ]
        return logs[-1] if logs else self._run.logs / f"{self.job_id}-{self.task_id}.log"

    @property
    def stderr(self) -> Path:
        return self.stdout


class Job(core.Job[Any]):
    """A function that was submitted; ``result()`` waits for it.

    Attributes:
        run: the run's directory; its name is what `toolkit logs`, `explain` and `cancel` take.
    """

    # Set by ``job``, for a class of its own for each cluster: submitit makes jobs of tasks by
    # calling the class.
    client: Client
    run_paths: store.Paths

    def __init__(self, folder: Path | str, job_id: str, tasks: Sequence[int] = (0,)) -> None:
        super().__init__(folder, job_id, tasks)
        self._paths = Paths(self.run_paths, job_id, self.task_id)

    @property
    def run(self) -> Path:
        return self.run_paths.directory

    def cancel(self, check: bool = True) -> None:
        """Cancel the job; one that has ended already is no error."""
        del check
        self.client.cancel(int(self.job_id))

    def interrupt(self) -> None:
        """Tell the job to save itself and go back into the queue, as Slurm does before it takes the nodes for another job."""
        said = self.client.ask("scancel", "--batch", f"--signal={SIGNAL}", self.job_id)
        if not said.ok:
            raise SubmissionError(
                f"job {self.job_id} could not be told", place="scancel", details=said.tail()
            )

    def __repr__(self) -> str:
        return f"Job(run={self.run.name!r}, job_id={self.job_id}, state={self.state!r})"


def job(client: Client, paths: store.Paths, number: int, tasks: int) -> Job:
    """The job with this number, of a cluster that is reached by ``client``."""
    kind: type[Job] = type(
        "Job", (Job,), {"client": client, "run_paths": paths, "watcher": Watcher(client)}
    )
    return kind(paths.directory / FOLDER, str(number), tuple(range(tasks)))
