"""`tools/venv.sh`: what it says of a .venv that others cannot use."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

VENV = Path(__file__).parent.parent.parent / "tools" / "venv.sh"
# Answers as a Python with venv and pip does, and installs nothing.
PYTHON = """#!/bin/sh
case "$*" in
-V) echo Python 3.11.7 ;;
'-m venv --clear .venv') mkdir -p .venv/bin && ln -sf "$(readlink -f "$0")" .venv/bin/python ;;
esac
"""


@pytest.mark.parametrize(
    ("home", "checkout", "is_told"),
    [(0o700, 0o755, True), (0o755, 0o755, False), (0o700, 0o700, False)],
)
def test_a_python_that_others_cannot_reach_is_told_with_a_next_step(
    home: int, checkout: int, is_told: bool
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # pytest's own is closed to others
        directory = Path(name)
        directory.chmod(0o755)
        python = directory / "home" / "bin" / "python3"
        tools = directory / "checkout" / "tools"
        tools.mkdir(parents=True)
        python.parent.mkdir(parents=True)
        shutil.copy(VENV, tools)
        python.write_text(PYTHON)
        python.chmod(0o755)
        (directory / "home").chmod(home)
        (directory / "checkout").chmod(checkout)
        environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
        environment.pop("PYTHON", None)
        done = subprocess.run(
            [tools / "venv.sh"], capture_output=True, text=True, check=True, env=environment
        )
    assert ("PYTHON=/usr/bin/python3 make setup" in done.stdout) is is_told
    assert (f"its Python is in {name}/home," in done.stdout) is is_told
