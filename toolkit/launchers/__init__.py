"""Launchers: how ranks are started.

Each module of this package is one launcher, and ``scripts/templates/<name>.sbatch.j2`` is its
template. The registry finds it by itself. ``docs/contributing/adding-a-launcher.md`` adds one.
"""

from __future__ import annotations

from typing import NamedTuple

from toolkit.errors import LauncherMismatchError, UnknownLauncherError
from toolkit.launchers.shared.base import Launcher
from toolkit.model.case import Case
from toolkit.model.source import Source
from toolkit.registry import Registry
from toolkit.units import counted

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

LAUNCHERS: Registry[Launcher] = Registry(
    __name__, "launcher", UnknownLauncherError, is_offered=lambda launcher: not launcher.is_internal
)
get = LAUNCHERS.choose


class Choice(NamedTuple):
    """A launcher, and why it was chosen."""

    launcher: str
    reason: str


def choose(case: Case) -> Choice:
    """Return the launcher whose claim to a script has the smallest priority number.

    This is ``--launcher auto``, the default. A plan names the launcher that was chosen.
    """
    claims = [
        (claim.priority, name, claim.reason)
        for name, launcher in LAUNCHERS.items()
        if (claim := launcher.recognize(case)) is not None
    ]
    _, name, reason = min(claims)
    return Choice(name, f"{case.target.name} {reason}{_importer(case.source, reason)}")


def _importer(source: Source, reason: str) -> str:
    """Return the user's module that imports what a claim names, if the script itself does not."""
    module = reason.partition("imports ")[2].partition(",")[0]
    files = (file for name, file in source.where.items() if f"{name}.".startswith(f"{module}."))
    file = next(files, "") if module else ""
    return f" (in {file})" if file else ""


def copies(case: Case, choice: Choice) -> LauncherMismatchError | None:
    """Return an error if each rank would do the whole work alone, as far as the script tells.

    A script that imports packages of which that is not known, starts other programs or looks for
    its rank is left alone, and so are the elements of an array.
    """
    source, job, launcher = case.source, case.job, LAUNCHERS[choice.launcher]
    if source.calls_any("submitit.AutoExecutor", "submitit.SlurmExecutor"):
        return LauncherMismatchError(
            f"{case.target.name} submits jobs of its own, and a job's container has no sbatch",
            place="SCRIPT",
            next_step=f"python3 {case.target.script} here; or run the script that its jobs run",
        )
    case = case._replace(launcher=launcher)
    per_node, nodes = case.ranks_per_node, case.nodes
    meets_alone = "MASTER_ADDR=localhost" in source.texts and nodes > 1
    if not source.python or job.array is not None or job.sweep or nodes * per_node == 1:
        return None
    if choice.launcher == "spawn" and meets_alone:
        return LauncherMismatchError(
            f"{case.target.name} sets MASTER_ADDR to localhost: "
            f"each of {counted(nodes, 'node')} would train alone",
            place="--nodes",
            next_step="--nodes 1; or os.environ.setdefault('MASTER_ADDR', ...) in the script",
        )
    spreads = (
        set(source.packages) - _ALONE
        or source.texts
        or _BUILTINS.intersection(source.calls)
        or source.imports_any("torch.distributed", "torch.multiprocessing")
        or any(".distributed." in f".{name}" for name in source.calls)
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


def warnings(case: Case) -> tuple[str, ...]:
    """Warn of a script that uses another framework than its launcher.

    The job would start, and every rank would believe that it is alone.
    """
    launcher, source = case.launcher, case.source
    if launcher is None or not launcher.framework or not source.python:
        return ()
    if launcher.is_used_by(source):
        return ()
    better = LAUNCHERS[choose(case._replace(launcher=None)).launcher]
    if not better.is_used_by(source):
        return ()
    return (
        f"{case.target.name} uses {better.framework}, which the launcher {launcher.name} does not "
        f"set up: every rank may believe that it is alone; next: --launcher {better.name}",
    )
