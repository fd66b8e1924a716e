"""What `toolkit run` can be pointed at."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.errors import ConfigError, ScriptMissingError
from toolkit.planning.target import resolve


def test_a_script_keeps_the_name_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").touch()
    found, _ = resolve("src/train.py", tmp_path)
    assert (found.script, found.folder) == ("src/train.py", str(tmp_path / "src"))
    above, _ = resolve("../train.py", _with(tmp_path / "train.py").parent / "src")
    assert above.script == str(tmp_path / "train.py")


def test_a_job_folder_brings_its_settings_and_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    _with(folder / "train.py")
    (folder / "job.toml").write_text(
        'script = "train.py"\nnodes = 2\narguments = ["--epochs", "3"]\n'
    )
    found, layer = resolve("digits", tmp_path)
    assert found.script == "digits/train.py"
    assert (layer.values["nodes"], layer.values["job_name"]) == (2, "digits")


def test_shipped_jobs_are_found_from_anywhere(tmp_path: Path) -> None:
    found, layer = resolve("jobs/digits-ddp", tmp_path)
    assert Path(found.script).is_file()
    assert layer.values["launcher"] == "torchrun"


def test_a_missing_script_names_the_nearest(tmp_path: Path) -> None:
    _with(tmp_path / "train.py")
    with pytest.raises(ScriptMissingError) as caught:
        resolve("trian.py", tmp_path)
    assert caught.value.close == "train.py"
    with pytest.raises(ScriptMissingError) as caught:
        resolve("jobs/digits-dpd", tmp_path)
    assert caught.value.close == "jobs/digits-ddp"


def test_a_program_of_the_image_is_shown_its_launcher(tmp_path: Path) -> None:
    with pytest.raises(ScriptMissingError) as caught:
        resolve("hostname", tmp_path)
    assert "toolkit run ... -- hostname" in (caught.value.next_step or "")
    with pytest.raises(ScriptMissingError) as caught:
        resolve("trian.py", tmp_path)
    assert "--launcher none" not in (caught.value.next_step or "")


def test_a_broken_job_says_where_and_names_the_nearest_key(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('script = "x.py"\nntasks_per_nod = 2\n')
    with pytest.raises(ConfigError) as caught:
        resolve(".", tmp_path)
    assert caught.value.close == "ntasks_per_node"
    assert caught.value.place is not None
    assert "job.toml:2" in caught.value.place


def test_a_job_without_its_script(tmp_path: Path) -> None:
    _with(tmp_path / "tarin.py")
    (tmp_path / "job.toml").write_text('script = "train.py"\n')
    with pytest.raises(ScriptMissingError) as caught:
        resolve(".", tmp_path)
    assert caught.value.close == "tarin.py"


def test_a_folder_does_not_hide_a_program_of_the_image(tmp_path: Path) -> None:
    (tmp_path / "accelerate").mkdir()
    found, _ = resolve("accelerate", tmp_path, program=True)
    assert (found.script, found.is_program) == ("accelerate", True)
    with pytest.raises(ScriptMissingError, match=r"folder accelerate has no job\.toml"):
        resolve("accelerate", tmp_path)
    _with(tmp_path / "accelerate/train.py")
    (tmp_path / "accelerate/job.toml").write_text('script = "train.py"\n')
    assert resolve("accelerate", tmp_path, program=True)[0].script == "accelerate/train.py"


def _with(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path
