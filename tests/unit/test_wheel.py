"""The wheel holds what users need: the package and its data, no benchmarks and no tests."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parent.parent.parent


def test_the_wheel_holds_the_package_and_its_data_alone(tmp_path):
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if ".dist-info/" not in name]
    assert all(path.startswith("toolkit/") for path in files)
    assert not [path for path in files if re.search("/test_|/tests/|/benchmarks/", path)]
    for path in (
        *("cli/main.py", "py.typed", "sites/generic.toml", "data/recipes/pytorch_cpu.toml"),
        *("data/jobs/digits-ddp/job.toml", "data/docs/how-to/run/pending.md"),
    ):
        assert f"toolkit/{path}" in files
