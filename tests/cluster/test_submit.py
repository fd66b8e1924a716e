"""``toolkit.submit`` on the real cluster, in the real image: results, several tasks, remote tracebacks, checkpoints."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.image_fixtures import manifest_in
from tests.cluster.ranks import logs_of, none_left, ran, row
from toolkit.config import shipped

pytestmark = pytest.mark.usefixtures("cluster")

# A function that no module has: its code goes along, with what it refers to.
VALUE = """\
import json, os, sys
import toolkit
factor = 6
def where(text):
    import submitit
    return [factor * 7, text, os.uname().nodename, submitit.JobEnvironment().global_rank, os.environ["HOME"], os.environ["HOSTILE"]]
job = toolkit.submit(where, "a 'b' $(c)", image=sys.argv[1], nodes=2, env={"HOSTILE": "d \\"e\\" #f"}, job_name="where am I")
print(json.dumps({"results": job.results(), "stdout": job.stdout(), "run": job.run.name}))
"""


@pytest.fixture
def python(pytorch_image, shared_dir, toolkit_env):
    """Run a script as a user does, on the side where jobs are submitted from."""

    def call(script: Path) -> Any:
        argv = (sys.executable, script, pytorch_image)
        return ran(*argv, env=toolkit_env, cwd=shared_dir, timeout=200)

    return call


def test_functions_return_and_raise(toolkit, python, shared_dir):
    done = python(shipped("jobs") / "submitit-add" / "submit.py")
    assert done.returncode == 0, done.stdout + done.stderr
    first, twelve, three, wrong = done.stdout.splitlines()
    assert first.endswith("is add-0001")
    assert (twelve, three) == ("12", "[12, 12, 12]")
    assert wrong == "TypeError: unsupported operand type(s) for +: 'int' and 'str'"
    assert row(toolkit, shared_dir, "add-0001")["state"] in ("COMPLETED", "COMPLETING")
    subprocess.run(["shellcheck", str(shared_dir / "runs/add-0001/job.sbatch")], check=True)


def test_code_goes_along_to_each_task_of_two_nodes(python, pytorch_image, shared_dir):
    (shared_dir / "value.py").write_text(VALUE)
    done = python(shared_dir / "value.py")
    images = manifest_in(pytorch_image)["pythons"][0]["version"]
    if images.split(".")[:2] != [str(part) for part in sys.version_info[:2]]:
        # Byte code of another Python is refused before anything is queued.
        assert done.returncode == 1, done.stdout + done.stderr
        assert "is sent as byte code of Python" in done.stderr
        assert not (shared_dir / "runs").exists()
        return
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    home = "/home/toolkit"
    assert told["results"] == [
        [42, "a 'b' $(c)", f"nid00{rank + 1}", rank, home, 'd "e" #f'] for rank in range(2)
    ]
    assert told["stdout"].count("Job completed successfully") == 2
    assert told["run"] == "where-am-I-0001"


def test_a_class_that_is_interrupted_goes_on_where_it_was(python, shared_dir):
    done = python(shipped("jobs") / "submitit-checkpoint" / "submit.py")
    assert done.returncode == 0, done.stdout + done.stderr
    result = ast.literal_eval(done.stdout.splitlines()[-1])
    assert result["done"] == 10
    assert len(result["began_at"]) == 2, "two attempts"
    assert result["began_at"][1] >= 3, "not from 0"
    assert "goes back into the queue" in logs_of(shared_dir, "Count-0001")
    none_left(shared_dir)
