"""Limits of a process end a command with the cause, the next step and a code of their own."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit import files
from toolkit.errors import LimitError, NoSpaceError, UsageError, of_system

ROOT = Path(files.__file__).parents[1]
FILES, SIZE = resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE
STEPS = {FILES: "ulimit -n", SIZE: "ulimit -f"}


def limited(
    place: Path, kind: int, most: int, words: list[str]
) -> subprocess.CompletedProcess[str]:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TOOLKIT_")},
        **{"HOME": str(place), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        "PATH": f"{place}/bin:{os.environ['PATH']}",
    }
    return subprocess.run(
        [sys.executable, "-m", "toolkit", *words],
        cwd=place,
        env=environment,
        preexec_fn=lambda: resource.setrlimit(kind, (most, most)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:  # a cluster's sockets need a short path
        place = Path(name)
        (place / "train.py").write_text("print(1)\n")
        (place / "job.sh").write_text("#!/bin/bash\n#SBATCH –-nodes=2\nsrun hostname\n")
        (place / ".local/state/toolkit/clusters/local").mkdir(parents=True, mode=0o700)
        (place / "bin").mkdir()
        for name in ("sinfo", "sbatch", "squeue", "scontrol"):  # to start one takes descriptors
            (place / "bin" / name).write_text("#!/bin/sh\nexit 1\n")
            (place / "bin" / name).chmod(0o755)
        yield place


@pytest.mark.parametrize(
    ("kind", "most", "line"),
    [
        (FILES, 6, "lint job.sh"),
        (FILES, 5, "run --image /x.sif train.py"),
        (SIZE, 100, "image new mine --from ngc:pytorch:22.03 --pip rich"),
        (SIZE, 10, "site use generic"),
        (SIZE, 10, "lint --fix job.sh"),
    ],
)
def test_a_limit_is_the_cause(kind, most, line, place):
    done = limited(place, kind, most, line.split())
    assert done.returncode == LimitError.exit_code, done.stderr
    assert STEPS[kind] in done.stderr
    assert "bug" not in done.stderr
    assert "no Slurm" not in done.stderr


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), LimitError),
        (OSError(errno.EMFILE, "open"), LimitError),
        (BlockingIOError(errno.EAGAIN, "fork"), LimitError),
        (OSError(errno.ENAMETOOLONG, "open"), UsageError),
        (RuntimeError("can't start new thread"), LimitError),
        (RuntimeError("a fault of ours"), None),
        (OSError(errno.EFBIG, "write"), LimitError),
        (ImportError("x.so: failed to map segment from shared object"), LimitError),
        (OSError(errno.ENOSPC, "write"), NoSpaceError),
        (OSError(errno.EDQUOT, "write"), NoSpaceError),
        (OSError(errno.EBADF, "a fault of ours"), None),
    ],
)
def test_only_what_the_system_refuses_is_its_fault(error, kind):
    found = of_system(error)
    assert type(found) is (kind or type(None))
    assert found is None or found.next_step
