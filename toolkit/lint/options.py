"""The options of sbatch and srun, from their own help (Slurm 22.05, 24.11): name -> ``value``, ``maybe`` (it is optional) or ``flag``."""

from __future__ import annotations

_VALUES = """
account array batch bb bbf begin bcast clusters cluster-constraint comment constraint container container-id core-spec cores-per-socket
cpu-freq cpus-per-gpu cpus-per-task dependency deadline delay-boot chdir error exclude export export-file extra extra-node-info gid gpu-bind
gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint input job-name licenses distribution mail-type mail-user
mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu
ntasks-per-node ntasks-per-socket open-mode output partition power prefer priority profile qos resv-ports reservation segment signal
sockets-per-node switches tasks-per-node thread-spec threads-per-core time time-min tmp tres-bind tres-per-task uid wait-all-nodes wckey
wrap workdir
"""
_MAYBE = "exclusive get-user-env nice propagate stepmgr tmp"
_FLAGS = """
contiguous hold ignore-pbs kill-on-invalid-dep no-kill no-requeue overcommit oversubscribe parsable quiet reboot requeue share spread-job
test-only use-min-nodes verbose wait
"""
LONG: dict[str, str] = {
    **dict.fromkeys(_VALUES.split(), "value"),
    **dict.fromkeys(_MAYBE.split(), "maybe"),
    **dict.fromkeys(_FLAGS.split(), "flag"),
    "kill-on-invalid-dep": "value",
}
SHORT: dict[str, str] = {
    "a": "array",
    "A": "account",
    "b": "begin",
    "B": "extra-node-info",
    "c": "cpus-per-task",
    "C": "constraint",
    "d": "dependency",
    "D": "chdir",
    "e": "error",
    "F": "nodefile",
    "G": "gpus",
    "H": "hold",
    "i": "input",
    "J": "job-name",
    "k": "no-kill",
    "L": "licenses",
    "m": "distribution",
    "M": "clusters",
    "n": "ntasks",
    "N": "nodes",
    "o": "output",
    "O": "overcommit",
    "p": "partition",
    "q": "qos",
    "Q": "quiet",
    "s": "oversubscribe",
    "S": "core-spec",
    "t": "time",
    "v": "verbose",
    "w": "nodelist",
    "W": "wait",
    "x": "exclude",
}
# What srun knows beyond these.
SRUN = frozenset(
    [
        "accel-bind",
        "acctg-freq",
        "bcast-exclude",
        "compress",
        "cpu-bind",
        "cpu_bind",
        "debugger-test",
        "disable-status",
        "distribution",
        "epilog",
        "exact",
        "external-launcher",
        "gpus",
        "het-group",
        "immediate",
        "jobid",
        "kill-on-bad-exit",
        "label",
        "launch-cmd",
        "launcher-opts",
        "mem-bind",
        "mem_bind",
        "mpi",
        "msg-timeout",
        "multi-prog",
        "no-allocate",
        "no-shell",
        "overlap",
        "pack-group",
        "preserve-env",
        "prolog",
        "pty",
        "relative",
        "send-libs",
        "slurmd-debug",
        "task-epilog",
        "task-prolog",
        "threads",
        "tres-per-job",
        "treewidth",
        "tty",
        "unbuffered",
        "wait",
        "whole",
        "x11",
        "container-image",
        "container-mounts",
        "container-name",
        "container-workdir",
        "container-mount-home",
        "no-container-mount-home",
        "container-entrypoint",
        "container-remap-root",
        "container-save",
        "container-writable",
        "container-env",
        "exclude",
    ]
)
