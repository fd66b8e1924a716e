"""The options of sbatch and srun that a script may have."""

from __future__ import annotations

from toolkit.model import slurm_options

# name -> ``value``, ``maybe`` (the value is optional) or ``flag``. Some options are those of
# versions before 22.05, or of srun.
LONG: dict[str, str] = {
    **{name: option.takes for name, option in slurm_options.OPTIONS.items()},
    "bcast": "value",
    "share": "flag",
    "workdir": "value",
}
SHORT = slurm_options.SHORT
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
