"""What ranks run inside where it is no SIF: a Python in an image of the tests' engine, a virtual environment, an environment of conda."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.engine_fixtures import TestEngine

_NOT_NEEDED = shutil.ignore_patterns(
    *"site-packages dist-packages test tests __pycache__ config-* idlelib tkinter ensurepip lib2to3 *.a".split()
)


@pytest.fixture(scope="session")
def python_tag(docker_engine: TestEngine, tiny_base: str, base: Path) -> str:
    """This machine's own Python as an image of the engine: nothing else of Linux is in it but a shell."""
    root = base / "python-image"
    shutil.copytree(tiny_base, root, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    prefix = Path(sys.base_prefix)
    (root / "bin/python3").unlink(missing_ok=True)
    program = prefix / "bin" / version
    needed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for file in (*map(Path, re.findall(r"(/\S+)", needed)), program):
        target = root / file.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy(file.resolve(), target)
    library, inside = prefix / "lib" / version, root / prefix.relative_to("/")
    shutil.copytree(library, inside / "lib" / version, ignore=_NOT_NEEDED, dirs_exist_ok=True)
    (inside / "bin/python3").symlink_to(version)
    packed = subprocess.run(["tar", "-C", root, "-c", "."], capture_output=True, check=True).stdout
    shutil.rmtree(root)
    path = f"ENV PATH={prefix}/bin:/bin"
    docker_engine.client("import", "--change", path, "-", "stand-in/python:here", input=packed)
    return "stand-in/python:here"


def _environment(prefix: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    return prefix


def _as_conda_makes_it(prefix: Path) -> Path:
    (_environment(prefix) / "conda-meta").mkdir()
    (prefix / "conda-meta/history").touch()
    return prefix


@pytest.fixture(scope="session")
def venv(base: Path) -> Path:
    """A virtual environment with nothing in it but one module that is nowhere else."""
    prefix = _environment(base / "venv one")
    (packages,) = prefix.glob("lib/python3*/site-packages")
    (packages / "only_there.py").write_text("where = __file__\n")
    return prefix


@pytest.fixture(scope="session")
def conda_root(base: Path) -> Iterator[Path]:
    """A stand-in for an environment of conda, by its layout alone.

    No conda can be installed from the package registries: this is a virtual environment with
    ``conda-meta``, a script that runs when it is activated, and a variable of the user's.
    """
    root = base / "envs"
    prefix = _as_conda_makes_it(root / "digits")
    variables = '{"env_vars": {"OF_THE_ENVIRONMENT": "it\'s $(touch pwned)"}}'
    (prefix / "conda-meta/state").write_text(variables)
    (prefix / "etc/conda/activate.d").mkdir(parents=True)
    activate = 'export ACTIVATED="$CONDA_PREFIX $UNSET_VARIABLE"\nfalse\n'
    (prefix / "etc/conda/activate.d/part.sh").write_text(activate)
    yield root
    assert not list(base.rglob("pwned"))


@pytest.fixture(scope="session")
def jupyter_environment(base: Path) -> Path:
    """Such a stand-in with JupyterLab, as the feature jupyter installs it."""
    prefix = _as_conda_makes_it(base / "envs-with-jupyter/serves")
    recipe = Path(__file__).parents[2] / "recipes/features/jupyter.toml"
    (package,) = re.findall(r'"(jupyterlab==[^"]+)"', recipe.read_text())
    pip = (sys.executable, *"-m pip --python".split(), str(prefix / "bin/python3"))
    subprocess.run([*pip, "install", "--quiet", package], check=True)
    return prefix


@pytest.fixture
def pyxis(base: Path) -> Iterator[None]:
    """A stand-in for the plugin: Slurm's own parser knows its options, and Slurm carries them to the tasks, which run in no container."""
    plugin, source = base / "pyxis.so", Path(__file__).with_name("pyxis_standin.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", plugin, source], check=True)
    listed = base / "c/test/etc/plugstack.conf"
    listed.write_text(f"required {plugin}\n")
    yield
    listed.unlink()


@pytest.fixture
def modules(base: Path) -> dict[str, str]:
    """A directory of modules for Debian's environment-modules, as variables of whoever submits."""
    place = base / "modulefiles"
    (place / "demo").mkdir(parents=True, exist_ok=True)
    module = "#%Module1.0\nsetenv DEMO loaded\nprepend-path PYTHONPATH /of/the/module\n"
    (place / "demo/1.0").write_text(module)
    loaded = {name: "" for name in os.environ if name.startswith("LOADEDMODULES")}
    return {"MODULEPATH": str(place), **loaded}
