"""The toolkit's names for the words of other programs, to suggest by meaning. Pure.

A word is written without leading dashes and with hyphens. Of the names behind it, the first that is
valid at the place is proposed.
"""

from __future__ import annotations

MEANINGS: dict[str, tuple[str, ...]] = {
    # Options: of Slurm, of docker and Apptainer, of PBS, of torchrun and horovodrun.
    "n": ("ntasks-per-node",),
    "np": ("ntasks-per-node",),
    "ntasks": ("ntasks-per-node",),
    "tasks-per-node": ("ntasks-per-node",),
    "nproc-per-node": ("ntasks-per-node",),
    "num-proc": ("ntasks-per-node",),
    "procs": ("ntasks-per-node",),
    "nnodes": ("nodes",),
    "num-nodes": ("nodes",),
    "cpus": ("cpus-per-task",),
    "num-cpus": ("cpus-per-task",),
    "cores": ("cpus-per-task",),
    "threads": ("cpus-per-task",),
    "gres": ("gpus-per-node", "gpus"),
    "ngpus": ("gpus-per-node", "gpus"),
    "num-gpus": ("gpus-per-node", "gpus"),
    "gpus-per-node": ("gpus-per-node", "gpus"),
    "memory": ("mem",),
    "mem-per-node": ("mem",),
    "walltime": ("time",),
    "timeout": ("time",),
    "time-limit": ("time",),
    "queue": ("partition", "ps"),
    "project": ("account",),
    "billing": ("account",),
    "name": ("job-name",),
    "host": ("nodelist",),
    "hosts": ("nodelist",),
    "volume": ("bind",),
    "mount": ("bind",),
    "export": ("env",),
    "container": ("image",),
    "container-image": ("image",),
    "sif": ("image",),
    "engine": ("runtime",),
    "test-only": ("dry-run",),
    "dryrun": ("dry-run",),
    "background": ("detach",),
    "resume": ("requeue",),
    "tty": ("pty",),
    # Verbs.
    "submit": ("run",),
    "sbatch": ("run",),
    "srun": ("run",),
    "launch": ("run",),
    "start": ("run", "up"),
    "exec": ("shell",),
    "enter": ("shell",),
    "salloc": ("shell",),
    "status": ("ps", "show"),
    "list": ("ps",),
    "queued": ("ps",),
    "squeue": ("ps",),
    "ls": ("ps", "list"),
    "runs": ("ps",),
    "history": ("ps",),
    "attach": ("logs",),
    "follow": ("logs",),
    "tail": ("logs",),
    "log": ("logs",),
    "stop": ("cancel", "down"),
    "kill": ("cancel",),
    "scancel": ("cancel",),
    "abort": ("cancel",),
    "delete": ("rm", "remove"),
    "remove": ("rm",),
    "rm": ("remove",),
    "clean": ("prune",),
    "cleanup": ("prune",),
    "gc": ("prune",),
    "why": ("explain",),
    "diagnose": ("explain",),
    "debug": ("explain",),
    "preflight": ("doctor",),
    "check": ("doctor",),
    "verify": ("doctor",),
    "install": ("setup",),
    "sinfo": ("cluster",),
    "partitions": ("cluster",),
    "build": ("image",),
    "pull": ("image",),
    "up": ("cluster",),
    "down": ("cluster",),
    "exercises": ("jobs",),
    "examples": ("jobs",),
    "inspect": ("show",),
    "info": ("show",),
    "create": ("new", "up"),
    "convert": ("import",),
}

# Options of other programs that have no counterpart, and their replacements. Those of sbatch are in
# ``model.slurm_options``.
INSTEAD: dict[str, str] = {
    "on": "it is an option of toolkit itself: toolkit --on LOGIN ps",
    "workdir": "ranks run in the current directory: change to it first",
    "pwd": "ranks run in the current directory: change to it first",
    "rank": "for the log of one rank: toolkit logs --rank 0",
    "master-port": "the toolkit chooses the port by the job's number: leave it out",
    "rdzv-endpoint": "the toolkit sets the rendezvous: leave it out",
    "nv": "--gpus gives the container the GPUs of the node",
}


def meant(word: str) -> tuple[str, ...]:
    """Return the toolkit's names for a word of another program, the likeliest first."""
    return MEANINGS.get(plain(word), ())


def instead_of(word: str) -> str:
    """Return the replacement for an option that has no counterpart; empty if none is known."""
    from toolkit.model.slurm_options import OPTIONS, SHORT

    name = SHORT.get(word.lstrip("-"), plain(word))
    if name in INSTEAD or name in MEANINGS or name not in OPTIONS or OPTIONS[name].kind:
        return INSTEAD.get(name, "")
    option = OPTIONS[name]
    if option.refusal:
        return f"{option.refusal}: {option.instead}"
    value = "" if option.takes == "flag" else "=VALUE"
    return f"--slurm {name}{value} passes it to sbatch"


def plain(word: str) -> str:
    """Return the form of a word in which it is compared: ``num-nodes`` for ``--Num_Nodes``."""
    return word.lstrip("-").lower().replace("_", "-")
