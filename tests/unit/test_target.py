"""What `toolkit run` can be pointed at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.samples import write_files
from toolkit.errors import ConfigError, ScriptMissingError
from toolkit.planning.target import resolve

JOB = 'script = "train.py"\nnodes = 2\narguments = ["--epochs", "3"]\n'
WHOLE = {"digits/train.py": "", "digits/job.toml": JOB}
# The files, the name, whether it may be a program; the script, and settings of its own.
TARGETS: list[tuple[dict[str, str], str, bool, str, dict[str, object]]] = [
    ({"src/train.py": ""}, "src/train.py", False, "src/train.py", {}),
    (WHOLE, "digits", False, "digits/train.py", {"nodes": 2, "job_name": "digits"}),
    ({}, "jobs/digits-ddp", False, "/jobs/digits-ddp/train.py", {"launcher": "torchrun"}),  # shipped
    ({"mine/job.toml": 'script = "accelerate"\nlauncher = "none"\n'}, "mine", False, "accelerate", {"launcher": "none"}),
    # A folder does not hide a program of the image, unless it is a job.
    ({"accelerate/x": ""}, "accelerate", True, "accelerate", {}),
    ({"accelerate/train.py": "", "accelerate/job.toml": JOB}, "accelerate", True, "accelerate/train.py", {"nodes": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("files", "name", "program", "script", "own"), TARGETS)
def test_a_name_is_a_script_a_job_or_a_program(files, name, program, script, own, tmp_path):
    found, layer = resolve(name, write_files(tmp_path, files), program=program)
    assert found.script.endswith(script)
    assert found.is_program or (Path(found.folder) / found.name).is_file()
    assert found.is_program == (found.script == "accelerate")
    assert own.items() <= layer.values.items()


# The files, the name, words of the message, of the next step, and the nearest name.
MISSING: list[tuple[dict[str, str], str, str, str, str | None]] = [
    ({"train.py": ""}, "trian.py", "no script or job trian.py", "toolkit run --help", "train.py"),
    ({"train.sh": ""}, "trian.sh", "no script or job trian.sh", "", "train.sh"),
    ({}, "jobs/digits-dpd", "no script or job", "toolkit run --help", "jobs/digits-ddp"),
    ({}, "hostname", "no script or job", "toolkit run ... -- hostname", None),
    ({"accelerate/x": ""}, "accelerate", "folder accelerate has no job.toml", "", None),
    ({"tarin.py": "", "job.toml": 'script = "train.py"\n'}, ".", "no script train.py", "", "tarin.py"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "name", "cause", "step", "close"), MISSING)
def test_what_is_missing_is_named_with_the_nearest(files, name, cause, step, close, tmp_path):
    with pytest.raises(ScriptMissingError) as caught:
        resolve(name, write_files(tmp_path, files))
    assert cause in caught.value.cause
    assert step in (caught.value.next_step or "")
    assert close in (caught.value.close, None)


def test_a_broken_job_says_where_and_names_the_nearest_key(tmp_path):
    write_files(tmp_path, {"job.toml": 'script = "x.py"\nntasks_per_nod = 2\n'})
    with pytest.raises(ConfigError) as caught:
        resolve(".", tmp_path)
    assert caught.value.close == "ntasks_per_node"
    assert "job.toml:2" in str(caught.value.place)
