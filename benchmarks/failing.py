"""Write scripts in which one rank fails, for `make bench-failures`. Pure: one script for a case."""

from __future__ import annotations

import random
import textwrap
from typing import NamedTuple

NODES, RANKS_PER_NODE, STEPS = 2, 2, 24
RANKS = NODES * RANKS_PER_NODE

MOMENTS = ("start", "before-rendezvous", "loop", "end")
OTHERS = ("wait", "compute", "finish")


class Kind(NamedTuple):
    """A way to fail: its code, what explain must say of it, and the definitions that it needs."""

    code: str
    expected: str
    define: str = ""
    options: tuple[str, ...] = ()


KINDS: dict[str, Kind] = {
    "key-error": Kind("print({'rate': 0.1}['momentum'])", "KeyError: 'momentum'"),
    "assertion": Kind(
        "assert 3 * 7 == 22, 'the sum of the shards is wrong'",
        "AssertionError: the sum of the shards is wrong",
    ),
    "exit": Kind(
        "print('cannot go on without labels', file=sys.stderr)\nsys.exit(3)", "exit code 3"
    ),
    "argparse": Kind(
        "parser = argparse.ArgumentParser(prog='study.py')\n"
        "parser.add_argument('--depth', type=int)\nparser.parse_args(['--width', '4'])",
        "study.py: error: unrecognized arguments: --width 4",
        "import argparse",
    ),
    "segfault": Kind("ctypes.string_at(0)", "SIGSEGV", "import ctypes"),
    "killed": Kind("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL", "import signal"),
    "memory-error": Kind("table = bytearray(1 << 60)", "MemoryError"),
    "out-of-memory": Kind(
        "kept = []\nwhile True:\n    kept.append(b'x' * (64 << 20))\n    time.sleep(0.05)",
        "memory",
        options=("--mem", "2G"),
    ),
    "data-loader": Kind(
        "from torch.utils.data import DataLoader\n"
        "for batch in DataLoader(Scans(), batch_size=2, num_workers=1):\n    print(len(batch))",
        "ValueError: scan 3 has no label",
        textwrap.dedent("""\
            class Scans:
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    if index == 3:
                        raise ValueError("scan 3 has no label")
                    return float(index)
            """),
    ),
    "thread": Kind(
        "done = []\nreader = threading.Thread(target=read_ahead, args=(done,))\nreader.start()\n"
        "reader.join()\nif not done:\n    sys.exit(1)",
        "KeyError: 'shard-9'",
        "import threading\n\n\ndef read_ahead(done):\n    done.append({}['shard-9'])\n",
    ),
}


class Meeting(NamedTuple):
    """The lines by which a rank gets its number, connects, adds up with the others, and leaves."""

    rank: str
    meet: str
    add: str
    leave: str
    options: tuple[str, ...] = ()
    image: str = "pytorch_cpu"


_TORCH = (
    "import torch\nimport torch.distributed as dist\n"
    "dist.init_process_group('gloo')\nvalues = torch.ones(64)"
)
_HOROVOD = "import horovod.torch as hvd\nimport torch\nhvd.init()"
_ADD = "hvd.allreduce(torch.ones(64), name='values')"
_MPI = "from mpi4py import MPI\nworld = MPI.COMM_WORLD"
_TENSORFLOW = (
    "import tensorflow as tf\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
    "@tf.function\ndef total():\n"
    "    return strategy.reduce('SUM', strategy.run(lambda: tf.ones(8)), axis=None)"
)
_RAY = "import ray\nray.init(log_to_driver=False)\n@ray.remote\ndef work():\n    return 1"
_LEAVE = "dist.barrier()\ndist.destroy_process_group()"
MEETINGS: dict[str, Meeting] = {
    "torchrun": Meeting("int(os.environ['RANK'])", _TORCH, "dist.all_reduce(values)", _LEAVE),
    "srun": Meeting("int(os.environ['RANK'])", _TORCH, "dist.all_reduce(values)", _LEAVE),
    "spawn": Meeting(
        "int(os.environ['NODE_RANK']) * 2 + index", _TORCH, "dist.all_reduce(values)", _LEAVE
    ),
    "horovod": Meeting("int(os.environ['SLURM_PROCID'])", _HOROVOD, _ADD, "hvd.shutdown()"),
    "horovod-gloo": Meeting("int(os.environ['HOROVOD_RANK'])", _HOROVOD, _ADD, "hvd.shutdown()"),
    "horovod-elastic": Meeting(
        "int(os.environ['HOROVOD_RANK'])", _HOROVOD, _ADD, "pass", ("--max-restarts", "0")
    ),
    "mpi": Meeting(
        "int(os.environ['SLURM_PROCID'])", _MPI, "world.allreduce(1)", "world.Barrier()"
    ),
    "mpirun": Meeting(
        "int(os.environ['OMPI_COMM_WORLD_RANK'])", _MPI, "world.allreduce(1)", "world.Barrier()"
    ),
    "tensorflow": Meeting(
        "int(os.environ['SLURM_PROCID'])", _TENSORFLOW, "total()", "pass", image="tensorflow_cpu"
    ),
    "ray": Meeting("0", _RAY, "ray.get(work.remote())", "pass", image="ray_cpu"),
    "none": Meeting("int(os.environ['SLURM_PROCID'])", "pass", "time.sleep(0.05)", "pass"),
}


class Case(NamedTuple):
    """One failing run."""

    number: int
    launcher: str
    kind: str
    rank: int
    moment: str
    others: str
    style: str
    step: int


def drawn(seed: int, number: int) -> Case:
    """Draw a case: the same seed and number give the same one."""
    chance = random.Random(f"{seed}/{number}")
    launcher, kind = chance.choice(tuple(MEETINGS)), chance.choice(tuple(KINDS))
    if launcher == "tensorflow" and kind == "data-loader":  # torch is not in its image
        kind = "key-error"
    return Case(
        number,
        launcher,
        kind,
        0
        if launcher == "ray"
        else chance.randrange(RANKS),  # its script runs once, on the first node
        chance.choice(MOMENTS),
        chance.choice(OTHERS),
        chance.choice(("functions", "class")),
        chance.randrange(2, STEPS - 4),
    )


def script(case: Case) -> str:
    """Return the script of a case."""
    kind, meeting = KINDS[case.kind], MEETINGS[case.launcher]
    text = "\n\n\n".join(
        part
        for part in (
            "import os\nimport sys\nimport time"
            + (f"\n{kind.define}" if kind.define.startswith("import") else ""),
            "" if kind.define.startswith("import") else kind.define.rstrip(),
            _trouble(case, kind),
            _main(case, meeting),
            _SPAWN if case.launcher == "spawn" else _PLAIN,
        )
        if part
    )
    return text + "\n"


def _trouble(case: Case, kind: Kind) -> str:
    body = textwrap.indent(kind.code, "    ")
    if case.style == "class":
        return (
            "class Study:\n    def check(self):\n"
            + textwrap.indent(body, "    ")
            + "\n\n\ndef trouble():\n    Study().check()"
        )
    call = (
        "import ray\n    ray.get(ray.remote(look_up).remote())" if _is_remote(case) else "look_up()"
    )
    return "def look_up():\n" + body + f"\n\n\ndef trouble():\n    {call}"


def _is_remote(case: Case) -> bool:
    """Return whether a task of Ray fails, and not the script that waits for it."""
    return (
        case.launcher == "ray"
        and case.kind in ("key-error", "assertion", "memory-error")
        and case.moment in ("loop", "end")
    )


def _main(case: Case, meeting: Meeting) -> str:
    apart = case.others == "finish"
    loop = [
        f"for step in range({STEPS}):",
        *(f"    {line}" for line in _here(case, "loop", f"step == {case.step}").splitlines()),
        *(
            [f"    if step == {case.step} and rank != {case.rank}:", "        time.sleep(6)"]
            if case.others == "compute"
            else []
        ),
        f"    {'time.sleep(0.05)' if apart else meeting.add}",
    ]
    if case.launcher == "horovod-elastic":
        body = textwrap.indent("\n".join(loop), "    ")
        loop = [
            "@hvd.elastic.run",
            "def train(state):",
            *body.splitlines(),
            "train(hvd.elastic.TorchState(epoch=0))",
        ]
    lines = [
        f"rank = {meeting.rank}",
        _here(case, "start"),
        _here(case, "before-rendezvous", "time.sleep(1)"),
        *meeting.meet.splitlines(),
        *loop,
        _here(case, "end", "time.sleep(3)" if apart else ""),
        *(["pass"] if apart else meeting.leave.splitlines()),
    ]
    lines = [line for text in lines for line in text.splitlines() if line]
    return f"def main({'index' if case.launcher == 'spawn' else ''}):\n" + textwrap.indent(
        "\n".join(lines), "    "
    )


def _here(case: Case, moment: str, more: str = "") -> str:
    """Return the lines that fail at a moment.

    ``more`` is a further condition, or a statement before.
    """
    if case.moment != moment:
        return ""
    if "==" in more:
        return f"if rank == {case.rank} and {more}:\n    trouble()"
    before = f"\n    {more}" if more else ""
    return f"if rank == {case.rank}:{before}\n    trouble()"


_SPAWN = """\
def start(index):
    os.environ["RANK"] = str(int(os.environ["NODE_RANK"]) * 2 + index)
    os.environ["WORLD_SIZE"] = "4"
    main(index)


if __name__ == "__main__":
    import torch.multiprocessing

    torch.multiprocessing.spawn(start, nprocs=2)"""
_PLAIN = """\
if __name__ == "__main__":
    main()"""
