"""Runtimes without an image: environments of conda, and the nodes' own Python.

Packages are searched for, not imported. Nodes are assumed to see what this machine sees, as with
every path.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from toolkit import shell
from toolkit.config import package_directory
from toolkit.errors import EnvironmentMissingError, NeedsInstallError, ToolkitError, UsageError
from toolkit.files import read_text
from toolkit.model.case import Case
from toolkit.model.image import Environment, Manifest, Python
from toolkit.model.run import Container
from toolkit.runtimes.base import FRAMEWORKS, Runtime, pmi_types

PROBE_SECONDS = 120.0  # a Python on a busy parallel file system starts slowly
# As the job script loads them; the words after the command are the modules.
_WITH_MODULES = """
type module &>/dev/null || for part in /etc/profile.d/*mod*.sh; do source "$part"; done
module purge && module load "${@:3}" || exit 99
"""
_RUN = 'exec python3 -c "$1" $2'
_MARK = "toolkit-modules: "  # begins the answer of the program
_ROOTS = ("miniconda3", "miniforge3", "mambaforge", "anaconda3", "micromamba", "mamba")


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
    path, prefix, mpirun = answer["path"], Path(answer["prefix"]), answer["mpirun"]
    kind: Literal["conda", "venv", "host"] = "host"
    own = path
    if answer["venv"]:
        kind, own = "venv", f"the virtual environment {prefix.name}"
    elif (prefix / "conda-meta").is_dir():
        kind, own = "conda", f"the conda environment {prefix.name}"
    manifest = Manifest(
        name=name or own,
        sif_id="",
        size=0,
        recipe_hash="",
        built="",
        frameworks=answer["frameworks"],
        mpi=pmi_types(mpirun),
        pythons=(Python(path=path, version=answer["version"], modules=tuple(answer["modules"])),),
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


def probe(modules: Sequence[str], entered: Path | None = None) -> Environment:
    """Ask the Python on PATH what it is and what it can import.

    It is that of the host, of a module, or of the virtual environment that is active.

    Args:
        modules: are loaded before.
        entered: the environment whose programs come before all others on PATH.

    Raises:
        EnvironmentMissingError: there is no Python 3 that works.
        NeedsInstallError: the modules cannot be loaded.
    """
    dropped = ("PYTHONPATH", "PYTHONHOME")  # which ranks do not get
    variables = {name: value for name, value in os.environ.items() if name not in dropped}
    script = _WITH_MODULES if modules else ""
    if entered:
        variables |= {"PYTHONNOUSERSITE": "1", "TOOLKIT_FIRST": str(entered / "bin")}
        script += "PATH=$TOOLKIT_FIRST:$PATH\n"
    done = shell.run(
        ["bash", "-c", script + _RUN, "bash", program(), " ".join(FRAMEWORKS), *modules],
        env=variables,
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


def find_environment(name: str) -> Path:
    """Return the directory of an environment.

    conda is not asked: it may be a module's, and takes a second to answer.

    Raises:
        EnvironmentMissingError: there is none; the error names the nearest one.
    """
    if "/" in name:
        path = Path(name).expanduser()
        if (path / "conda-meta").is_dir():
            return path.resolve()
        raise EnvironmentMissingError(
            f"{path} is not an environment of conda",
            place="--env",
            next_step=f"conda create --prefix {path} python; of venv: activate it, --runtime none",
        )
    by_name: dict[str, Path] = {}
    for path in environments():
        by_name.setdefault("base" if (path / "condabin").is_dir() else path.name, path)
    if name in by_name:
        return by_name[name]
    raise EnvironmentMissingError(
        f"there is no conda environment {name!r}",
        place="--env",
        choices=by_name,
        value=name,
        next_step=f"conda create --name {name} python, or --env with the path of one",
    )


def environments() -> Iterator[Path]:
    """Yield the environments of conda and its relatives.

    They are those that conda has recorded, and those in its usual directories.
    """
    home, variables = Path.home(), os.environ
    candidates = [Path(line) for line in _lines(home / ".conda/environments.txt")]
    named = variables.get("CONDA_ENVS_PATH", "").split(":")
    roots = [variables.get("MAMBA_ROOT_PREFIX", ""), *(str(home / root) for root in _ROOTS)]
    roots.append(variables.get("CONDA_EXE", "").rpartition("/bin/")[0])  # that of a module
    usual = [str(home / ".conda/envs"), *(f"{root}/envs" for root in filter(None, roots))]
    for text in dict.fromkeys(filter(None, [*named, *usual])):
        directory = Path(text).expanduser()
        candidates += sorted(directory.iterdir()) if directory.is_dir() else ()
    yield from (path for path in candidates if (path / "conda-meta").is_dir())


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


def _require_cluster(case: Case) -> None:
    if case.cluster is None:
        raise UsageError(
            f"the runtime {case.job.runtime} uses a Python of the cluster, "
            "which this machine does not reach",
            place="--runtime",
            next_step=f"plan it on a login node of {case.site.name}, or --runtime apptainer",
        )


def _check(entered: Environment | None, option: str) -> Iterator[ToolkitError]:
    """Require a directory that PATH can name, for an environment that is entered by it."""
    if entered is not None and ":" in entered.prefix:
        yield UsageError(
            f"a directory with ':' in its name cannot be on PATH: {entered.prefix}",
            place=option,
            next_step="put the environment elsewhere",
        )


def _discover_conda(case: Case) -> Case:
    _require_cluster(case)
    if case.job.conda_env is None:
        return case
    prefix = find_environment(case.job.conda_env)
    if not os.access(prefix / "bin/python3", os.X_OK):
        raise EnvironmentMissingError(
            f"the environment {prefix} holds no Python",
            place="--env",
            next_step=f"conda install --prefix {prefix} python",
        )
    asked = probe((*case.site.modules, *case.job.modules), prefix)
    return case._replace(
        environment=replace(asked, kind="conda", prefix=str(prefix), variables=_variables(prefix))
    )


def _check_conda(case: Case) -> Iterator[ToolkitError]:
    if case.job.conda_env is None:
        yield UsageError(
            "the runtime conda needs the name of an environment",
            place="--env",
            next_step="--env NAME",
        )
    yield from _check(case.environment, "--env")


def _conda(case: Case) -> Container:
    """Return what `conda activate` sets, and what the user has given the environment.

    It is entered without conda.
    """
    environment = case.environment
    prefix = environment.prefix if environment else ""
    name = environment.name if environment else case.job.conda_env or ""
    return Container(
        runtime="conda",
        image=prefix,
        name=name,
        where=f"in the conda environment {name}",
        inherits=True,
        settings={
            "CONDA_PREFIX": prefix,
            "CONDA_DEFAULT_ENV": name,
            **(environment.variables if environment else {}),
        },
    )


CONDA = Runtime(
    "conda",
    "a conda environment (--env NAME), with the site's modules",
    container=_conda,
    check=_check_conda,
    discover=_discover_conda,
    environments=True,
)

# The variable that an active environment sets.
_VARIABLES = {"venv": "VIRTUAL_ENV", "conda": "CONDA_PREFIX"}


def _discover_host(case: Case) -> Case:
    _require_cluster(case)
    return case._replace(environment=probe((*case.site.modules, *case.job.modules)))


def _entered(case: Case) -> Environment | None:
    """Return an environment that must be entered; the host's own Python needs that not."""
    environment = case.environment
    return environment if environment and environment.kind in _VARIABLES else None


def _none(case: Case) -> Container:
    """Enter an active environment by its path; else the ranks have the job's environment.

    The job may be submitted from a shell that knows nothing of the environment.
    """
    environment = _entered(case)
    name = case.environment.name if case.environment else "the nodes' Python"
    return Container(
        runtime="none",
        image=environment.prefix if environment else "",
        name=name,
        where=f"without a container, by {name}",
        inherits=True,
        settings={_VARIABLES[environment.kind]: environment.prefix} if environment else {},
    )


NONE = Runtime(
    "none",
    "the nodes' own Python, with the site's modules, or the virtual environment that is active",
    container=_none,
    check=lambda case: _check(_entered(case), "--runtime"),
    discover=_discover_host,
    has_user_site=True,
)
