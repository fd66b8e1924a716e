"""The jobs that ``toolkit.submit`` returns: submitit's, on our own client and our own logs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from submitit.core import core, utils

from toolkit.errors import SlurmUnreachableError, SubmissionError
from toolkit.launchers.others import SUBMITIT_FOLDER, SUBMITIT_SIGNAL
from toolkit.model.site import Access
from toolkit.runs.run import Run
from toolkit.slurm.client import Client

_MISSES = 3  # queries in a row without a job, until it counts as lost


class Watcher(core.InfoWatcher):
    """A watcher of all jobs of one cluster, which needs no accounting as submitit's own does."""

    def __init__(self, client: Client) -> None:
        super().__init__(delay_s=30)
        self.client = client
        self._missed = Counter[str]()

    def update(self) -> None:
        """Query the jobs that have not ended; one that Slurm has forgotten counts as ended."""
        numbers = sorted(self._registered - self._finished, key=int)
        self._last_status_check = time.time()
        try:
            states = self.client.jobs([int(number) for number in numbers])
        except SlurmUnreachableError:
            return  # a controller that restarts is asked again; until then all is as it was
        for number in numbers:
            state = states.get(int(number))
            self._missed[number] = 0 if state else self._missed[number] + 1
            if state:
                self._info_dict[number] = {"State": state.state, "NodeList": state.nodes}
            elif self._missed[number] >= _MISSES:
                self._info_dict[number] = {"State": "LOST"}
            if self.is_done(number, mode="cache"):
                self._finished.add(number)

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """Return the state: ``PENDING``, ...; ``LOST``, or ``UNKNOWN`` before the first query."""
        return self.get_info(job_id, mode=mode).get("State", "UNKNOWN")


@cache
def watcher_of(access: Access) -> Watcher:
    """Return the watcher of a cluster that is up: one query serves all of its jobs."""
    return Watcher(Client(access))


class Paths(utils.JobPaths):
    """The files of a task; the run's logs have both its standard output and its errors."""

    def __init__(self, run: Run, job_id: str, task_id: int | None) -> None:
        super().__init__(run.directory / SUBMITIT_FOLDER, job_id=job_id, task_id=task_id)
        self._run = run

    @property
    def stdout(self) -> Path:
        """The log of the task."""
        logs = [
            log.path for log in self._run.logs_of(int(self.job_id or 0)) if log.task == self.task_id
        ]
        return logs[-1] if logs else self._run.logs / f"{self.job_id}-{self.task_id}.log"

    stderr = stdout


class Job(core.Job[Any]):
    """A function that was submitted; ``result()`` waits for it.

    Attributes:
        run: the run's directory; its name is what `toolkit logs`, `explain` and `cancel` take.
    """

    watcher: Watcher

    def __init__(self, folder: Path | str, job_id: str, tasks: Sequence[int] = (0,)) -> None:
        run = Run(Path(folder).parent)
        self.run = run.directory
        self.watcher = watcher_of(run.client.access)
        super().__init__(folder, job_id, tasks)
        self._paths = Paths(run, job_id, self.task_id)

    def cancel(self, check: bool = True) -> None:
        """Cancel the job; no error if it has ended already."""
        del check
        self.watcher.client.cancel(int(self.job_id))

    def interrupt(self) -> None:
        """Signal the job to save and requeue itself, as Slurm does before it preempts a job."""
        signal = ("--batch", f"--signal={SUBMITIT_SIGNAL}")
        answer = self.watcher.client.ask("scancel", *signal, self.job_id)
        if not answer.ok:
            raise SubmissionError(
                f"job {self.job_id} could not be signaled", place="scancel", details=answer.tail()
            )
