"""Launchers of programs as they are, of TensorFlow, Ray and submitit, and those of our commands."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from toolkit.errors import LauncherMismatchError, ToolkitError, UsageError
from toolkit.launchers.base import Launcher, default, require, sockets
from toolkit.model.case import Case
from toolkit.model.run import Launch
from toolkit.quoting import shell
from toolkit.units import compare

NONE = Launcher(
    "none",
    "the command as it is: one process, a job array, any program of the image",
    takes_node=True,
    takes_programs=True,
    task_noun="task",
)

STRATEGIES = ("MultiWorkerMirroredStrategy", "MirroredStrategy", "ParameterServerStrategy")


def _check_tensorflow(case: Case) -> Iterator[ToolkitError]:
    """Require TensorFlow in the image, and a script that needs workers only."""
    yield from require("tensorflow", case)
    if case.source.calls_any("ParameterServerStrategy"):
        yield LauncherMismatchError(
            "the script uses ParameterServerStrategy, and the launcher tensorflow "
            "starts workers only, no parameter servers",
            place="--launcher",
            next_step="tf.distribute.MultiWorkerMirroredStrategy needs none",
        )
    calls = case.source.calls_any
    is_alone = calls("MirroredStrategy") and not calls("MultiWorkerMirroredStrategy")
    if is_alone and case.ranks > 1:
        yield LauncherMismatchError(
            "MirroredStrategy stays within one process: every worker will train a network of its "
            "own",
            next_step="use MultiWorkerMirroredStrategy",
            is_warning=True,
        )


def _tensorflow(case: Case) -> Launch:
    """Start one task for each worker; TF_CONFIG has their numbers and addresses.

    There is one worker on each node by default. A worker uses all GPUs that it sees; where a node
    has several workers, each sees its share of the node's. A TF_CONFIG that is already set stays.
    It names workers only: parameter servers are another kind of task.
    """
    threads = str(case.cpus_per_rank)
    return default(
        case,
        {
            # By default TensorFlow makes a thread for each core of the node, on every worker.
            "TF_NUM_INTRAOP_THREADS": threads,
            "TF_NUM_INTEROP_THREADS": threads,
            **sockets(case, "NCCL"),
        },
    )


TENSORFLOW = Launcher(
    "tensorflow",
    "Slurm starts a worker on each node, TF_CONFIG tells it of the others; for tf.distribute",
    launch=_tensorflow,
    check=_check_tensorflow,
    needs=frozenset(("nodes",)),
    framework="tf.distribute",
    calls=STRATEGIES,
    takes_node=True,
)


_TOKENS = "2.52"  # the first version of Ray that asks for a token


def _ray(case: Case) -> Launch:
    """Start Ray on all nodes, with all CPUs and GPUs of the job, and the script on the first one.

    The script decides how many workers there are. Ray's own ``ray symmetric-run`` is not used. It
    refuses to start where another Ray is on the node, and at its end kills by name, maybe another
    job's; it ends with 0 where Ray did not start; and its other nodes stay for a minute after the
    script has ended.
    """
    cpus = case.cpus_per_rank * case.ranks_per_node
    return replace(
        default(case),
        environment={
            # Only this job gives work to its Ray; versions that do not know of tokens have no such
            # lock.
            "RAY_AUTH_MODE": "token",
            # Usage statistics stay with the job.
            "RAY_USAGE_STATS_ENABLED": "0",
            # Ray announces a change of its own there, in every task.
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            # Ray starts workers at a niceness of 15: on shared nodes, they would get what all other
            # jobs leave of the CPUs (ray_config_def.h, worker_niceness).
            "RAY_worker_niceness": "0",
            # Logs are files, not terminals.
            "RAY_COLOR_PREFIX": "0",
            **sockets(case, "GLOO", "NCCL"),
        },
        options=(str(cpus), str(case.job.most_gpus), case.interface or ""),
    )


def _check_ray(case: Case) -> Iterator[ToolkitError]:
    """Require Ray; warn of one without tokens on nodes that other users may have, too."""
    yield from require("ray", case)
    version = case.manifest.frameworks.get("ray", "") if case.manifest else ""
    if version and compare(version, _TOKENS) < 0 and not case.job.exclusive:
        yield LauncherMismatchError(
            f"Ray {version} asks for no token, as {_TOKENS} does: other users "
            "of the nodes can run code as you",
            next_step="--exclusive",
            is_warning=True,
        )


RAY = Launcher(
    "ray",
    "Ray on all nodes, and the script once, on the first; "
    "for remote functions, actors, Train and Tune",
    launch=_ray,
    check=_check_ray,
    needs=frozenset(("command", "nodes")),
    framework="ray",
    is_per_node=True,
    takes_node=True,
    task_noun="task",
    starters=("ray", "-c", "ray_node.py"),
)

SUBMITIT_TARGET = "toolkit.submit"  # in place of a script's name
SUBMITIT_SIGNAL = "USR2"  # what submitit listens to
SUBMITIT_FOLDER = "submitit"  # of the run's directory: functions and results
AGAIN = "again"  # a file in it: the first task wants the job to be queued again
_SECONDS = 90  # before the time limit, as submitit itself has it
_WANTED = re.compile(rf"B:(SIG)?{SUBMITIT_SIGNAL}(@\d+)?\Z")

# What a task runs: submitit's own beginning, but for the one call that needs Slurm's commands. The
# signal comes twice, from Slurm and from the process that keeps the image mounted and passes on
# signals; the second would save into the middle of the first.
_TASK = f"""\
import pathlib, signal, sys
from submitit.core.job_environment import SignalHandler
from submitit.core.submission import submitit_main
from submitit.slurm.slurm import SlurmJobEnvironment
save = SignalHandler.checkpoint_and_try_requeue
def save_once(self, signum, frame=None):
    signal.signal(signum, signal.SIG_IGN)
    save(self, signum, frame)
SignalHandler.checkpoint_and_try_requeue = save_once
SlurmJobEnvironment._requeue = lambda self, countdown: pathlib.Path(sys.argv[1], "{AGAIN}").touch()
submitit_main()
"""


def _check_submitit(case: Case) -> Iterator[ToolkitError]:
    """Require submitit in the image, and a function: scripts are other launchers' work."""
    if not (case.target.is_program and case.target.script == SUBMITIT_TARGET):
        yield UsageError(
            "the launcher submitit calls functions, not scripts",
            place="--launcher",
            next_step="from Python: toolkit.submit(function, ...); "
            "for a script another launcher, or none named",
        )
    if case.job.signal is not None and not _WANTED.match(case.job.signal):
        yield UsageError(
            f"functions are signaled by {SUBMITIT_SIGNAL} to the batch shell, "
            f"not by {case.job.signal}",
            place="signal",
            next_step=f"signal='B:{SUBMITIT_SIGNAL}@SECONDS', or leave it out",
        )
    yield from require("submitit", case)


def _submitit(case: Case) -> Launch:
    """Start as many tasks on each node as were asked for; each calls the function of the run.

    The function and its results are files that submitit names. Slurm's signal goes to the batch
    shell, which tells the tasks; the first of them saves what the function's ``checkpoint()``
    returns and leaves a file for the batch shell, which queues the job again: Slurm's own commands
    are not in the image.
    """
    signal = () if case.job.signal else (("signal", f"B:{SUBMITIT_SIGNAL}@{_SECONDS}"),)
    return default(
        case,
        {"SUBMITIT_EXECUTOR": "slurm", **sockets(case, "GLOO", "NCCL")},
        program=("python3", "-u", "-c", _TASK, f"{case.run}/{SUBMITIT_FOLDER}"),
        directives=(*signal, ("requeue", "")),
    )


SUBMITIT = Launcher(
    "submitit",
    "Slurm starts a Python function that toolkit.submit carries to it, once in each task",
    launch=_submitit,
    check=_check_submitit,
    needs=frozenset(("command", "nodes")),
    is_internal=True,
    takes_node=True,
    takes_programs=True,
    task_noun="task",
)


def _check_shell(case: Case) -> Iterator[ToolkitError]:
    if not (case.job.interactive and case.job.pty):
        yield UsageError(
            "the launcher shell is for a terminal", place="--launcher", next_step="toolkit shell"
        )


# A task has the job's share of each node; only that of the first node is started, and the other
# nodes wait for what the user starts there.
SHELL = Launcher(
    "shell",
    "a program at your terminal, on the first node: what toolkit shell starts",
    check=_check_shell,
    needs=frozenset(("nodes", "terminal")),
    is_internal=True,
    is_per_node=True,
    takes_node=True,
    takes_programs=True,
    writes_reports=False,
    task_noun="task",
)

_JUPYTER = "jupyterlab"


def _check_notebook(case: Case) -> Iterator[ToolkitError]:
    """Require JupyterLab, a runtime that shows the node's files, and a single plain job."""
    if case.runtime is not None and case.runtime.image == "docker":
        yield UsageError(
            f"notebooks do not run in the runtime {case.runtime.name}: its engine starts "
            "containers outside of the job, where the job's own /tmp, with the server's socket, "
            "need not be",
            place="--runtime",
            next_step="--runtime apptainer (toolkit image build --engine docker gives a SIF); "
            "or pyxis, conda, none",
        )
    if case.job.array or case.job.interactive:
        yield UsageError(
            "a notebook is one batch job",
            place="--array" if case.job.array else "--interactive",
            next_step="leave the option out",
        )
    manifest, environment = case.manifest, case.environment
    if manifest is None:
        return
    modules = {module for python in manifest.pythons[:1] for module in python.modules}
    known = set(manifest.packages.pip) or modules
    if not known or _JUPYTER in known:
        return
    own, lacking, place = f"{manifest.name}-notebook", f"the image {manifest.name}", "--image"
    step = (
        f"add the feature jupyter: toolkit image new {own} --from {manifest.name} "
        f"--with jupyter; toolkit image build {own}.toml"
    )
    if environment is not None:
        lacking, place = environment.python, "--runtime"
        step = f"{shell(environment.python)} -m pip install jupyterlab; or --runtime apptainer"
    yield LauncherMismatchError(f"{lacking} has no JupyterLab", place=place, next_step=step)


# The server is on the first node, on a Unix socket of the node's own. One task has the job's share
# of that node; the other nodes wait for its kernels. The server's first argument is the seconds
# after which it stops if unused.
NOTEBOOK = Launcher(
    "notebook",
    "JupyterLab on the first node: what toolkit notebook starts",
    launch=lambda case: default(
        case, program=("python3", f"{case.run}/notebook_server.py", *case.job.arguments)
    ),
    check=_check_notebook,
    is_internal=True,
    is_server=True,
    is_per_node=True,
    takes_node=True,
    can=frozenset(),
    takes_programs=True,
    writes_reports=False,
    task_noun="task",
)
