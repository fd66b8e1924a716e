"""``toolkit.submit`` up to where a job is submitted: what it refuses, what it carries. That functions run is shown on the cluster."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import submitit
from msgspec.structs import replace

import toolkit
from tests.unit.samples import MANIFEST, make_case
from toolkit.api import functions
from toolkit.api import jobs as functionjobs
from toolkit.errors import LauncherMismatchError, PlanError, UsageError
from toolkit.launchers import others as launcher
from toolkit.model.image import Packages
from toolkit.planning.plan import decide
from toolkit.runs.run import Run

HELD = replace(MANIFEST, frameworks={**MANIFEST.frameworks, "submitit": "1.5.4"})
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def add(a: int, b: int) -> int:
    return a + b


class Count:
    def __call__(self) -> int:
        return 0


def test_the_package_stays_light_until_a_function_is_submitted():
    code = "import sys, toolkit; print({'submitit', 'msgspec', 'toolkit.planning.plan'} & {*sys.modules})"
    argv = [sys.executable, "-c", code]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "set()\n"
    assert toolkit.submit is functions.submit
    with pytest.raises(AttributeError, match="no attribute 'sumbit'"):
        _ = toolkit.sumbit


def test_a_traceback_says_what_to_install(tmp_path):
    """As a user's own script shows it, in which nobody catches our errors."""
    script = tmp_path / "call.py"
    script.write_text(
        "import sys; sys.modules['submitit'] = None\nimport toolkit\ntoolkit.submit(print)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert "; pip install 'slurm-container-toolkit[submit]'" in done.stderr


@pytest.mark.parametrize("option", ["imgae", "launcher"])
def test_an_unknown_option_names_the_nearest(option):
    with pytest.raises(UsageError, match=option) as caught:
        toolkit.submit(add, 5, 7, **{option: 1})
    assert option == "launcher" or caught.value.close == "image"


@pytest.mark.parametrize(
    ("function", "name"),
    [(add, "add"), (Count(), "Count"), (functools.partial(add, 1), "add"), (lambda: 0, "lambda")],
)
def test_the_job_is_named_after_the_function(function, name):
    layer = functions._layer(function, {"nodes": 2, "bind": "/data"}, Path("/work"))
    expected = {"job_name": name, "launcher": "submitit", "nodes": 2, "bind": ("/data",)}
    assert layer.values.items() >= expected.items()


def test_byte_code_of_another_python_is_refused_and_a_name_is_not():
    same = replace(HELD, packages=Packages(apt={"python3": f"{HERE}.2-1+b1"}))
    other = replace(HELD, packages=Packages(apt={"python3": "3.4.0-1"}))
    assert functions._mismatch(lambda: 0, same) is None
    assert functions._mismatch(lambda: 0, HELD) is None, "nobody knows"
    assert functions._mismatch(add, other) is None, "the job imports it"
    assert functions._mismatch(Count(), other) is None
    found = functions._mismatch(lambda: 0, other)
    assert isinstance(found, LauncherMismatchError)
    assert "Python 3.4" in found.cause


FUNCTION: dict[str, Any] = {"script": launcher.SUBMITIT_TARGET, "is_program": True}


@pytest.mark.parametrize(
    ("job", "case", "why"),
    [
        ({}, {"manifest": HELD}, "calls functions"),  # a script is none
        ({}, FUNCTION, "submitit"),  # the image does not have it
        ({"signal": "B:USR1@30"}, {"manifest": HELD, **FUNCTION}, "USR2"),
        ({"signal": "USR2"}, {"manifest": HELD, **FUNCTION}, "USR2"),
    ],
)
def test_what_submitit_cannot_run_is_refused(job, case, why):
    with pytest.raises(PlanError) as caught:
        decide(make_case({"launcher": "submitit", **job}, **case))
    assert why in f"{caught.value.findings[0].summary}"


TWICE = """\
import os, signal
from submitit.helpers import DelayedSubmission

class Twice:
    saved = 0

    def __call__(self):
        os.kill(os.getpid(), signal.SIGUSR2)

    def checkpoint(self):
        os.kill(os.getpid(), signal.SIGUSR2)
        self.saved += 1
        return DelayedSubmission(self)
"""


def test_a_signal_that_comes_twice_saves_once(tmp_path, monkeypatch):
    """Slurm signals every process of a task, and Apptainer passes its own signal on to the same rank."""
    (tmp_path / "twice.py").write_text(TWICE)
    monkeypatch.syspath_prepend(tmp_path)
    saved = tmp_path / "7_submitted.pkl"
    called = submitit.core.utils.DelayedSubmission(importlib.import_module("twice").Twice())
    called.set_timeout(60, max_num_timeout=3)
    called.dump(saved)
    job = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    job |= {"SUBMITIT_EXECUTOR": "slurm", **os.environ}
    task = [sys.executable, "-c", launcher._TASK, str(tmp_path)]
    done = subprocess.run(task, cwd=tmp_path, env=job, capture_output=True, timeout=60, check=False)
    assert done.returncode == 255, done.stderr
    assert (tmp_path / launcher.AGAIN).exists()
    assert vars(submitit.core.utils.DelayedSubmission.load(saved).function) == {"saved": 1}


def test_states_are_asked_of_slurm_and_a_silence_changes_nothing(slurm):
    watcher = functionjobs.Watcher(slurm)
    slurm.add(job_id=7, state="PENDING")
    watcher.register_job("7")
    assert watcher.get_state("7", mode="force") == "PENDING"
    slurm.silent = 1
    slurm.add(job_id=7, state="FAILED")
    for state in ("PENDING", "FAILED"):
        watcher.update()
        assert watcher.get_state("7", mode="cache") == state
        assert watcher.is_done("7", mode="cache") == (state == "FAILED")
    watcher.register_job("8")
    for state in ("UNKNOWN", "UNKNOWN", "LOST"):  # it may be found later, but nobody waits for ever
        watcher.update()
        assert watcher.get_state("8", mode="cache") == state


def test_a_tasks_output_is_where_the_runs_logs_are(tmp_path):
    run = Run(tmp_path)
    run.logs.mkdir()
    (run.logs / "7-1-nid002.log").write_text("here\n")
    paths = functionjobs.Paths(run, "7", 1)
    assert paths.stdout == paths.stderr == run.logs / "7-1-nid002.log"
    assert not functionjobs.Paths(run, "7", 0).stdout.exists()
