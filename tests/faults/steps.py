"""Kill code at each of its steps on the file system, and have the caller look at what is left.

`kill_at_each` runs a piece of Python in a process of its own, again and again. Each time the
process kills itself (SIGKILL) one step later: right before, or right after, a call that makes
something durable or visible. Nothing is caught, closed or cleaned up then, as when a node fails.
The last run comes to its end.

    for killed in kill_at_each(prepare, "from toolkit...; publish(...)", tmp_path):
        assert something_about(killed.place)

It also tells which files were given their final name before the disk had taken their contents: a
power cut could leave those empty.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

CALLS = tuple("fsync replace rename link symlink unlink rmdir truncate ftruncate utime".split())
_MOST = 500  # runs; code with more steps than this does not end

# It runs `python -c HARNESS calls action`, imports what the action does, and then runs the action
# in a child for each line `when number place` that it reads. Of each it prints a line: the exit
# status, and what the child told.
_HARNESS = """\
import ast, json, os, signal, stat, sys
calls, action = sys.argv[1].split(","), sys.argv[2]
imports = [one for one in ast.parse(action).body if isinstance(one, (ast.Import, ast.ImportFrom))]
exec(compile(ast.Module(imports, []), "imports", "exec"), {})

def instrument(when, number, tell):
    left, synced = [number], set()
    def die(name):
        tell("killed " + when + " " + name)
        os.kill(os.getpid(), signal.SIGKILL)
    def wrap(name, real):
        def wrapped(*arguments, **options):
            left[0] -= 1
            if left[0] == 0 and when == "before":
                die(name)
            if name in ("replace", "rename") and not options:
                state = os.lstat(arguments[0])
                if stat.S_ISREG(state.st_mode) and (state.st_dev, state.st_ino) not in synced:
                    tell("unsynced " + os.fsdecode(arguments[1]))
            result = real(*arguments, **options)
            if name == "fsync":
                state = os.fstat(arguments[0])
                synced.add((state.st_dev, state.st_ino))
            if left[0] == 0 and when == "after":
                die(name)
            return result
        return wrapped
    for name in calls:
        setattr(os, name, wrap(name, getattr(os, name)))

for line in sys.stdin:
    when, number, place = line.rstrip("\\n").split(" ", 2)
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        instrument(when, int(number), lambda text: os.write(into, (text + "\\n").encode()))
        exec(compile(action, "action", "exec"), {"place": place, "__name__": "action"})
        sys.exit(0)
    os.close(into)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with os.fdopen(out) as stream:
        print(json.dumps([status, stream.read().splitlines()]), flush=True)
"""


@dataclass(frozen=True)
class Killed:
    """One run.

    Attributes:
        place: the directory that it worked in.
        point: where it was killed: ``before replace``; empty: it came to its end.
        number: of the point, from 1 on.
        unsynced: files that got their name before the disk had them.
    """

    place: Path
    point: str
    number: int
    unsynced: tuple[str, ...]

    @property
    def ended(self) -> bool:
        return not self.point


def kill_at_each(prepare: Callable[[Path], object], action: str, scratch: Path) -> Iterator[Killed]:
    """Run an action to each of its steps, and once to its end.

    Args:
        prepare: fills a new directory, which the action works in.
        action: Python source; the directory is in the variable `place`. It must import all that it needs.
        scratch: where the directories are made.
    """
    argv = [sys.executable, "-c", _HARNESS, ",".join(CALLS), action]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as harness:
        try:
            for when in ("before", "after"):
                yield from _each(prepare, scratch, when, harness)
        finally:
            harness.kill()


def _each(
    prepare: Callable[[Path], object], scratch: Path, when: str, harness: subprocess.Popen[str]
) -> Iterator[Killed]:
    for number in range(1, _MOST):
        place = scratch / f"{when}-{number}"
        place.mkdir()
        prepare(place)
        killed = _run(harness, place, when, number)
        yield killed
        if killed.ended:
            return
    raise AssertionError(f"the action has more than {_MOST} steps")


def _run(harness: subprocess.Popen[str], place: Path, when: str, number: int) -> Killed:
    assert harness.stdin
    assert harness.stdout
    harness.stdin.write(f"{when} {number} {place}\n")
    harness.stdin.flush()
    status, told = json.loads(harness.stdout.readline() or "[1, []]")
    point = next((line.removeprefix("killed ") for line in told if line.startswith("killed ")), "")
    assert status == (-signal.SIGKILL if point else 0), (
        f"{point or 'the whole action'} ended with {status}"
    )
    return Killed(
        place,
        point,
        number,
        tuple(line.removeprefix("unsynced ") for line in told if line.startswith("unsynced ")),
    )
