"""Run the checks of an image, several at a time, and print what each printed as a whole.

Started as ``python -m toolkit.images.builder.apptainer.side_by_side TASKS``, so that the guard of a
build ends all of them together. A check of an earlier image is carried over if the image itself,
asked first, shows that nothing that was added can change it.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from toolkit.images.builder.apptainer.carry import is_unaffected
from toolkit.images.builder.apptainer.protocol import CARRIED, CheckTask, CheckTasks, Reach
from toolkit.model.base import from_json

_MARK = "toolkit-json: "
_PATIENCE = 120.0  # seconds for the modules of the checks to be imported
_printing = threading.Lock()


def run(tasks: CheckTasks) -> int:
    """Run the checks; return the exit code of the last that failed, or 0."""
    with ThreadPoolExecutor(tasks.workers) as executor:
        doubtful = [task for task in tasks.checks if task.name in tasks.candidates]
        asking = next((task for task in tasks.checks if task.asks), None)
        answer = executor.submit(_ask, tasks, asking)
        others = (*doubtful, asking)
        sure = [task for task in tasks.checks if task not in others and not task.is_alone]
        codes = [executor.submit(_run, tasks, task) for task in sure]
        code, output = answer.result()
        carried = _unaffected(tasks, doubtful, output)
        codes += [
            executor.submit(_run, tasks, task) for task in doubtful if task.name not in carried
        ]
        for name in carried:
            _print(f"{tasks.token}{CARRIED}{name}\n")
    ended = [code, *(code.result() for code in codes)]
    ended += [_run(tasks, task) for task in tasks.checks if task.is_alone]
    return next((code for code in ended if code != 0), 0)


def _run(tasks: CheckTasks, task: CheckTask) -> int:
    done = _call((*tasks.command, "/bin/sh", "-c", task.script))
    _print(done.stdout)
    return done.returncode


def _ask(tasks: CheckTasks, asking: CheckTask | None) -> tuple[int, str]:
    """Ask the image what the doubtful checks look for, by a check if one does it by the way.

    Returns:
        The exit code of the check, and what was printed.
    """
    if not tasks.asked:
        return 0, ""
    if asking:
        done = _call((*tasks.reach, "/bin/sh", "-c", asking.script))
        lines = done.stdout.splitlines(keepends=True)
        _print("".join(line for line in lines if not line.startswith(_MARK)))
        return done.returncode, done.stdout
    try:
        return 0, _call((*tasks.reach, *tasks.asked), _PATIENCE).stdout
    except subprocess.TimeoutExpired:
        return 0, ""


def _call(argv: Sequence[str], timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )


def _print(text: str) -> None:
    with _printing:
        sys.stdout.write(text)
        sys.stdout.flush()


def _unaffected(tasks: CheckTasks, doubtful: Sequence[CheckTask], output: str) -> list[str]:
    """Return the names of the checks that nothing that was added can change."""
    line = next((row for row in output.splitlines() if row.startswith(_MARK)), "")
    try:
        reach = msgspec.json.decode(line.removeprefix(_MARK), type=Reach)
    except msgspec.DecodeError:
        return []
    added = tasks.added
    return [task.name for task in doubtful if added and is_unaffected(task, added, reach)]


if __name__ == "__main__":
    path = Path(sys.argv[1])
    sys.exit(run(from_json(path.read_text(encoding="utf-8"), CheckTasks)))
