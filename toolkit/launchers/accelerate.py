"""accelerate: `accelerate launch` on each node, with its number and the address of the first.

It serves commands with a configuration file of Accelerate, which torchrun cannot read:
``toolkit run --nodes 2 -- accelerate launch --config_file fsdp.yaml train.py``. The numbers of the
job come first, and the user's own words after them. For DeepSpeed no other node is called: each has
an agent of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from msgspec.structs import replace

from toolkit.errors import LauncherMismatchError, ToolkitError
from toolkit.launchers.shared.base import Launcher, Recognition, sockets
from toolkit.launchers.shared.step_log import batch_lines, failures_of_step
from toolkit.launchers.shared.trainers import environment, lightning_findings
from toolkit.launchers.torchrun import summary_failures
from toolkit.model.case import Case
from toolkit.model.plan import Launch
from toolkit.model.run import Failure
from toolkit.quoting import shell_words

_COMMAND = ("accelerate", "launch")
# What each node learns when it starts; a shell in the container expands it.
_MEETING = (
    '--machine_rank "$NODE_RANK" '
    '--main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT"'
)
# Words by which the user says what is launched; without them several processes are plain data
# parallel.
_KINDS = ("--config_file", "--multi_gpu", "--use_fsdp", "--use_deepspeed", "--use_megatron_lm")


class Accelerate(Launcher):
    """Agents of `accelerate launch`."""

    summary = "accelerate launch on each node starts the node's ranks; for its configuration files"
    framework = "accelerate"
    is_per_node = True
    takes_programs = True
    commands = _COMMAND[:1]
    rank_variables = ("RANK",)
    starters = ("accelerate",)

    def recognize(self, case: Case) -> Recognition | None:
        """Claim the command `accelerate launch`."""
        command = (case.target.name, *case.job.arguments[:1])
        return Recognition(-1, "launch starts ranks by itself") if command == _COMMAND else None

    def check(self, case: Case) -> Sequence[ToolkitError]:
        """Require accelerate, and a command or a script that it can launch."""
        findings = [*self.require("accelerate", case), *lightning_findings(case)]
        if case.target.is_program and (case.target.script, *case.job.arguments[:1]) != _COMMAND:
            findings.append(
                LauncherMismatchError(
                    "the launcher accelerate starts Python scripts, "
                    f"not the program {case.target.script}",
                    place="--launcher",
                    next_step="--launcher none, or: -- accelerate launch SCRIPT",
                )
            )
        return findings

    def launch(self, case: Case) -> Launch:
        """Start one agent on each node, with the CPUs of all its ranks."""
        words = case.job.arguments[1:] if case.target.is_program else _script(case)
        is_plain = case.ranks > 1 and not (case.target.is_program and _has_kind(words))
        options = (
            *(("--multi_gpu",) if is_plain else ()),
            f"--num_machines={case.nodes}",
            f"--num_processes={case.ranks}",
            "--rdzv_backend=static",
            "--deepspeed_multinode_launcher=standard",
            *(("--tee=3",) if case.ranks > 1 else ()),
        )
        command = " ".join(("exec", shell_words((*_COMMAND, *options)), _MEETING, '"$@"'))
        decided, on_cpus = super().launch(case), not case.job.most_gpus
        return replace(
            decided,
            template="spawn",
            environment={
                **decided.environment,
                # Without it, and without GPUs, each rank is alone.
                **({"ACCELERATE_USE_CPU": "true"} if on_cpus else {}),
                **environment(case),
                "TORCH_CPP_LOG_LEVEL": "ERROR",  # as for torchrun
                "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${rank}| ",
                **sockets(case, "GLOO", "NCCL"),
            },
            program=("sh", "-c", command, _COMMAND[0], *words),
            task_is_rank=False,
            labels_lines=case.ranks > 1,
            init="tcp",
        )

    def failures(self, logs: Iterable[tuple[str, Sequence[str]]]) -> list[Failure]:
        """Return the ranks in the agents' summaries, which are torchrun's."""
        by_host = list(logs)
        reported = summary_failures((host, lines) for host, lines in by_host if host)
        return reported or failures_of_step(batch_lines(by_host), task="agent")


def _has_kind(words: Sequence[str]) -> bool:
    """Return whether the words before the script say what is launched."""
    before = takewhile(lambda word: not word.endswith(".py"), words)
    return any(word.partition("=")[0] in _KINDS for word in before)


def _script(case: Case) -> tuple[str, ...]:
    module = case.job.python_module
    return (*(("-m", module) if module else (case.target.script,)), *case.job.arguments)


LAUNCHER = Accelerate()
