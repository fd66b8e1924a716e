"""Commands of other launchers, as people paste them: ``torchrun --nproc-per-node 2 train.py``.

What such a command says of nodes and ranks is taken over; addresses and ports are the plan's. The
program that it starts is then run by the launcher, and never by two inside each other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from toolkit.errors import UsageError
from toolkit.planning.settings import Layer
from toolkit.source import is_python, python_command

NODES, PER_NODE, RANKS, RESTARTS = "nodes", "ntasks_per_node", "ranks", "max_restarts"
CPUS = "cpus_per_task"
HOSTS, ENV, MCA, MODULE, GRES = "hosts", "env", "mca", "module", "gres"
# Settings of the job that srun's options may say, too.
_OF_JOB = ("account", "comment", "gpus_per_node", "job_name", "mem", "partition", "time")
# Options that take a value and say how ranks meet, what is logged, and where ranks are placed.
_LEFT_OUT = ""


class Command(NamedTuple):
    """The options of a program that starts ranks.

    Attributes:
        launcher: that does the same here; empty: the one that the script's imports choose.
        values: option that takes a value -> what it says; empty: it is left out. A name in capitals
            is that of a variable.
        switches: options without a value, which are left out, but for that of a module.
        is_mixed: its options may stand among those of the program.
        stays: the command itself stays, and takes no options after its script.
        starts: what it starts, if that is not in its words.
    """

    launcher: str
    values: Mapping[str, str]
    switches: Mapping[str, str] = {}
    is_mixed: bool = False
    stays: bool = False
    starts: tuple[str, ...] = ()


def _options(names: str, **meanings: str) -> dict[str, str]:
    left_out = dict.fromkeys(names.split(), _LEFT_OUT)
    return left_out | {name.replace("_", "-"): meaning for name, meaning in meanings.items()}


_TORCHRUN = Command(
    "torchrun",
    _options(
        "rdzv-backend rdzv-endpoint rdzv-id rdzv-conf node-rank master-addr master-port local-addr "
        "monitor-interval start-method role log-dir redirects r tee t logs-specs event-log-handler "
        "local-ranks-filter numa-binding",
        nnodes=NODES,
        nproc_per_node=PER_NODE,
        max_restarts=RESTARTS,
    ),
    _options("standalone run-path use-env", m=MODULE, module=MODULE),
)
_LAUNCH = _TORCHRUN._replace(switches=_options("standalone use-env", m=MODULE, module=MODULE))
_MPIRUN = Command(
    "mpi",
    _options(
        "hostfile machinefile f bind-to map-by rank-by wdir wd output-filename prefix",
        map_by=_LEFT_OUT,
        **dict.fromkeys(("np", "n", "c"), RANKS),
        **dict.fromkeys(("N", "npernode", "ppn"), PER_NODE),
        **dict.fromkeys(("H", "host", "hosts"), HOSTS),
        x=ENV,
        mca=MCA,
    ),
    _options("allow-run-as-root oversubscribe tag-output report-bindings display-map q v"),
)
_SRUN = Command(
    "srun",
    _options(
        "cpu-bind mpi label output o error e gpu-bind kill-on-bad-exit export",
        ntasks_per_node=PER_NODE,
        gres=GRES,
        **dict.fromkeys(("nodes", "N"), NODES),
        **dict.fromkeys(("ntasks", "n"), RANKS),
        **dict.fromkeys(("c", "cpus_per_task"), CPUS),
        p="partition",
        t="time",
        A="account",
        J="job_name",
        **{name: name for name in _OF_JOB},
    ),
    _options("l u unbuffered exclusive overlap"),
)
_LIGHTNING = Command(
    "srun",
    _options(
        "node-rank main-address main-port",
        num_nodes=NODES,
        devices=PER_NODE,
        accelerator="LT_ACCELERATOR",
        strategy="LT_STRATEGY",
        precision="LT_PRECISION",
    ),
    is_mixed=True,
)
_ACCELERATE = Command(
    "",
    _options(
        "machine-rank main-process-ip main-process-port rdzv-backend",
        num_machines=NODES,
        num_processes=RANKS,
    ),
    is_mixed=True,
    stays=True,
    starts=("accelerate", "launch"),
)
# It starts `accelerate launch` itself, which would be one launcher inside of another.
_TRL: dict[tuple[str, ...], Command] = {
    ("trl", name): _ACCELERATE._replace(
        stays=False, starts=("accelerate", "launch", "-m", f"trl.scripts.{name}")
    )
    for name in ("dpo", "grpo", "kto", "reward", "rloo", "sft")
}
COMMANDS: dict[tuple[str, ...], Command] = {
    ("torchrun",): _TORCHRUN,
    ("python", "-m", "torch.distributed.run"): _TORCHRUN,
    ("python", "-m", "torch.distributed.launch"): _LAUNCH,
    ("deepspeed",): Command(
        "",
        _options(
            "hostfile H include i exclude e master-port master-addr launcher launcher-args "
            "ssh-port bind-core-list elastic-training",
            num_nodes=NODES,
            num_gpus=PER_NODE,
        ),
        _options(
            "force-multi no-ssh no-ssh-check save-pid no-local-rank bind-cores-to-rank "
            "enable-each-rank-log",
            module=MODULE,
        ),
    ),
    ("horovodrun",): Command(
        "horovod",
        _options(
            "hostfile network-interface ssh-port p start-timeout output-filename mpi-args fusion-"
            "threshold-mb cycle-time-ms cache-capacity log-level gloo-timeout-seconds nics",
            np=RANKS,
            num_proc=RANKS,
            H=HOSTS,
            hosts=HOSTS,
        ),
        _options("mpi gloo verbose disable-cache autotune mpi-threads-disable"),
    ),
    ("mpirun",): _MPIRUN,
    ("mpiexec",): _MPIRUN,
    ("srun",): _SRUN,
    ("lightning", "run", "model"): _LIGHTNING,
    ("lightning", "run"): _LIGHTNING,
    ("fabric", "run", "model"): _LIGHTNING,
    ("fabric", "run"): _LIGHTNING,
    ("composer",): Command(
        "torchrun",
        _options(
            "base-rank node-rank master-addr master-port stdout stderr",
            nproc=PER_NODE,
            n=PER_NODE,
            world_size=RANKS,
        ),
        _options("verbose v", m=MODULE, module_mode=MODULE),
    ),
    ("ray", "job", "submit"): Command(
        "ray",
        _options("address working-dir runtime-env runtime-env-json submission-id"),
        _options("no-wait"),
    ),
    ("accelerate", "launch"): _ACCELERATE,
    ("colossalai", "run"): Command(
        "torchrun",
        _options(
            "hostfile H include exclude master-addr master-port ssh-port extra-launch-args",
            nproc_per_node=PER_NODE,
            num_nodes=NODES,
            host=HOSTS,
        ),
        _options("", m=MODULE),
    ),
    **_TRL,
}
# Those of the host are not for the image's programs.
_OF_HOST = ("PATH", "LD_LIBRARY_PATH")
# Programs that only start another one.
_STARTERS = (("env",), ("nohup",), ("time",), ("uv", "run"), ("poetry", "run"), ("pdm", "run"))


def translate(words: Sequence[str], flags: Layer) -> tuple[str, Layer, str] | None:
    """Return what the command of another launcher starts, the flags with what it says, and a note.

    Variables and programs that only start another one may come first. Return None for a
    command that starts no ranks, and has none of them.

    Raises:
        UsageError: it has an option that is not known here, starts nothing, or contradicts a flag.
    """
    rest, env = _without_starters(words)
    read = _read(rest, flags)
    if read is None and len(rest) == len(words):
        return None
    program, settings, note = read or (rest, {}, f"what is started is {rest[0]}")
    if env:
        note = f"{note}, with {', '.join(f'--env {name}' for name in env)}"
    env = {**env, **settings.get("env", {}), **flags.values.get("env", {})}
    values = {**settings, **flags.values, "arguments": tuple(program[1:])}
    return program[0], flags._replace(values=values | ({"env": env} if env else {})), note


def _without_starters(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the command after ``A=1`` and ``nohup``, and the variables."""
    rest, env = [*words], dict[str, str]()
    while len(rest) > 1 and not rest[1].startswith("-"):
        name, equals, value = rest[0].partition("=")
        starter = next((each for each in _STARTERS if tuple(rest[: len(each)]) == each), ())
        if not starter and not (equals and name.isidentifier()):
            break
        if equals and name != "CUDA_VISIBLE_DEVICES":  # Slurm chooses the GPUs.
            env[name] = value
        del rest[: len(starter) or 1]
    return rest, env


def _launcher_of(words: Sequence[str]) -> tuple[tuple[str, ...], list[str]] | None:
    plain, command = tuple(words), python_command(words)
    if command is not None and _is_on_path(words[0]):
        _, _, module, arguments = command  # of a script, no module
        plain = ("python", "-m", module, *arguments)
    name = next((name for name in COMMANDS if plain[: len(name)] == name), None)
    return (name, list(plain[len(name) :])) if name else None


def _read(words: Sequence[str], flags: Layer) -> tuple[list[str], dict[str, Any], str] | None:
    """Return the program, the settings and a note of a launcher's command; None for another one."""
    known = _launcher_of(words)
    if known is None:
        return None
    (name, rest), command = known, COMMANDS[known[0]]
    given: dict[str, list[str]] = {}
    place, program = " ".join(name), [*command.starts]
    while rest and rest[0] != "--":
        option = rest[0].lstrip("-").partition("=")[0].replace("_", "-")
        if rest[0].startswith("-") and (not program or option in command.values):
            _take(place, command, rest, given)
        elif command.is_mixed:
            program.append(rest.pop(0))
            if command.stays and (program[-1].endswith(".py") or program[-1] in ("-m", "--module")):
                break
        else:
            break
    rest = [*program, *rest[rest[:1] == ["--"] :]]
    if not rest:
        raise UsageError(
            f"{place} is given nothing to start",
            place="SCRIPT",
            next_step=f"{place} ... train.py",
        )
    settings = _settings(place, given, flags)
    if command.stays and not settings:
        return None
    if MODULE in given:
        rest = ["python", "-m", *rest]
    if not command.starts and _launcher_of(rest):
        if command is not _SRUN:
            started = rest[2] if MODULE in given else rest[0]
            raise UsageError(
                f"{place} would start {started}, which starts ranks, too",
                place=place,
                next_step="leave one of them out",
            )
        # srun torchrun ...: its tasks are agents, and no ranks.
        settings.pop(PER_NODE, None)
        within = _read(rest, flags._replace(values={**settings, **flags.values}))
        if within is not None:
            place, rest, settings = f"{place} {rest[0]}", within[0], {**settings, **within[1]}
    elif command.launcher and (
        command is not _SRUN or rest[0].endswith(".py") or _is_on_path(rest[0])
    ):  # srun may start a program
        settings["launcher"] = command.launcher
    _compare(place, settings, flags)
    options = [
        *(f"--{key.replace('_', '-')} {settings[key]}" for key in settings if "env" not in key),
        *(f"--env {name}" for key in ("pass_env", "env") for name in settings.get(key, ())),
    ]
    return rest, settings, f"{place} is understood as {' '.join(options) or rest[0]}"


def _compare(place: str, settings: Mapping[str, Any], flags: Layer) -> None:
    for key, value in settings.items():
        if "env" not in key and str(flags.values.get(key, value)) not in (str(value), "auto"):
            option = f"--{key.replace('_', '-')}"
            raise UsageError(
                f"{place} says {option} {value}, and the command line says {option} "
                f"{flags.values[key]}",
                place=option,
                next_step="leave one of them out",
            )


def _is_on_path(word: str) -> bool:
    return "/" not in word and is_python(word)


def _take(place: str, command: Command, rest: list[str], given: dict[str, list[str]]) -> None:
    word = rest.pop(0)
    option, equals, value = word.lstrip("-").partition("=")
    option = option.replace("_", "-")
    if option not in {*command.switches, *command.values} and word[1:2] in command.values:
        option, equals, value = word[1], "=", word[2:]  # -N2
    if option in command.switches:
        given.setdefault(command.switches[option], []).append(value)
        return
    if option not in command.values:
        raise UsageError(
            f"{place} {word} is not known here",
            place=word,
            choices=[f"--{name}" for name in (*command.values, *command.switches)],
            value=word,
            next_step="leave it out, or say it by an option of toolkit run",
        )
    meaning = command.values[option]
    if not equals:
        count = 2 if meaning == MCA else 1
        value = "=".join(rest[:count])
        del rest[:count]
    given.setdefault(meaning, []).append(value)


def _settings(place: str, given: Mapping[str, Sequence[str]], flags: Layer) -> dict[str, Any]:
    settings: dict[str, Any] = {key: given[key][-1] for key in _OF_JOB if key in given}
    for key in (NODES, PER_NODE, RESTARTS, CPUS):
        text = given.get(key, [""])[-1]
        if re.fullmatch(r"\d+(?::\d+)?", text):  # "auto" and "gpu" are the plan's to decide
            settings[key] = int(text) if text.isdigit() else text
    hosts = [host for text in given.get(HOSTS, ()) for host in text.split(",") if host]
    if hosts:
        settings.setdefault(NODES, len(hosts))
    kind, _, gpus = given.get(GRES, [""])[-1].partition(":")
    if kind == "gpu":
        settings["gpus_per_node"] = gpus or "1"
    ranks = given.get(RANKS, [""])[-1]
    if ranks.isdigit():
        per_node = settings.get(PER_NODE)
        if isinstance(per_node, int) and per_node and NODES not in {*settings, *flags.values}:
            settings[NODES] = int(ranks) // per_node
        nodes = settings.get(NODES) or flags.values.get(NODES) or 1
        nodes = nodes if isinstance(nodes, int) else 0  # a range has no equal numbers
        if nodes and int(ranks) % nodes == 0:
            settings.setdefault(PER_NODE, int(ranks) // nodes)
        per_node = settings.get(PER_NODE)
        slots = [int(text) for host in hosts if (text := host.partition(":")[2]).isdigit()]
        count = per_node if isinstance(per_node, int) else 0
        if str(nodes * count) != ranks or count > min(slots, default=count):
            raise UsageError(
                f"{place} asks for {ranks} ranks, which {','.join(hosts) or f'{nodes} nodes'} "
                "cannot have in equal numbers",
                place=place,
                next_step="--nodes N with as many ranks on each",
            )
    variables = [*given.get(ENV, ()), *(f"OMPI_MCA_{text}" for text in given.get(MCA, ()))]
    variables += [f"{name}={texts[-1]}" for name, texts in given.items() if name.isupper()]
    if env := dict(text.split("=", 1) for text in variables if "=" in text):
        settings["env"] = env
    if passed := tuple(text for text in variables if "=" not in text and text not in _OF_HOST):
        settings["pass_env"] = passed
    return settings
