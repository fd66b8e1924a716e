"""Launchers: how ranks are started.

A launcher is a row in ``LAUNCHERS``, and ``scripts/templates/<name>.sbatch.j2`` is its template.
``docs/contributing/adding-a-launcher.md`` adds one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from toolkit.errors import LauncherMismatchError, ToolkitError, UnknownLauncherError
from toolkit.launchers import mpi, others, torch
from toolkit.launchers.base import Launcher
from toolkit.model.case import SHELLS, Case, has_any
from toolkit.units import counted

LAUNCHERS = {
    launcher.name: launcher
    for launcher in (
        torch.ACCELERATE,
        mpi.HOROVOD,
        mpi.HOROVOD_ELASTIC,
        mpi.HOROVOD_GLOO,
        mpi.MPI,
        mpi.MPIRUN,
        others.NONE,
        others.NOTEBOOK,
        others.RAY,
        others.SHELL,
        torch.SPAWN,
        torch.SRUN,
        others.SUBMITIT,
        others.TENSORFLOW,
        torch.TORCHRUN,
    )
}


def offered() -> list[str]:
    """Return the names that users choose from, sorted."""
    return sorted(name for name, launcher in LAUNCHERS.items() if not launcher.is_internal)


def get(name: str) -> Launcher:
    """Return the launcher of a name.

    Raises:
        UnknownLauncherError: no launcher has the name; the error names the nearest one.
    """
    if name not in LAUNCHERS:
        raise unknown(name)
    return LAUNCHERS[name]


def unknown(name: str) -> UnknownLauncherError:
    """Return the error for a name that no launcher has."""
    return UnknownLauncherError(
        f"there is no launcher {name!r}",
        place="--launcher",
        choices=offered(),
        value=name,
        next_step=f"one of {', '.join(offered())}",
    )


def _imports(*modules: str) -> Callable[[Case], str]:
    def claim(case: Case) -> str:
        module = next((name for name in modules if case.source.imports_any(name)), "")
        return f"imports {module}" if module else ""

    return claim


def _calls(reason: str, *names: str) -> Callable[[Case], str]:
    return lambda case: reason if case.source.calls_any(*names) else ""


def _mpi_program(case: Case) -> str:
    if case.target.is_program and case.job.arguments[:2] == ("-m", "mpi4py.futures"):
        return "-m mpi4py.futures gives the work of rank 0 to the others"
    return "is a program that is linked with MPI" if case.source.imports_any("libmpi") else ""


def _trainer_program(case: Case) -> str:
    # A program of an image with torch may be a trainer: each of its ranks gets its number.
    has_torch = case.manifest is not None and "torch" in case.manifest.frameworks
    is_program = case.target.is_program and case.target.name not in SHELLS
    is_many = is_program and has_torch and case.ranks > 1
    return f"is a program, and the {case.noun} holds torch" if is_many else ""


def _spawns(case: Case) -> str:
    if case.source.calls_any("multiprocessing.spawn", "multiprocessing.start_processes"):
        return "calls mp.spawn"
    if case.source.option("multiprocessing-distributed"):
        return "has --multiprocessing-distributed"
    is_local = "MASTER_ADDR=localhost" in case.source.texts
    forks = case.source.calls_any("multiprocessing.Process")
    return "starts processes that meet at localhost" if is_local and forks else ""


def _reads_slurm(case: Case) -> str:
    # Below an agent of torchrun these are the agent's numbers.
    read = {"SLURM_PROCID", "SLURM_LOCALID"}.intersection(case.source.texts)
    is_given = {"RANK", "LOCAL_RANK"}.intersection(case.source.texts)
    lacks_torch = case.manifest is not None and "torch" not in case.manifest.frameworks
    return f"reads {min(read)}" if read and not (is_given or lacks_torch) else ""


def _horovod_without_pmi(case: Case) -> str:
    reaches_pmi = case.runtime is None or "pmi" in case.runtime.offers
    is_alone = case.source.imports_any("horovod") and not reaches_pmi
    return "imports horovod, and its ranks reach no PMI of Slurm" if is_alone else ""


def _data_parallel(case: Case) -> str:
    least, most = case.job.node_range
    is_one = case.source.calls_any("DataParallel") and least == most
    return "uses DataParallel, in one process" if is_one else ""


def _plain(case: Case) -> str:
    if case.manifest is not None and "torch" not in case.manifest.frameworks:
        return f"imports nothing that spreads it, and the {case.noun} holds no torch"
    is_one = case.job.node_range[0] == case.ranks == 1
    return "imports nothing that spreads it, and one rank was asked for" if is_one else ""


# The claims of ``--launcher auto`` to a script: the first that holds decides. What tells more comes
# first: a script for horovod.torch also imports torch, one that forks also imports
# torch.distributed. Each returns the rest of a sentence that begins with the script's name.
CLAIMS: tuple[tuple[str, Callable[[Case], str]], ...] = (
    ("mpi", _mpi_program),
    ("accelerate", torch.launches),
    ("srun", _trainer_program),
    (
        "none",
        lambda case: "" if case.source.python or case.target.is_python else "is no Python script",
    ),
    ("horovod-elastic", _calls("runs horovod's elastic.run", "elastic.run")),
    ("horovod-gloo", _horovod_without_pmi),
    ("horovod", _imports("horovod")),
    ("ray", _imports("ray")),
    ("spawn", _spawns),
    ("srun", torch.wants_task_per_device),
    # torch.distributed may meet by mpi4py: under torchrun each of its ranks would be alone in MPI.
    ("mpi", lambda case: "imports mpi4py" if has_any(case.source.certain, ("mpi4py",)) else ""),
    ("srun", _reads_slurm),
    ("torchrun", _imports("torch.distributed")),
    ("torchrun", _calls("uses DistributedDataParallel", "DistributedDataParallel")),
    ("tensorflow", _calls("uses a strategy of tf.distribute", *others.STRATEGIES)),
    ("mpi", _imports("mpi4py")),
    ("none", _data_parallel),
    ("torchrun", _imports(*torch.TRAINERS)),
    ("none", _plain),
    ("torchrun", lambda _: "imports nothing that says otherwise"),
)

# The suffix of a file -> the program that runs it; empty: the file is a program itself.
INTERPRETERS = {".py": "python3", ".sh": ""}


def choose(case: Case) -> tuple[str, str]:
    """Return the launcher of the first claim to a script, and why it was chosen.

    This is ``--launcher auto``, the default. A plan names the launcher that was chosen.
    """
    name, reason = next((name, why) for name, claim in CLAIMS if (why := claim(case)))
    module = reason.partition("imports ")[2].partition(",")[0]
    # The user's module that imports what a claim names, if the script itself does not.
    where = case.source.where.items() if module else ()
    files = (f" (in {file})" for each, file in where if f"{each}.".startswith(f"{module}."))
    return name, f"{case.target.name} {reason}{next(files, '')}"


# Packages that spread no work over ranks by themselves.
_ALONE = {
    *("PIL", "cv2", "einops", "h5py", "matplotlib", "numpy", "pandas", "psutil", "requests"),
    *("scipy", "seaborn", "sklearn", "tensorboard", "torch", "torchaudio", "torchvision", "tqdm"),
    "yaml",
}
# What a program that is started, or a module that is found by name, does is not known.
_STARTS_OTHERS = (
    *("os.system", "os.execv", "os.execvp", "os.fork"),
    *("importlib.import_module", "runpy.run_path", "runpy.run_module"),
    *("subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.Popen"),
)
_BUILTINS = {"exec", "eval", "__import__"}  # model.eval() is none of them


def copies(case: Case, name: str, *, is_auto: bool) -> LauncherMismatchError | None:
    """Return an error if each rank would do the whole work alone, as far as the script tells.

    A script that imports packages of which that is not known, starts other programs or looks for
    its rank is left alone, and so are the elements of an array.
    """
    source, job, launcher = case.source, case.job, LAUNCHERS[name]
    submits = source.calls_any("submitit.AutoExecutor", "submitit.SlurmExecutor")
    is_own = "submitit" not in source.where  # A module that does may only be able to.
    if submits and is_own and is_auto:
        return LauncherMismatchError(
            f"{case.target.name} submits jobs of its own, and a job's container has no sbatch",
            place="SCRIPT",
            next_step=f"python3 {case.target.script} here; or run the script that its jobs run; "
            f"if it does not submit today: --launcher {name}",
        )
    case = case._replace(launcher=launcher)
    per_node, nodes = case.ranks_per_node, case.nodes
    meets_alone = "MASTER_ADDR=localhost" in source.texts and nodes > 1
    if not source.python or job.array is not None or job.sweep or nodes * per_node == 1:
        return None
    if name == "spawn" and meets_alone:
        return LauncherMismatchError(
            f"the ranks of {case.target.name} meet at localhost: "
            f"each of {counted(nodes, 'node')} would train alone",
            place="--nodes",
            next_step="--nodes 1; or os.environ.setdefault('MASTER_ADDR', ...) in the script, "
            "and no init_method",
        )
    spreads = (
        set(source.packages) - _ALONE
        or source.texts
        or _BUILTINS.intersection(source.calls)
        or source.imports_any("torch.distributed", "torch.multiprocessing")
        or any(".distributed." in f".{call}" for call in source.calls)
        or source.calls_any("DistributedDataParallel", *_STARTS_OTHERS)
        or source.option("rank", "local-rank", "world-size", "node-rank")
    )
    if spreads:
        return None
    return LauncherMismatchError(
        f"nothing in {case.target.name} connects its ranks: {counted(nodes, 'node')} x {per_node} "
        f"would be {nodes * per_node} copies that each do the whole work",
        place="--nodes" if nodes > 1 else "--ntasks-per-node",
        next_step="--nodes 1 --ntasks-per-node 1; copies on purpose: --launcher srun",
    )


def check(case: Case) -> Iterator[ToolkitError]:
    """Yield why the job's launcher cannot start its ranks, or may not connect them.

    A script may use another framework than its launcher sets up. The job would start, and every
    rank would believe that it is alone.
    """
    launcher, source = case.launcher, case.source
    if launcher is None:
        yield unknown(case.job.launcher or "")
        return
    yield from launcher.check(case)
    if not launcher.framework or not source.python or launcher.is_used_by(source):
        return
    better = LAUNCHERS[choose(case._replace(launcher=None))[0]]
    if better.is_used_by(source):
        yield LauncherMismatchError(
            f"{case.target.name} uses {better.framework}, which the launcher {launcher.name} does "
            "not set up: every rank may believe that it is alone",
            next_step=f"--launcher {better.name}",
            is_warning=True,
        )
