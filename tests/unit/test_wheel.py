"""The wheel holds what users need: the package and its data, no benchmarks and no tests."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the paths in a wheel that the build backend makes of this checkout."""
    builder = WheelBuilder(str(ROOT))
    (wheel,) = builder.build(directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if ".dist-info/" not in name]


def test_the_wheel_holds_the_package_and_its_data(files):
    assert all(path.startswith("toolkit/") for path in files)
    for path in (
        "cli/main.py",
        "py.typed",
        "sites/generic.toml",
        "data/recipes/pytorch_cpu.toml",
        "data/jobs/digits-ddp/job.toml",
        "data/docs/how-to/run/pending.md",
    ):
        assert f"toolkit/{path}" in files


def test_the_wheel_holds_no_benchmarks_and_no_tests(files):
    names = {path.name for path in (ROOT / "benchmarks").rglob("*") if path.is_file()} - {
        "__init__.py"
    }
    ours = {str(path.relative_to(ROOT)) for path in (ROOT / "toolkit").rglob("*")}
    assert not [path for path in files if Path(path).name in names and path not in ours]
    assert not [
        path for path in files if "/test_" in path or "/tests/" in path or "/benchmarks/" in path
    ]
