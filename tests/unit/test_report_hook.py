"""The module that records why a rank fails: run by plain Python, as a rank imports it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest

from toolkit.config import package_directory
from toolkit.model.run import Report

HOOK = package_directory("scripts") / "report" / "sitecustomize.py"


class Ended:
    """How a script ended under the hook, and what it left behind."""

    def __init__(
        self, directory: Path, text: str, *, env: dict[str, str] | None = None, hook: bool = True
    ) -> None:
        self.report = directory / "report"
        self.report.mkdir(exist_ok=True)
        for path in HOOK.parent.glob("*.py"):
            (self.report / path.name).write_bytes(path.read_bytes())
        script = directory / "train.py"
        script.write_text(textwrap.dedent(text))
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "SLURM_", "RANK"))
        }
        added = {"PYTHONPATH": str(self.report)} if hook else {}
        words = (sys.executable, str(script))
        self.done = subprocess.run(
            words,
            env={**clean, **added, **(env or {})},
            text=True,
            capture_output=True,
            check=False,
            timeout=60,
        )
        files = sorted(self.report.glob("*.json"))
        self.records = sorted(
            (msgspec.json.decode(path.read_bytes(), type=Report) for path in files),
            key=lambda one: one.time_ns,
        )


def test_an_exception_is_recorded_with_the_users_last_frame(tmp_path: Path) -> None:
    ended = Ended(
        tmp_path,
        """\
        import json

        def read(text):
            return json.loads(text)

        read("{")
        """,
        env={"RANK": "3", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "nid002", "SECRET": "x"},
    )
    (record,) = ended.records
    error = record.errors[0]
    assert (record.kind, record.host, record.env) == (
        "exception",
        "nid002",
        {"RANK": "3", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "nid002"},
    )
    assert (error.type, error.line, error.function, error.source) == (
        "JSONDecodeError",
        4,
        "read",
        "return json.loads(text)",
    )
    assert error.inner.endswith("decoder.py")
    assert ended.done.returncode == 1


@pytest.mark.parametrize(
    ("text", "code", "kind", "message"),
    [
        ("import sys\nsys.exit(3)", 3, "exit", ""),
        ("import sys\nsys.exit('no labels')", 1, "exit", "no labels"),
        ("quit(4)", 4, "exit", ""),
        (
            "import argparse\nargparse.ArgumentParser(prog='x').parse_args(['--a'])",
            2,
            "exit",
            "x: error: unrecognized arguments: --a",
        ),
        (
            "import threading\nt = threading.Thread(target=lambda: {}['a'])\nt.start()\nt.join()",
            0,
            "thread",
            "'a'",
        ),
        (
            "class A:\n    def __del__(self):\n        raise ValueError('torn')\nA()",
            0,
            "destructor",
            "torn",
        ),
        ("import sys\nsys.excepthook = lambda *a: None\n{}['b']", 1, "exception", "'b'"),
        ("bytearray(1 << 60)", 1, "exception", ""),
    ],
)
def test_each_way_to_fail_leaves_one_record(
    text: str, code: int, kind: str, message: str, tmp_path: Path
) -> None:
    ended = Ended(tmp_path, text)
    (record,) = ended.records
    assert (record.kind, record.errors[0].message) == (kind, message)
    assert ended.done.returncode == code


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_a_process_of_multiprocessing_is_recorded_once(how: str, tmp_path: Path) -> None:
    ended = Ended(
        tmp_path,
        f"""\
        import multiprocessing

        def work():
            {{}}["shard"]

        if __name__ == "__main__":
            process = multiprocessing.get_context("{how}").Process(target=work)
            process.start()
            process.join()
        """,
    )
    (record,) = ended.records
    assert (record.kind, record.errors[0].type, record.errors[0].line) == ("child", "KeyError", 4)
    assert record.process.endswith("Process-1")


def test_healthy_programs_leave_nothing_and_print_the_same(tmp_path: Path) -> None:
    text = """\
        import argparse, sys
        try:
            {}["a"]
        except KeyError:
            print("no a")
        print([name for name in sys.path if "report" in name])
        sys.exit(0)
        """
    ended, plain = Ended(tmp_path, text), Ended(tmp_path, text, hook=False)
    assert ended.records == []
    assert (ended.done.stdout, ended.done.stderr, ended.done.returncode) == (
        plain.done.stdout,
        plain.done.stderr,
        plain.done.returncode,
    )


@pytest.mark.parametrize(
    "error", ["ValueError('x')", "KeyboardInterrupt", "SystemExit(5)", "SystemExit('no')"]
)
def test_what_a_failing_program_prints_and_its_exit_code_stay_the_same(
    error: str, tmp_path: Path
) -> None:
    text = f"def f():\n    raise {error}\n\nf()\n"
    ended, plain = Ended(tmp_path, text), Ended(tmp_path, text, hook=False)
    assert (ended.done.stderr, ended.done.returncode) == (plain.done.stderr, plain.done.returncode)


@pytest.mark.parametrize(
    ("script", "messages"),
    [
        ('raise SystemExit("no data in /scratch")', ["no data in /scratch"]),
        ('import sys\nsys.stderr.write("hello")\nraise SystemExit(["a"])', ["['a']"]),
        ('import sys\nsys.exit("no data")', ["no data"]),
        ("raise SystemExit(3)", []),
        ('try:\n    raise SystemExit("later")\nexcept SystemExit:\n    pass', []),
        ("import sys\nsys.excepthook = sys.__excepthook__\n1 / 0", ["division by zero"]),
    ],
)
def test_the_text_of_a_raised_exit_is_recorded_once(
    script: str, messages: list[str], tmp_path: Path
) -> None:
    ended, plain = Ended(tmp_path, script), Ended(tmp_path, script, hook=False)
    assert [record.errors[0].message for record in ended.records] == messages
    assert (ended.done.returncode, ended.done.stderr) == (plain.done.returncode, plain.done.stderr)


def test_the_users_own_sitecustomize_is_imported_too(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import builtins\nbuiltins.mark = __file__\n")
    report = tmp_path / "report"
    ended = Ended(
        tmp_path,
        "import sitecustomize\nprint(mark, sitecustomize.__file__)\n1 / 0",
        env={"PYTHONPATH": f"{report}:{other}"},
    )
    assert ended.done.stdout.split() == [str(other / "sitecustomize.py")] * 2
    assert [record.errors[0].type for record in ended.records] == ["ZeroDivisionError"]


def test_a_directory_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    ended = Ended(tmp_path, f"import shutil\nshutil.rmtree({str(tmp_path / 'report')!r})\n1 / 0")
    assert (ended.records, ended.done.returncode) == ([], 1)
    assert "sitecustomize" not in ended.done.stderr


def test_a_chain_and_a_signal_handler_are_told(tmp_path: Path) -> None:
    ended = Ended(
        tmp_path,
        """\
        import os, signal, sys

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
        """,
    )
    (record,) = ended.records
    assert [(error.type, error.explicit) for error in record.errors] == [
        ("SystemExit", False),
        ("RuntimeError", True),
        ("KeyError", False),
    ]
    assert record.errors[0].signal == "SIGTERM"


def test_records_are_few_and_small_whatever_fails(tmp_path: Path) -> None:
    ended = Ended(
        tmp_path,
        """\
        import threading

        def fail():
            raise ValueError("x" * 1_000_000)

        for _ in range(50):
            thread = threading.Thread(target=fail)
            thread.start()
            thread.join()
        """,
    )
    assert len(ended.records) == 5
    assert all(path.stat().st_size < 20_000 for path in (tmp_path / "report").glob("*.json"))
    assert all(
        (path.stat().st_mode & 0o777) == 0o600 for path in (tmp_path / "report").glob("*.json")
    )


def test_a_crash_shows_where_in_python_it_was(tmp_path: Path) -> None:
    ended = Ended(tmp_path, "import ctypes\nctypes.string_at(0)\n")
    assert ended.done.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in ended.done.stderr
    assert (
        Ended(
            tmp_path,
            "import faulthandler\nprint(faulthandler.is_enabled())",
            env={"PYTHONFAULTHANDLER": ""},
        ).done.stdout
        == "False\n"
    )


def test_a_message_that_is_no_text_is_recorded(tmp_path: Path) -> None:
    ended = Ended(
        tmp_path, "class E(Exception):\n    def __str__(self):\n        raise OSError\nraise E\n"
    )
    assert ended.records[0].errors[0].message == ""
    surrogate = Ended(tmp_path, "raise ValueError('\\udc80 \\u00e9')\n")
    assert json.dumps(surrogate.records[-1].errors[0].message)
