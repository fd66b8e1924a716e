"""A later step of pip keeps what the image was verified for, or replaces it on purpose."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toolkit.config import package_directory
from toolkit.images.recipe import library
from toolkit.images.recipe.recipe import Recipe
from toolkit.model.base import BadDataError

BASE = {"kind": "debootstrap", "release": "bookworm"}
TORCH = {
    "block": "pip",
    "name": "torch",
    "packages": ["torch==2.13.0+cpu", "numpy==2.4.6"],
    "imports": ["torch"],
    "index": "https://x/cpu",
}
CHECKS = package_directory("images") / "checks"


def pip(*packages: str, **more: Any):
    return {"block": "pip", "name": "extra", "packages": list(packages), **more}


def outputs(*steps: dict[str, Any], base=None):
    """Return the steps of a recipe by name."""
    recipe = Recipe(summary="x", base=base or BASE, steps=({"block": "python"}, *steps))
    return {output.name: output for output in library.plan_recipe("x", recipe).outputs}


PIP = """\
pip() {
    echo "$PIP_CONSTRAINT|$*" >> PLACE/calls
    case $* in
    list*) printf '%s\\n' Torch==2.13.0+cpu torchmetrics==1 scikit_learn==1.9 pip==23 ;;
    *dry-run*) echo 'Would install a-1 torchvision-0.28.0' ;;
    *) false ;;
    esac
}
"""


def test_the_lines_of_a_step_do_what_they_say(tmp_path):
    """Run them: only what is installed becomes a constraint, that of the base stays, and a failure says what fits."""
    found = outputs(TORCH, pip("scikit-learn", name="more"), pip("torchvision==0.29.2"))["extra"]
    script = PIP.replace("PLACE", str(tmp_path)) + "\n".join(found.lines)
    done = subprocess.run(
        ["sh", "-ec", script.replace("/opt/toolkit", f"{tmp_path}/opt")],
        env={"PATH": "/usr/bin:/bin", "PIP_CONSTRAINT": "/base.txt"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    constraints = tmp_path / "opt/constraints.txt"
    assert constraints.read_text() == "Torch==2.13.0+cpu\nscikit_learn==1.9\n"
    said = "toolkit-conflict: torchvision==0.29.2\ntoolkit-fits: a-1 torchvision-0.28.0\n"
    assert said in done.stdout
    calls = (tmp_path / "calls").read_text().splitlines()
    assert all(call.startswith(f"{constraints} /base.txt|") for call in calls[1:])


def recipe(*steps: dict[str, Any], **overrides: str):
    first = ({"block": "python"}, {"block": "openmpi"}, TORCH, {"block": "horovod"})
    return Recipe(summary="x", base=BASE, steps=(*first, *steps), overrides=overrides)


def requirements(recipe):
    return {step.name: step.requirements for step in library.plan_recipe("x", recipe).outputs}


def test_an_override_changes_the_step_that_brings_the_package_and_what_is_compiled_on_it():
    found = requirements(recipe(Torch="2.14.0+cpu"))
    assert found["torch"] == ("torch==2.14.0+cpu", "numpy==2.4.6")
    assert list(found) == list(requirements(recipe()))
    recipes = (recipe(), recipe(Torch="2.14.0+cpu"))
    assert len({library.plan_recipe("x", one).products_key for one in recipes}) == 2


def test_an_override_keeps_extras_and_conditions_and_wins_over_an_extended_recipe():
    step = pip("ray[default,train]>=2; python_version < '3.14'", "x @ https://x/y.whl")
    base = recipe(step, ray="2.1", torch="2.14", x="1.0")
    merged = library.extend_recipe(base, Recipe(summary="y", overrides={"ray": "2.60.0"}))
    wanted = ("ray[default,train]==2.60.0; python_version < '3.14'", "x==1.0")
    assert requirements(merged)["extra"] == wanted
    assert requirements(merged)["torch"][0] == "torch==2.14"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"trch": "2"}, "no step of pip brings 'trch'"),
        ({"torch": ">=2"}, "is not a version"),
        ({"torch": "2.*"}, "is not a version"),
        ({"torch": "2 --index-url=https://x"}, "is not a version"),
        ({"torch": ""}, "is not a version"),
        ({"odd": "2"}, "cannot get another version"),
    ],
)
def test_an_override_is_the_version_of_a_package_that_a_step_brings(overrides, message):
    with pytest.raises(BadDataError, match=message) as caught:
        library.plan_recipe("x", recipe(pip("odd ? 1"), **overrides))
    assert caught.value.key == f"overrides.{next(iter(overrides))}"


def test_what_a_base_holds_is_replaced_before_anything_is_compiled_on_it():
    base = {
        "kind": "docker",
        "image": "x/y:1",
        "has": ["python", "torch", "horovod", "compilers", "openmpi"],
    }
    found = outputs({"block": "horovod"}, pip("torch==2.14", replaces=["torch"]), base=base)
    assert list(found)[-2:] == ["extra", "horovod"]
    assert "torch|" not in found["extra"].lines[2].partition("^(")[2].partition("torchvision")[0]
    assert found["extra"].lines[3] == 'export PIP_CONSTRAINT="/opt/toolkit/constraints.txt"'
    assert found["horovod"].build_lines


def _installed(site: Path, name: str, files: dict[str, str], top: str = "") -> None:
    """Write a package as pip installs it."""
    meta = site / f"{name.replace('-', '_')}-1.5.dist-info"
    meta.mkdir(parents=True)
    (meta / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    (meta / "RECORD").write_text(
        "".join(f"{path},,\n" for path in (*files, f"{meta.name}/METADATA", "../../bin/x.py"))
    )
    if top:
        (meta / "top_level.txt").write_text(top)


def _imported(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(CHECKS / "imports.py"), *arguments]
    return subprocess.run(argv, env={"PYTHONPATH": str(site)}, capture_output=True, text=True)


def test_the_check_imports_what_packages_bring(tmp_path):
    _installed(
        tmp_path,
        "some-image-lib",
        {"cv9/__init__.py": "", "cv9/fast.so": "", "tests/__init__.py": "1/0"},
    )
    _installed(tmp_path, "Same_Name", {"same_name.py": "__version__ = '7'", "other.py": "1/0"})
    _installed(tmp_path, "declared", {"one/x.py": ""}, top="one\n_private\n")
    done = _imported(tmp_path, "json", "--of", "some-image-lib", "same-name", "declared")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith("cv9 1.5, same_name 7, one 1.5")
    assert "toolkit-fact: framework cv9 1.5" in done.stdout


def test_the_check_fails_for_a_package_that_cannot_be_imported_or_is_gone(tmp_path):
    _installed(
        tmp_path,
        "broken",
        {"broken/__init__.py": "raise RuntimeError('operator x::nms does not exist')"},
    )
    done = _imported(tmp_path, "--of", "broken")
    assert done.returncode == 1
    assert "broken cannot be imported: RuntimeError: operator x::nms does not exist" in done.stderr
    assert _imported(tmp_path, "--of", "no-such-package").returncode != 0
