"""The Pythons of this machine: the one on PATH once the site's modules are loaded, and the environments of conda. Their packages are looked
for, not imported. Nodes are taken to see what this machine sees, as they do with every path."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from toolkit import shell
from toolkit.errors import EnvironmentMissingError, NeedsInstallError
from toolkit.model.environment import Environment
from toolkit.model.image import Manifest, Python
from toolkit.model.site import Site
from toolkit.resources import package_directory
from toolkit.runtimes.common import FRAMEWORKS

_ANSWER = 120.0  # seconds; a Python on a busy parallel file system starts slowly
# As the script does it; the words after the command are the modules.
_WITH_MODULES = """
type module &>/dev/null || for part in /etc/profile.d/*mod*.sh; do source "$part"; done
module purge && module load "${@:3}" || exit 99
"""
_RUN = 'exec python3 -c "$1" $2'
_ROOTS = ("miniconda3", "miniforge3", "mambaforge", "anaconda3", "micromamba", "mamba")


class Said(NamedTuple):
    """What a Python told of itself."""

    version: str
    python: str
    prefix: str
    venv: bool
    frameworks: dict[str, str]
    torchrun: bool
    mpirun: str
    modules: tuple[str, ...] = ()


def host(site: Site, modules: Sequence[str]) -> tuple[Environment, Manifest]:
    """The Python that a job finds on PATH: of the host, of a module, or of the virtual environment that is active here.

    Raises:
        EnvironmentMissingError: there is none.
        NeedsInstallError: the site's modules cannot be loaded.
    """
    said = ask((*site.modules, *modules), _clean(os.environ))
    kind, name = _kind(said)
    found = Environment(
        name=name,
        kind=kind,
        prefix=said.prefix,
        python=said.python,
        version=said.version,
        torchrun=said.torchrun,
        mpirun=said.mpirun or None,
    )
    return found, contents(name, said)


def _kind(said: Said) -> tuple[Literal["conda", "venv", "host"], str]:
    """What makes a Python, and how people call it."""
    place = Path(said.prefix)
    if said.venv:
        return "venv", f"the virtual environment {place.name}"
    if (place / "conda-meta").is_dir():
        return "conda", f"the conda environment {place.name}"
    return "host", said.python


def conda(name: str, site: Site, modules: Sequence[str]) -> tuple[Environment, Manifest]:
    """The environment of conda that is called so, or lies there.

    Raises:
        EnvironmentMissingError: there is none, with the nearest name; or it holds no Python.
        NeedsInstallError: the site's modules cannot be loaded.
    """
    prefix = where(name, os.environ, Path.home())
    if not os.access(prefix / "bin/python3", os.X_OK):
        raise EnvironmentMissingError(
            f"the environment {prefix} holds no Python",
            place="--env",
            next_step=f"conda install --prefix {prefix} python",
        )
    environment = {**_clean(os.environ), "PYTHONNOUSERSITE": "1"}
    said = ask((*site.modules, *modules), environment, first=prefix / "bin")
    found = Environment(
        name=prefix.name,
        kind="conda",
        prefix=str(prefix),
        python=said.python,
        version=said.version,
        torchrun=said.torchrun,
        mpirun=said.mpirun or None,
        variables=_variables(prefix),
    )
    return found, contents(prefix.name, said)


def ask(
    modules: Sequence[str], environment: Mapping[str, str], *, first: Path | None = None
) -> Said:
    """What the Python on PATH says of itself, after the modules are loaded and ``first`` is put before all else."""
    script = (
        (_WITH_MODULES if modules else "") + ("PATH=$TOOLKIT_FIRST:$PATH\n" if first else "") + _RUN
    )
    directory = package_directory("runtimes/discover")
    program = "\n".join((directory / name).read_text() for name in ("find.py", "importable.py"))
    argv = ["bash", "-c", script, "bash", program, " ".join(FRAMEWORKS), *modules]
    done = shell.run(
        argv,
        env={**environment, "TOOLKIT_FIRST": str(first or "")},
        cwd="/",
        timeout=_ANSWER,
        check=False,
    )
    if done.returncode == 99 and modules:
        raise NeedsInstallError(
            f"the modules cannot be loaded here: {' '.join(modules)}",
            place="modules",
            details=done.tail(3),
            next_step="module avail shows what there is; modules are named by the site's file and by --module",
        )
    told = _line(done.stdout, "found: ")
    if told is None:
        raise EnvironmentMissingError(
            "there is no Python 3 that works" + (f" in {first}" if first else " on PATH"),
            place="--env" if first else "--runtime",
            details=done.tail(3),
            next_step="load a module that brings one (--module), or activate a virtual environment",
        )
    modules = json.loads(_line(done.stdout, "toolkit-modules: ") or "{}").get("modules", ())
    return Said(**json.loads(told), modules=tuple(modules))


def _line(text: str, start: str) -> str | None:
    """Return the rest of the first line that starts so."""
    return next(
        (line.removeprefix(start) for line in text.splitlines() if line.startswith(start)), None
    )


def contents(name: str, said: Said) -> Manifest:
    """What is in an environment, in the form that launchers know of images."""
    return Manifest(
        name=name,
        sif_id="",
        size=0,
        recipe_hash="",
        built="",
        frameworks=said.frameworks,
        mpi=spoken(said.mpirun),
        pythons=(Python(path=said.python, version=said.version, modules=said.modules),),
    )


def spoken(mpirun: str) -> tuple[str, ...]:
    """What the MPI of a host can be started by, from how its mpirun introduces itself."""
    if not mpirun:
        return ()
    if "Open MPI" in mpirun or "OpenRTE" in mpirun:
        return ("pmix",)
    return (
        ("pmi2",)
        if any(name in mpirun for name in ("HYDRA", "MPICH", "Intel", "MVAPICH"))
        else ("pmix", "pmi2")
    )


def _clean(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name not in ("PYTHONPATH", "PYTHONHOME")
    }


def where(name: str, environment: Mapping[str, str], home: Path) -> Path:
    """The directory of an environment, found without conda, which may be a module's and takes a second to answer.

    Raises:
        EnvironmentMissingError: with the nearest name.
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
            f"{path} is no environment of conda", place="--env", next_step=step
        )
    known: dict[str, Path] = {}
    for path in environments(environment, home):
        known.setdefault("base" if (path / "condabin").is_dir() else path.name, path)
    if name in known:
        return known[name]
    there = (
        f"there are: {', '.join(sorted(known))}"
        if known
        else "none is known to ~/.conda/environments.txt, nor where they usually are"
    )
    raise EnvironmentMissingError(
        f"there is no conda environment {name!r}; {there}",
        place="--env",
        choices=known,
        value=name,
        next_step=f"conda create --name {name} python, or --env with the path of one",
    )


def names() -> list[str]:
    """The names of all environments of conda, for people who type one."""
    return sorted({path.name for path in environments(os.environ, Path.home())})


def environments(environment: Mapping[str, str], home: Path) -> Iterator[Path]:
    """All environments of conda and its relatives: those that it has noted down, and those in its usual directories."""
    noted = _lines(home / ".conda/environments.txt")
    yield from (Path(line) for line in noted if (Path(line) / "conda-meta").is_dir())
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
    """The list ``envs_dirs`` of a .condarc, as people write it: each directory on a line of its own."""
    within = False
    for line in lines:
        if within and line.startswith("- "):
            yield Path(line[2:].strip().strip("'\"")).expanduser()
        else:
            within = line.startswith("envs_dirs:")


def _lines(path: Path) -> list[str]:
    try:
        return [
            line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()
        ]
    except OSError:
        return []


def _variables(prefix: Path) -> dict[str, str]:
    """What `conda env config vars set` has written down."""
    try:
        state = json.loads((prefix / "conda-meta/state").read_text())
        return {
            str(name): str(value)
            for name, value in state.get("env_vars", {}).items()
            if str(name).isidentifier()
        }
    except (OSError, ValueError, AttributeError):
        return {}
