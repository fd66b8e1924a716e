"""The long options of sbatch.

The table has whether an option takes a value, is an option of `toolkit run`, or is decided by a
plan.

It is the only list of them. The options of `toolkit run`, the directives of a script, the check of
``--slurm NAME=VALUE``, its refusals, and lint's parsing of scripts are derived from it; a test
compares it with the fields of ``Job``. The names are those of ``slurm_opt.c`` of Slurm 22.05 to
26.05.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Takes = Literal["value", "maybe", "flag"]


class SlurmOption(NamedTuple):
    """An option of sbatch.

    Attributes:
        name: the long name, without dashes.
        takes: ``value``, ``maybe`` (an optional value) or ``flag`` (none).
        short: the letter of the short option.
        kind: type of the value of our own option: ``text``, ``number``, ``nodes``, ``gpus`` or
            ``switch``. Such an option is a flag of `toolkit run` and a field of ``Job``. Empty: the
            option has no flag of its own.
        metavar: placeholder of the value in the help.
        help: help text of the flag.
        refusal: why ``--slurm`` refuses it: the plan decides it. Empty: ``--slurm`` accepts it.
        instead: the option to use in its place.
        in_help: ``sbatch --help`` lists it. It leaves out some options, and some only if no task
            plugin is set up.
    """

    name: str
    takes: Takes = "value"
    short: str = ""
    kind: str = ""
    metavar: str = ""
    help: str = ""
    refusal: str = ""
    instead: str = ""
    in_help: bool = True

    @property
    def in_salloc(self) -> bool:
        """Return whether salloc, which starts interactive jobs, has the option too."""
        return self.name not in _SBATCH_ONLY

    @property
    def field(self) -> str:
        """Return the field of ``Job`` if the option has a flag of its own; else an empty string."""
        return self.name.replace("-", "_") if self.kind else ""


_LAUNCH = "the plan decides how many tasks run on each node"
_GPUS = "the plan counts GPUs by node"
_LOGS = "the output of each rank is kept with the run"
_FOLLOWED = "toolkit run submits the script and follows the job itself"
_RUNTIME = "the runtime of the plan starts the container"
_UNSUBMITTED = "sbatch would not submit the job"

# In the order of the directives in a script.
_OWN = (
    SlurmOption(
        "job-name",
        short="J",
        kind="text",
        metavar="NAME",
        help="Name of the job and of its run's directory (default: the script's).",
    ),
    SlurmOption("account", short="A", kind="text", metavar="NAME", help="Account that is charged."),
    SlurmOption(
        "partition",
        short="p",
        kind="text",
        metavar="NAME",
        help="Partition (default: the cluster's).",
    ),
    SlurmOption("qos", short="q", kind="text", metavar="NAME", help="Quality of service."),
    SlurmOption(
        "nodes",
        short="N",
        kind="nodes",
        metavar="N|MIN:MAX",
        help="Nodes (default 1); 1:4 takes as many as are available, and survives the loss of one.",
        refusal="ranks and rendezvous are planned for a number of nodes",
        instead="--nodes N",
    ),
    SlurmOption(
        "ntasks-per-node",
        kind="number",
        help="Ranks on each node (default: one per GPU, else 1).",
        refusal=_LAUNCH,
        instead="--ntasks-per-node N",
    ),
    SlurmOption(
        "cpus-per-task",
        short="c",
        kind="number",
        help="CPUs for each rank (default: the GPUs' share of the node).",
        refusal="CPUs are planned for each rank",
        instead="--cpus-per-task N",
    ),
    # Joined with the GPUs of the plan: --slurm gres=nvme:100.
    SlurmOption("gres"),
    SlurmOption(
        "gpus-per-node",
        kind="gpus",
        metavar="[TYPE:]N|N,N",
        help="GPUs on each node (default 0): 4, a100:4 for a type, 8,4 for two nodes that differ.",
        refusal=_GPUS,
        instead="--gpus-per-node [TYPE:]N",
    ),
    SlurmOption(
        "gpus",
        short="G",
        kind="gpus",
        metavar="[TYPE:]N|N,N",
        help="The same as --gpus-per-node; if a node has fewer, the GPUs of the job, as in Slurm.",
        refusal=_GPUS,
        instead="--gpus [TYPE:]N",
    ),
    SlurmOption(
        "cpus-per-gpu", refusal="CPUs are planned for each rank", instead="--cpus-per-task N"
    ),
    SlurmOption(
        "mem",
        kind="text",
        metavar="SIZE",
        help="Memory on each node, as 16G (default: the partition's).",
    ),
    SlurmOption(
        "time",
        short="t",
        kind="text",
        metavar="TIME",
        help="Limit: MM, HH:MM:SS or D-HH:MM:SS (default: the partition's).",
    ),
    SlurmOption(
        "constraint",
        short="C",
        kind="text",
        metavar="LIST",
        help="Features that the nodes must have.",
    ),
    SlurmOption(
        "nodelist",
        short="w",
        kind="text",
        metavar="HOSTS",
        help="Nodes that must be among those of the job.",
    ),
    SlurmOption(
        "exclude", short="x", kind="text", metavar="HOSTS", help="Nodes that must not be used."
    ),
    SlurmOption("exclusive", "maybe", kind="switch", help="Share the nodes with no other job."),
    SlurmOption(
        "reservation", kind="text", metavar="NAME", help="Reservation that the job belongs to."
    ),
    SlurmOption(
        "dependency",
        short="d",
        kind="text",
        metavar="LIST",
        help="Start after other jobs: afterok:7.",
    ),
    SlurmOption("kill-on-invalid-dep", in_help=False),
    SlurmOption(
        "array",
        short="a",
        kind="text",
        metavar="LIST",
        help="As many jobs as numbers, each with its own SLURM_ARRAY_TASK_ID: 0-9%2.",
        refusal="logs and results are planned for the elements of an array",
        instead="--array LIST",
    ),
    SlurmOption(
        "signal",
        kind="text",
        metavar="SIGNAL",
        help="Signal before the time limit: B:USR1@60 (to the batch shell, 60 s before).",
    ),
    SlurmOption(
        "comment", kind="text", metavar="TEXT", help="Slurm's comment; some sites require one."
    ),
    SlurmOption(
        "requeue",
        "maybe",
        kind="switch",
        help="Requeue the job before its time limit, and continue from the checkpoint. Ranks get "
        "USR1 120 s before the limit, or the signal of --signal, perhaps twice. After it, exit "
        "code 0 means finished; any other (75 is usual), or none, means continue.",
        refusal="a requeued job must continue from its checkpoint",
        instead="--requeue",
    ),
)
# All others go to sbatch as they are given.
_VALUE = """
bb bbf begin cluster-constraint container-type core-spec cores-per-socket cpu-freq deadline
delay-boot distribution extra-node-info gid gpu-bind gpu-freq gres-flags input licenses mail-type
mail-user mcs-label mem-per-cpu mem-per-gpu mincpus nodefile ntasks-per-core ntasks-per-socket
power priority profile sockets-per-node switches thread-spec threads-per-core time-min tmp
tres-bind uid wckey
"""
_MAYBE = "get-user-env nice oom-kill-step propagate resv-ports"
_FLAG = """
contiguous external hold ignore-pbs overcommit oversubscribe quiet reboot spread-job
spread-segments use-min-nodes verbose
"""
_UNLISTED_VALUE = """
acctg-freq batch context extra hint mem-bind mem-update network prefer resources segment
wait-all-nodes
"""
_UNLISTED_FLAG = "consolidate-segments stepmgr"
# salloc refuses a job with one of these, though a site's file may set it for every job; "array" and
# "requeue" have no meaning for an interactive job.
_SBATCH_ONLY = (
    "array",
    "batch",
    "container-type",
    "export-file",
    "ignore-pbs",
    "input",
    "kill-on-invalid-dep",
    "no-requeue",
    "propagate",
    "requeue",
)
_SHORT = {
    "begin": "b",
    "chdir": "D",
    "clusters": "M",
    "core-spec": "S",
    "distribution": "m",
    "error": "e",
    "extra-node-info": "B",
    "help": "h",
    "hold": "H",
    "input": "i",
    "licenses": "L",
    "no-kill": "k",
    "nodefile": "F",
    "ntasks": "n",
    "output": "o",
    "overcommit": "O",
    "oversubscribe": "s",
    "quiet": "Q",
    "verbose": "v",
    "version": "V",
    "wait": "W",
}


def _passed(
    names: str,
    takes: Takes = "value",
    refusal: str = "",
    instead: str = "",
    *,
    in_help: bool = True,
) -> tuple[SlurmOption, ...]:
    return tuple(
        SlurmOption(
            name,
            takes,
            _SHORT.get(name, ""),
            refusal=refusal,
            instead=instead,
            in_help=in_help,
        )
        for name in names.split()
    )


_NTASKS = "--ntasks-per-node N"
_GPUS_PER_NODE = "--gpus-per-node [TYPE:]N"
_ENV = "--env NAME=VALUE"
_COMMAND = "to run a program of the image: toolkit run --launcher none -- hostname"
# ``--slurm`` refuses them.
_DECIDED = (
    *_passed(
        "no-requeue", "flag", "the plan decides whether a job is requeued", "leave --requeue out"
    ),
    *_passed("no-kill", "maybe", "elastic launchers set it", "--nodes MIN:MAX"),
    *_passed("ntasks", "value", _LAUNCH, _NTASKS),
    *_passed(
        "tasks-per-node ntasks-per-gpu ntasks-per-tres", "value", _LAUNCH, _NTASKS, in_help=False
    ),
    *_passed("gpus-per-task gpus-per-socket tres-per-task", "value", _GPUS, _GPUS_PER_NODE),
    *_passed("output error", "value", _LOGS, "toolkit logs"),
    *_passed("open-mode", "value", _LOGS, "toolkit logs", in_help=False),
    *_passed("chdir", "value", "ranks run in the current directory", "change to it first"),
    *_passed("export export-file", "value", "ranks get the variables of the plan", _ENV),
    *_passed("wrap", "value", "a plan has a script already", _COMMAND),
    *_passed("parsable", "flag", _FOLLOWED, "--detach --json prints the job's number"),
    *_passed("wait", "flag", _FOLLOWED, "toolkit run waits, unless --detach is given"),
    *_passed("test-only", "flag", _FOLLOWED, "--dry-run", in_help=False),
    *_passed("clusters", "value", _FOLLOWED, "--site NAME"),
    *_passed("cluster", "value", _FOLLOWED, "--site NAME", in_help=False),
    *_passed("container container-id", "value", _RUNTIME, "--image NAME"),
    *_passed("help", "flag", _UNSUBMITTED, "sbatch --help"),
    *_passed("usage", "flag", _UNSUBMITTED, "sbatch --usage"),
    *_passed("version", "flag", _UNSUBMITTED, "sbatch --version"),
    *_passed("autocomplete", "value", _UNSUBMITTED, in_help=False),
)
OPTIONS: dict[str, SlurmOption] = {
    option.name: option
    for option in (
        *_OWN,
        *_DECIDED,
        *_passed(_VALUE, "value"),
        *_passed(_MAYBE, "maybe"),
        *_passed(_FLAG, "flag"),
        *_passed(_UNLISTED_VALUE, "value", in_help=False),
        *_passed(_UNLISTED_FLAG, "flag", in_help=False),
    )
}
# Options that set the same in another unit: a site that forbids or requires one means all of them.
OTHER_NAMES = {"mem": ("mem-per-cpu", "mem-per-gpu")}
SHORT: dict[str, str] = {option.short: option.name for option in OPTIONS.values() if option.short}
# Those that have a field of ``Job``, in the order of a script.
OWN: tuple[SlurmOption, ...] = tuple(option for option in _OWN if option.kind)
