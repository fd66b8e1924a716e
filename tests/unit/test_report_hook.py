"""The module that Python imports first in a rank: what it writes of failures and stacks, and what stays as it was."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.unit.samples import make_case
from toolkit.config import package_directory
from toolkit.model.run import Record, Submission
from toolkit.planning.plan import decide
from toolkit.runs import records
from toolkit.runs.run import Run
from toolkit.runs.stacks import parse

HOOK = package_directory("scripts") / "report" / "sitecustomize.py"
_JOB = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "3", "SLURMD_NODENAME": "nid002"}
_DROPPED = ("PYTHON", "SLURM_", "RANK", "_TOOLKIT")


class Ended:
    """A script that has ended, with the module or without; what it printed and the files left."""

    def __init__(self, directory: Path, text: str, *, hook: bool = True, **env: str) -> None:
        run = Run(directory)
        run.reports.mkdir(exist_ok=True)
        (run.reports / HOOK.name).write_bytes(HOOK.read_bytes())
        script = directory / "train.py"
        script.write_text("import os, signal, sys\n" + textwrap.dedent(text))
        clean = {key: value for key, value in os.environ.items() if not key.startswith(_DROPPED)}
        added = {"PYTHONPATH": str(run.reports)} if hook else {}
        done = subprocess.run(
            (sys.executable, str(script)),
            env={**clean, **added, **_JOB, **env},
            cwd=directory,
            text=True,
            capture_output=True,
            check=False,
            timeout=60,
        )
        self.code, self.printed, self.errors = done.returncode, done.stdout, done.stderr
        run.plan = decide(make_case({"launcher": "srun"}))
        run.job = Submission(job_id=7, site="local", submitted="")
        self.processes = records.read(run)

    @property
    def records(self) -> list[Record]:
        return [record for process in self.processes for record in process.records]


def test_an_exception_is_recorded_with_the_users_last_frame(tmp_path):
    text = "import json\ndef read(text):\n    return json.loads(text)\nread('{')"
    ended = Ended(tmp_path, text, RANK="5", SECRET="x")
    (process,) = ended.processes
    error = process.records[0].chain[0]
    assert (process.host, process.rank, process.is_rank) == ("nid002", 5, True)
    assert process.env == {**_JOB, "RANK": "5"}
    assert process.program == str(tmp_path / "train.py")
    assert (error.type, error.line, error.function) == ("JSONDecodeError", 4, "read")
    assert error.source == "return json.loads(text)"
    assert error.inner.endswith("decoder.py")
    assert process.ended


_FINALLY = "try:\n    1 / 0\nexcept OSError:\n    pass\nfinally:\n    sys.exit(3)"
_THREAD = "import threading\nt = threading.Thread(target=lambda: {}['a'], name='t')\nt.start()"
_HANDLER = """
def stop(number, frame):
    sys.exit(1)
signal.signal(signal.SIGTERM, stop)
try:
    try:
        {}["a"]
    except KeyError as error:
        raise RuntimeError("step 3") from error
finally:
    os.kill(os.getpid(), signal.SIGTERM)
"""
_CHILD = """
import multiprocessing
def work():
    END
if __name__ == "__main__":
    process = multiprocessing.get_context("HOW").Process(target=work)
    process.start()
    process.join()
"""
_BROKEN = "class E(Exception):\n    def __str__(self):\n        raise OSError\nraise E"
# Addresses, and the frame in which the error of a process of multiprocessing is recorded.
_UNLIKE = re.compile(r" at 0x[0-9a-f]+|  File .*sitecustomize.*\n    run\(\)\n")


def child(how: str, end: str) -> str:
    return _CHILD.replace("HOW", how).replace("END", end)


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ("{}['b']", 1, ["exception KeyError 'b'"]),
        ("sys.excepthook = lambda *a: None\n{}['b']", 1, ["exception KeyError 'b'"]),
        ("sys.exit(3)", 3, ["exit SystemExit  code 3"]),
        ("sys.exit('no labels')", 1, ["exit SystemExit no labels code 1"]),
        (_FINALLY, 3, ["exit SystemExit  code 3, ZeroDivisionError division by zero"]),
        (_THREAD, 0, ["thread KeyError 'a' in t"]),
        (_HANDLER, 1, ["exit SystemExit  code 1 SIGTERM, RuntimeError step 3, KeyError 'a'"]),
        ("raise ExceptionGroup('two', [KeyError('a'), OSError()])", 1, ["exception ExceptionGroup two (2 sub-exceptions), KeyError 'a'"]),
        (child("fork", "{}['s']"), 0, ["child KeyError 's'"]),
        (child("spawn", "{}['s']"), 0, ["child KeyError 's'"]),
        (child("forkserver", "{}['s']"), 0, ["child KeyError 's'"]),
        (child("fork", "sys.exit(3)"), 0, ["exit SystemExit  code 3"]),
        (child("spawn", "sys.exit(3)"), 0, ["child SystemExit  code 3"]),
        ("if os.fork() == 0:\n    {}['f']\nos.wait()", 0, ["exception KeyError 'f'"]),
        (_BROKEN, 1, ["exception E "]),
        ("raise ValueError('\\udc80')", 1, ["exception ValueError ?"]),
        ("raise KeyboardInterrupt", -2, []),
        ("sys.exit(0)", 0, []),
    ],
)  # fmt: skip
def test_each_way_to_fail_leaves_one_record_and_changes_nothing(text, code, expected, tmp_path):
    ended, plain = Ended(tmp_path, text), Ended(tmp_path, text, hook=False)
    assert (ended.code, plain.code) == (code, code)
    assert ended.printed == plain.printed
    assert _UNLIKE.sub("", ended.errors) == _UNLIKE.sub("", plain.errors)
    shown = []
    for record in ended.records:
        parts = [f"{error.type} {error.message}" for error in record.chain]
        parts[0] += f" code {record.code}" if record.code is not None else ""
        parts[0] += f" in {record.thread}" if record.thread else ""
        parts[0] += f" {record.chain[0].signal}" if record.chain[0].signal else ""
        shown.append(f"{record.kind} {', '.join(parts)}")
    assert shown == expected


_ASK = "os.kill(os.getpid(), signal.SIGURG)\n"


def test_the_signal_writes_the_stacks_and_the_program_goes_on(tmp_path):
    ended = Ended(tmp_path, f"def step():\n    {_ASK}step()\nprint('end')")
    (process,) = ended.processes
    (dump,) = parse(process.text.decode(), process.main)
    assert [frame.function for frame in dump[process.main]] == ["step", "<module>"]
    assert ended.printed == "end\n"


@pytest.mark.parametrize(
    "register",
    [
        "signal.signal(signal.SIGURG, lambda *_: open('own', 'w').write('x'))",
        "import faulthandler; own = open('own', 'w'); faulthandler.register(signal.SIGURG, file=own)",
    ],
)
def test_a_handler_of_the_programs_own_is_the_one_that_runs(tmp_path, register):
    forked = f"if os.fork() == 0:\n    os.unlink('own')\n    {_ASK}    os._exit(0)\nos.wait()\n"
    ended = Ended(tmp_path, f"{register}\n{_ASK}{forked}")
    assert [each.text for each in ended.processes] == [b""]
    assert (tmp_path / "own").exists() or "faulthandler" in register


def test_only_ranks_leave_a_file_and_of_several_programs_the_last(tmp_path):
    for _ in range(2):
        Ended(tmp_path, "import subprocess\nsubprocess.run([sys.executable, '-c', 'pass'])")
    names = [path.name for path in Run(tmp_path).reports.glob("*.*") if path.suffix != ".py"]
    assert names == ["nid002-7-.3-.ended"]
    other = tmp_path / "other"
    other.mkdir()
    assert Ended(other, "pass", SLURM_ARRAY_TASK_ID="1").processes == []


def test_records_are_few_and_small_whatever_fails(tmp_path):
    text = """\
        import threading
        def fail():
            raise ValueError("x" * 1_000_000)
        for _ in range(50):
            thread = threading.Thread(target=fail)
            thread.start()
            thread.join()
        """
    assert len(Ended(tmp_path, text).records) == 5
    (path,) = Run(tmp_path).reports.glob("*.ended")
    assert path.stat().st_size < 30_000
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_crash_shows_where_in_python_it_was(tmp_path):
    ended = Ended(tmp_path, "import ctypes\nctypes.string_at(0)\n")
    assert ended.code == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in ended.errors
    text = "import faulthandler\nprint(faulthandler.is_enabled())"
    assert Ended(tmp_path, text, PYTHONFAULTHANDLER="").printed == "False\n"


_C10D = """\
def get_world_size():
    return 3
def get_rank():
    return 2
def init_process_group(backend=None):
    'Initialize.'
    return backend
"""


def test_the_size_of_a_world_is_noted_and_the_module_is_as_it_was(tmp_path):
    package = tmp_path / "torch/distributed"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from torch.distributed.distributed_c10d import *\n")
    (package / "distributed_c10d.py").write_text(_C10D)
    script = """\
        import inspect, torch.distributed as dist
        from torch.distributed import distributed_c10d as module
        assert dist.init_process_group("gloo") == "gloo"
        assert dist.init_process_group is module.init_process_group
        assert str(inspect.signature(dist.init_process_group)) == "(backend=None)"
        assert dist.init_process_group.__doc__ == "Initialize."
        assert type(module.__loader__).__name__ == "SourceFileLoader"
        assert inspect.getsource(module).startswith("def get_world_size")
        """
    ended = Ended(tmp_path, script, SLURM_PROCID="")
    assert ended.code == 0, ended.errors
    assert [(each.world, each.rank) for each in ended.processes] == [(3, 2)]
