"""In CI a skipped test fails, but for those of GPUs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from toolkit import shell

HERE = Path(__file__).parents[1]
SKIPS = {
    "mark": "import pytest\n@pytest.mark.skip(reason='no Slurm')\ndef test_it() -> None: ...\n",
    "call": "import pytest\ndef test_it() -> None: pytest.skip('no Slurm')\n",
    "module": "import pytest\npytest.skip('no Slurm', allow_module_level=True)\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("tests", "tests/unit", "tests/cluster", "tests/faults", "tests/gpu"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    shutil.copy(HERE / "strict.py", tmp_path / "tests/strict.py")
    return tmp_path


def outcome(project: Path, where: str, text: str) -> shell.Result:
    (project / "tests" / where / "test_skips.py").write_text(
        text + "def test_other() -> None: ...\n" * ("allow_module_level" not in text)
    )
    argv = [
        sys.executable,
        *"-m pytest -p tests.strict -p no:cacheprovider -q".split(),
        f"tests/{where}",
    ]
    return shell.run(argv, cwd=project, check=False)


@pytest.mark.parametrize(
    ("where", "how"),
    [("cluster", "mark"), ("cluster", "call"), ("unit", "module"), ("faults", "call")],
)
def test_a_skip_fails(project: Path, where: str, how: str) -> None:
    result = outcome(project, where, SKIPS[how])
    assert not result.ok
    assert "skipped, which is not allowed in CI: " in result.stdout
    assert "no Slurm" in result.stdout


def test_a_skip_of_a_gpu_does_not(project: Path) -> None:
    result = outcome(project, "gpu", SKIPS["mark"])
    assert result.ok, result.stdout
