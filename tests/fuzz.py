"""Break the inputs of every reader for as long as one likes: ``make fuzz SECONDS=300``.

Each reader has a process of its own, which may take 2 GiB and 20 seconds for one input. An input
that ends in anything but a result or a ``ToolkitError`` is kept in ``build/fuzz``, and named.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from random import Random

from tests.readers import READERS, broken, check

MEMORY = 2 << 30  # bytes of a process
PATIENCE = 20  # seconds for one input
FOUND = Path("build/fuzz")


def work(name: str, seconds: float, first: int) -> int:
    """Break the inputs of one reader; return 1 where one was not refused properly."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    reader, ends, outcomes = READERS[name], time.monotonic() + seconds, {"read": 0}
    scratch = Path(tempfile.mkdtemp(prefix="toolkit-fuzz-"))
    number, data = first, b""
    try:
        while time.monotonic() < ends:
            number += 1
            random = Random(number)
            data = random.choice(reader.seeds)
            for _ in range(random.choice((1, 1, 1, 2, 3))):
                data = broken(data, random)
            place = Path(tempfile.mkdtemp(dir=scratch))
            signal.alarm(PATIENCE)
            outcome = check(reader, data, place)
            signal.alarm(0)
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            shutil.rmtree(place)
    except BaseException:
        signal.alarm(0)
        FOUND.mkdir(parents=True, exist_ok=True)
        (FOUND / f"{name}-{number}").write_bytes(data)
        traceback.print_exc()
        print(f"{name:<10} FAILED on input {number}: {FOUND / f'{name}-{number}'}", flush=True)
        return 1
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    print(f"{name:<10} {number - first} inputs: {counts}", flush=True)
    return 0


def too_long(*_: object) -> None:
    """Turn the alarm into an error, with the place at which the reader hangs."""
    raise TimeoutError(f"a reader has not ended after {PATIENCE} s")


def main(arguments: list[str]) -> int:
    """Run the readers one after the other: ``python -m tests.fuzz SECONDS [READER...]``."""
    names = arguments[1:] or list(READERS)
    each = float(arguments[0]) / len(names)
    first = int.from_bytes(os.urandom(4), "big") << 16
    signal.signal(signal.SIGALRM, too_long)
    failed = 0
    for name in names:
        child = os.fork()
        if child == 0:
            os._exit(work(name, each, first))
        _, status = os.waitpid(child, 0)
        failed |= os.waitstatus_to_exitcode(status) != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
