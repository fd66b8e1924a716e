"""Record the steps and the memory of each rank that `toolkit bench` measures.

The module in ``scripts/report`` imports it before the script. It patches PyTorch and Horovod when
the script imports them, and neither when it does not. For each step of the optimizer it notes the
time, and the seconds of this rank's own work: outside of collectives, and of the backward pass up
to the last gradient, after which it may wait for others. When the script takes down its process
group, all ranks first add up a buffer of the size of their gradients a few times. That is for
`bench scale` (``TOOLKIT_SCALE``). For `bench compare` (``TOOLKIT_MEMORY``) it writes the most
memory that the process had at one time, as the kernel counted it, and on GPUs the most that PyTorch
had.

The script must not notice any error of this module. It works on Python 3.8 and later.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import socket
import sys
import time
from pathlib import Path

TYPE_CHECKING = False  # importing typing would cost every start of Python some milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_report = sys.modules["sitecustomize"]  # type: Any  # which imports this module
_quiet = _report._quiet
_MOST_STEPS = 200_000  # that are recorded of one process
_REPEATS = 5
_MOST_BYTES = 256 << 20  # of the buffer; the time of a larger one is computed from it
_READY = 60.0  # seconds in which all ranks must reach the measurement
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "PMIX_RANK", "SLURM_PROCID")
_WAITING = (
    "backward",
    *("all_reduce", "reduce", "broadcast", "barrier", "all_gather", "all_gather_object"),
    *("all_gather_into_tensor", "gather", "scatter", "reduce_scatter", "reduce_scatter_tensor"),
    *("all_to_all", "all_to_all_single", "send", "recv", "broadcast_object_list"),
    *("allreduce", "allreduce_", "allgather", "synchronize"),  # of Horovod
)


class _Recorder:
    """The steps of this process, and the file they are written to."""

    def __init__(self, directory: str) -> None:
        self.pid = os.getpid()
        self.began = time.time()
        self.path = Path(directory, f"{socket.gethostname()}-{self.pid}.json")
        self.steps: list[tuple[float, float]] = []
        self.communication: dict[str, Any] | None = None
        self.busy = 0.0
        self.mark = time.perf_counter()
        self.depth = 0
        self.entered = self.ready = 0.0
        self.nested = 0
        self.gradients: dict[int, int] = {}
        self.is_sharded = False
        self.is_measured = False

    def enter(self) -> None:
        """Note that a call begins in which this rank may wait for others."""
        if self.depth == 0:
            self.entered = time.perf_counter()
            self.busy += self.entered - self.mark
        self.depth += 1

    def leave(self) -> None:
        """Note its end."""
        self.depth -= 1
        if self.depth == 0:
            self.busy += max(0.0, self.ready - self.entered)
            self.mark, self.ready = time.perf_counter(), 0.0

    def note_ready(self, _parameter: Any) -> None:
        """Note that the backward pass has the gradient of the first layer, which is its last."""
        self.ready = time.perf_counter()

    def end_step(self, optimizer: Any) -> None:
        """Record a step of an optimizer, unless it is within that of another one."""
        self.nested -= 1
        if self.nested or os.getpid() != self.pid or len(self.steps) >= _MOST_STEPS:
            return
        now = time.perf_counter()
        self.busy += now - self.mark if self.depth == 0 else 0.0
        if id(optimizer) not in self.gradients:
            self.watch(optimizer)
        self.steps.append((round(time.time(), 6), round(self.busy, 6)))
        self.busy, self.mark = 0.0, now

    def watch(self, optimizer: Any) -> None:
        """Note the bytes of an optimizer's gradients, and from now on when the last is ready."""
        parameters = [
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad
        ]
        self.is_sharded |= any(hasattr(parameter, "device_mesh") for parameter in parameters)
        if parameters and hasattr(parameters[0], "register_post_accumulate_grad_hook"):
            parameters[0].register_post_accumulate_grad_hook(_quiet(self.note_ready))
        sizes = (parameter.numel() * parameter.element_size() for parameter in parameters)
        self.gradients[id(optimizer)] = sum(sizes)

    def write(self) -> None:
        """Write what is recorded so far."""
        if os.getpid() != self.pid:
            return  # a child of the rank
        rank = next((os.environ[name] for name in _RANKS if os.environ.get(name)), "0")
        record = {"rank": int(rank), "host": socket.gethostname(), "began": self.began}
        record.update(steps=self.steps, communication=self.communication)
        # Hosts with one kernel are one machine.
        record.update(boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        smt = Path("/sys/devices/system/cpu/smt/active")
        threads = 2 if smt.exists() and smt.read_text().strip() == "1" else 1
        record.update(cores=(os.cpu_count() or 1) // threads)
        self.path.write_text(json.dumps(record))


def _around(
    function: Callable[..., Any],
    before: Callable[[], object],
    after: Callable[[], object] = bool,
) -> Callable[..., Any]:
    """Return a function with calls before and after it."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        before()
        try:
            return function(*arguments, **named)
        finally:
            after()

    return call


def _patch_optimizer(recorder: _Recorder, module: Any) -> None:
    def begin(*_: object) -> None:
        recorder.nested += 1

    end = _quiet(recorder.end_step)
    module.register_optimizer_step_pre_hook(begin)
    module.register_optimizer_step_post_hook(lambda optimizer, *_: end(optimizer))


def _patch_operations(recorder: _Recorder, module: Any) -> None:
    """Note the calls in which the rank may wait for others."""
    for name in _WAITING:
        if hasattr(module, name):
            waiting = _around(getattr(module, name), recorder.enter, recorder.leave)
            setattr(module, name, waiting)


def _patch_collectives(recorder: _Recorder, module: Any) -> None:
    _patch_operations(recorder, module)
    measure = _quiet(functools.partial(_measure_torch, recorder))
    module.destroy_process_group = _around(module.destroy_process_group, measure)


def _patch_horovod(recorder: _Recorder, module: Any) -> None:
    measure = _quiet(functools.partial(_measure_horovod, recorder))
    module.shutdown = _around(module.shutdown, measure)


_PATCHES = {
    "torch.optim.optimizer": _patch_optimizer,
    "torch.autograd": _patch_operations,
    "torch.distributed.distributed_c10d": _patch_collectives,
    "horovod.torch.mpi_ops": _patch_operations,
    "horovod.torch": _patch_horovod,
}


def _measure_torch(recorder: _Recorder) -> None:
    """Add up a buffer in the default process group, if all ranks have arrived."""
    import datetime

    import torch
    import torch.distributed as dist

    if recorder.is_measured or not recorder.steps or not dist.is_initialized():
        return
    recorder.is_measured = True
    size = dist.get_world_size()
    if size == 1 or recorder.is_sharded:
        return
    store, mine = dist.distributed_c10d._get_default_store(), f"toolkit_scale_{dist.get_rank()}"
    store.set(mine, "ready")
    names = [f"toolkit_scale_{rank}" for rank in range(size)]
    store.wait(names, datetime.timedelta(seconds=_READY))
    backend = dist.get_backend()
    device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else None
    _measure(recorder, str(backend), device, dist.all_reduce)


def _measure_horovod(recorder: _Recorder) -> None:
    """Add up a buffer by Horovod."""
    import horovod.torch as hvd
    import torch

    if recorder.is_measured or not recorder.steps or not hvd.is_initialized() or hvd.size() == 1:
        return
    recorder.is_measured = True
    device = (
        torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None
    )
    _measure(
        recorder,
        "horovod",
        device,
        lambda buffer: hvd.allreduce_(buffer, op=hvd.Sum, name="toolkit_scale"),
    )


def _measure(
    recorder: _Recorder, backend: str, device: Any, add_up: Callable[[Any], object]
) -> None:
    """Record the median time of some sums."""
    import torch

    wanted = int(os.environ.get("TOOLKIT_SCALE_BYTES") or 0) or sum(recorder.gradients.values())
    size, times = min(max(wanted, 4), _MOST_BYTES), []
    buffer = torch.zeros(size // 4, device=device)
    for _ in range(1 + _REPEATS):  # the first one sets up connections and memory
        if device is not None:
            torch.cuda.synchronize()
        started = time.perf_counter()
        add_up(buffer)
        if device is not None:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    median = sorted(times[1:])[_REPEATS // 2] * wanted / size
    recorder.communication = {"seconds": median, "bytes": wanted, "backend": backend}
    recorder.write()


def _record_memory(directory: str) -> None:
    """Write the most memory of this process, when it ends."""
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    torch, gpu = sys.modules.get("torch"), 0
    if torch is not None and torch.cuda.is_initialized():
        gpu = max(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count())))
    path = Path(directory, f"{socket.gethostname()}-{os.getpid()}.json")
    path.parent.mkdir(exist_ok=True)
    record = {"script": sys.argv[0], "host_mb": round(peak * 1024 / 1e6, 1)}
    path.write_text(json.dumps({**record, "gpu_mb": round(gpu / 1e6, 1)}))


def _finish(recorder: _Recorder) -> None:
    """Measure communication where the script has not taken down its process group."""
    if getattr(sys, "last_value", None) is None and "torch.distributed" in sys.modules:
        _quiet(_measure_torch)(recorder)
    recorder.write()


if os.environ.get("TOOLKIT_SCALE"):
    _recorder = _Recorder(os.environ["TOOLKIT_SCALE"])
    for _name, _patch in _PATCHES.items():
        patch = _quiet(functools.partial(_patch, _recorder))
        _report.PATCHES.setdefault(_name, []).append(patch)
    atexit.register(_quiet(_finish), _recorder)
    os._exit = _around(os._exit, _quiet(_recorder.write))
if os.environ.get("TOOLKIT_MEMORY"):
    atexit.register(_quiet(_record_memory), os.environ["TOOLKIT_MEMORY"])
