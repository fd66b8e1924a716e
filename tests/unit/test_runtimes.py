"""Runtimes: references as enroot writes them, and what is found out of environments of the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.errors import EnvironmentMissingError
from toolkit.runtimes import containers, environments
from toolkit.runtimes.base import pmi_types


@pytest.mark.parametrize(
    ("image", "address"),
    [
        ("nvcr.io/nvidia/pytorch:25.06-py3", "nvcr.io#nvidia/pytorch:25.06-py3"),
        ("docker://nvcr.io/nvidia/pytorch:25.06-py3", "nvcr.io#nvidia/pytorch:25.06-py3"),
        ("nvcr.io#nvidia/pytorch", "nvcr.io#nvidia/pytorch"),
        ("localhost:5000/x:1", "localhost:5000#x:1"),
        ("pytorch/pytorch:2.1", "pytorch/pytorch:2.1"),
        ("/apps/x.sqsh", "/apps/x.sqsh"),
    ],
)
def test_a_reference_is_written_as_enroot_reads_it(image, address):
    assert containers.enroot(image) == address


def conda_at(prefix: Path) -> Path:
    (prefix / "conda-meta").mkdir(parents=True)
    return prefix


def test_environments_are_found_where_conda_keeps_and_notes_them(tmp_path, monkeypatch):
    home = tmp_path / "home"
    noted = conda_at(tmp_path / "project/noted")
    kept = conda_at(home / "miniforge3/envs/kept")
    named = conda_at(home / "named/mine")
    loaded = conda_at(tmp_path / "site/envs/loaded")
    (home / ".conda").mkdir()
    (home / ".conda/environments.txt").write_text(f"{noted}\n{tmp_path}/gone\n")
    monkeypatch.setenv("CONDA_ENVS_PATH", "~/named")
    monkeypatch.setenv("CONDA_EXE", f"{tmp_path}/site/bin/conda")
    monkeypatch.setenv("HOME", str(home))
    found = (("noted", noted), ("kept", kept), ("mine", named), ("loaded", loaded))
    for name, path in found:
        assert environments.find_environment(name) == path
    assert environments.find_environment(str(kept)) == kept
    with pytest.raises(EnvironmentMissingError) as caught:
        environments.find_environment("keptt")
    assert caught.value.close == "kept"
    assert "conda create --name keptt" in str(caught.value.next_step)
    with pytest.raises(EnvironmentMissingError) as caught:
        environments.find_environment(str(tmp_path / "project"))
    assert "--runtime none" in str(caught.value.next_step)


@pytest.mark.parametrize(
    ("said", "types"), [("mpirun (Open MPI) 4.1.4", ("pmix",)), ("HYDRA build details:", ("pmi2",)), ("", ()), ("something", ("pmix", "pmi2"))]
)  # fmt: skip
def test_an_mpi_is_known_by_how_it_introduces_itself(said, types):
    assert pmi_types(said) == types


def test_what_an_environment_can_import_is_known(tmp_path, monkeypatch):
    """A virtual environment is asked; PYTHONPATH of the caller, which ranks do not get, adds nothing."""
    (tmp_path / "planted.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = environments.probe(())
    assert found.manifest is not None
    (python,) = found.manifest.pythons
    assert python.path == found.python
    assert {"json", "sys", "_ctypes"} <= set(python.modules)
    assert "planted" not in python.modules
