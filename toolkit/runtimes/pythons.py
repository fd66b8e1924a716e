"""The Pythons of this machine: the one on PATH, and the environments of conda.

Their packages are searched for, not imported. Nodes are assumed to see what this machine sees, as
with every path.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from toolkit import shell
from toolkit.config import package_directory
from toolkit.errors import EnvironmentMissingError, NeedsInstallError
from toolkit.files import read_text
from toolkit.model.image import Environment, Manifest, Python
from toolkit.model.site import Site
from toolkit.runtimes.base import FRAMEWORKS

PROBE_SECONDS = 120.0  # a Python on a busy parallel file system starts slowly
# As the job script loads them; the words after the command are the modules.
_WITH_MODULES = """
type module &>/dev/null || for part in /etc/profile.d/*mod*.sh; do source "$part"; done
module purge && module load "${@:3}" || exit 99
"""
_RUN = 'exec python3 -c "$1" $2'
_MARK = "toolkit-modules: "  # begins the answer of the program
_ROOTS = ("miniconda3", "miniforge3", "mambaforge", "anaconda3", "micromamba", "mamba")


def host(site: Site, modules: Sequence[str]) -> Environment:
    """Return the Python that a job has on PATH.

    It is that of the host, of a module, or of the virtual environment that is active.

    Raises:
        EnvironmentMissingError: there is none.
        NeedsInstallError: the site's modules cannot be loaded.
    """
    return probe((*site.modules, *modules), _clean(os.environ))


def conda(name: str, site: Site, modules: Sequence[str]) -> Environment:
    """Return the environment of conda that has this name or path.

    Raises:
        EnvironmentMissingError: there is none, or it holds no Python.
        NeedsInstallError: the site's modules cannot be loaded.
    """
    prefix = find_environment(name, os.environ, Path.home())
    if not os.access(prefix / "bin/python3", os.X_OK):
        raise EnvironmentMissingError(
            f"the environment {prefix} holds no Python",
            place="--env",
            next_step=f"conda install --prefix {prefix} python",
        )
    variables = {**_clean(os.environ), "PYTHONNOUSERSITE": "1"}
    environment = probe((*site.modules, *modules), variables, entered=prefix)
    return replace(environment, kind="conda", prefix=str(prefix), variables=_variables(prefix))


def program() -> str:
    """Return the text of the program that a Python runs to describe itself."""
    return (package_directory("runtimes") / "probe.py").read_text(encoding="utf-8")


def parse(text: str, name: str = "") -> Environment | None:
    """Parse the answer of ``program`` to the frameworks; None if there is none.

    Args:
        text: what the Python has printed.
        name: of the Python for people; empty: by what it belongs to.
    """
    line = next((line for line in text.splitlines() if line.startswith(_MARK)), None)
    if line is None:
        return None
    answer = json.loads(line.removeprefix(_MARK))
    path, version, mpirun = answer["path"], answer["version"], answer["mpirun"]
    kind, own = _kind(path, Path(answer["prefix"]), is_venv=answer["venv"])
    python = Python(path=path, version=version, modules=tuple(answer["modules"]))
    manifest = Manifest(
        name=name or own,
        sif_id="",
        size=0,
        recipe_hash="",
        built="",
        frameworks=answer["frameworks"],
        mpi=pmi_types(mpirun),
        pythons=(python,),
    )
    return Environment(
        name=manifest.name,
        kind=kind,
        prefix=answer["prefix"],
        python=path,
        torchrun=answer["torchrun"],
        mpirun=mpirun or None,
        manifest=manifest,
    )


def _kind(
    python: str, prefix: Path, *, is_venv: bool
) -> tuple[Literal["conda", "venv", "host"], str]:
    """Return what a Python belongs to, and its name for people."""
    if is_venv:
        return "venv", f"the virtual environment {prefix.name}"
    if (prefix / "conda-meta").is_dir():
        return "conda", f"the conda environment {prefix.name}"
    return "host", python


def probe(
    modules: Sequence[str], variables: Mapping[str, str], *, entered: Path | None = None
) -> Environment:
    """Ask the Python on PATH what it is and what it can import.

    Args:
        modules: are loaded before.
        variables: of the process.
        entered: the environment whose programs come before all others on PATH.

    Raises:
        EnvironmentMissingError: there is no Python 3 that works.
        NeedsInstallError: the modules cannot be loaded.
    """
    script = (
        (_WITH_MODULES if modules else "")
        + ("PATH=$TOOLKIT_FIRST:$PATH\n" if entered else "")
        + _RUN
    )
    done = shell.run(
        ["bash", "-c", script, "bash", program(), " ".join(FRAMEWORKS), *modules],
        env={**variables, "TOOLKIT_FIRST": str(entered / "bin") if entered else ""},
        cwd="/",
        timeout=PROBE_SECONDS,
        check=False,
    )
    if done.returncode == 99 and modules:
        raise NeedsInstallError(
            f"the modules cannot be loaded here: {' '.join(modules)}",
            place="modules",
            details=done.tail(3),
            next_step="module avail shows what there is; "
            "modules are named by the site's file and by --module",
        )
    environment = parse(done.stdout, entered.name if entered else "")
    if environment is None:
        raise EnvironmentMissingError(
            "there is no Python 3 that works" + (f" in {entered}" if entered else " on PATH"),
            place="--env" if entered else "--runtime",
            details=done.tail(3),
            next_step="load a module that brings one (--module), or activate a virtual environment",
        )
    return environment


def pmi_types(mpirun: str) -> tuple[str, ...]:
    """Return the PMI types that an MPI supports, from the first line of ``mpirun --version``."""
    if not mpirun:
        return ()
    if "Open MPI" in mpirun or "OpenRTE" in mpirun:
        return ("pmix",)
    is_mpich = any(name in mpirun for name in ("HYDRA", "MPICH", "Intel", "MVAPICH"))
    return ("pmi2",) if is_mpich else ("pmix", "pmi2")


def _clean(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name not in ("PYTHONPATH", "PYTHONHOME")
    }


def find_environment(name: str, environment: Mapping[str, str], home: Path) -> Path:
    """Return the directory of an environment.

    conda is not asked: it may be a module's, and takes a second to answer.

    Raises:
        EnvironmentMissingError: there is none; the error names the nearest one.
    """
    if "/" in name:
        path = Path(name).expanduser()
        if (path / "conda-meta").is_dir():
            return path.resolve()
        step = (
            "activate it, and use --runtime none"
            if (path / "pyvenv.cfg").is_file()
            else f"conda create --prefix {path} python"
        )
        raise EnvironmentMissingError(
            f"{path} is not an environment of conda", place="--env", next_step=step
        )
    by_name: dict[str, Path] = {}
    for path in environments(environment, home):
        by_name.setdefault("base" if (path / "condabin").is_dir() else path.name, path)
    if name in by_name:
        return by_name[name]
    others = (
        f"there are: {', '.join(sorted(by_name))}"
        if by_name
        else "none is known to ~/.conda/environments.txt, nor where they usually are"
    )
    raise EnvironmentMissingError(
        f"there is no conda environment {name!r}; {others}",
        place="--env",
        choices=by_name,
        value=name,
        next_step=f"conda create --name {name} python, or --env with the path of one",
    )


def names() -> list[str]:
    """Return the names of all environments of conda, sorted."""
    return sorted({path.name for path in environments(os.environ, Path.home())})


def environments(environment: Mapping[str, str], home: Path) -> Iterator[Path]:
    """Yield the environments of conda and its relatives.

    They are those that conda has recorded, and those in its usual directories.
    """
    recorded = _lines(home / ".conda/environments.txt")
    yield from (Path(line) for line in recorded if (Path(line) / "conda-meta").is_dir())
    for directory in dict.fromkeys(_directories(environment, home)):
        if directory.is_dir():
            yield from (
                path for path in sorted(directory.iterdir()) if (path / "conda-meta").is_dir()
            )


def _directories(environment: Mapping[str, str], home: Path) -> Iterator[Path]:
    for variable in ("CONDA_ENVS_PATH", "CONDA_ENVS_DIRS"):
        yield from (
            Path(part).expanduser()
            for part in environment.get(variable, "").split(os.pathsep)
            if part
        )
    yield from _configured(_lines(home / ".condarc"))
    yield home / ".conda/envs"
    if "CONDA_EXE" in environment:
        yield Path(environment["CONDA_EXE"]).parent.parent / "envs"
    if "MAMBA_ROOT_PREFIX" in environment:
        yield Path(environment["MAMBA_ROOT_PREFIX"]) / "envs"
    yield from (home / root / "envs" for root in _ROOTS)


def _configured(lines: Sequence[str]) -> Iterator[Path]:
    """Yield the list ``envs_dirs`` of a .condarc that has each directory on a line of its own."""
    in_list = False
    for line in lines:
        if in_list and line.startswith("- "):
            yield Path(line[2:].strip().strip("'\"")).expanduser()
        else:
            in_list = line.startswith("envs_dirs:")


def _lines(path: Path) -> list[str]:
    try:
        rows = read_text(path, errors="replace").splitlines()
        return [line.strip() for line in rows if line.strip()]
    except OSError:
        return []


def _variables(prefix: Path) -> dict[str, str]:
    """Return what `conda env config vars set` has recorded."""
    try:
        state = json.loads(read_text(prefix / "conda-meta/state"))
        return {
            str(name): str(value)
            for name, value in state.get("env_vars", {}).items()
            if str(name).isidentifier()
        }
    except (OSError, ValueError, AttributeError):
        return {}
